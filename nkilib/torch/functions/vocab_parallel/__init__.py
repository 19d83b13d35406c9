# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``vocab_parallel_cross_entropy`` and ``vocab_parallel_linear_cross_entropy``: the loss of an output layer whose
classes are spread over processes.

- ``functional`` and ``autograd``: the loss of logits;
- ``linear_functional`` and ``linear_autograd``: the loss of hidden states;
- ``linear_placement``: DTensor output layers as plain tensors;
- ``shard_autograd``: the steps that all derivatives from hidden states share, also for scores and distillation;
- ``shards``: the classes of each rank, and statistics over all ranks.
"""
