# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``vocab_parallel_cross_entropy`` and ``vocab_parallel_linear_cross_entropy``: the loss of an output layer whose
classes are spread over processes.

``functional`` and ``autograd`` have the loss of logits, ``linear_functional`` and ``linear_autograd`` the loss of
hidden states. ``linear_placement`` converts DTensor output layers to plain tensors. ``shard_autograd`` has the steps
that all derivatives from hidden states share, also for the scores and the distillation. ``shards`` tells which rank has
which classes, and computes statistics over all ranks.
"""
