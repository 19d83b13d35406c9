# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``vocab_parallel_cross_entropy`` and ``vocab_parallel_linear_cross_entropy``: the loss of an output layer whose
classes are spread over processes.

``functional``, ``autograd``: of logits; ``linear_functional``, ``linear_autograd``: of hidden states;
``linear_placement``: DTensor output layers as plain tensors; ``shard_autograd``: steps of all derivatives from hidden
states, shared with the scores and the distillation; ``shards``: which rank has which classes, and statistics over all
ranks.
"""
