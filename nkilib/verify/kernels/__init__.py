# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every kernel of the library on fixed inputs, compared with float64 and the simulator.

``case`` is a launch and the comparison of its results, ``inputs`` makes the inputs. Each other module has the cases of
some kernels:

- ``cross_entropy``, ``extended_cross_entropy``: cross-entropy from logits, also called by another kernel;
- ``linear_cross_entropy``, ``linear_token_scores``, ``linear_distillation``: losses from hidden states and output
  weights;
- ``distillation``, ``log_probabilities``, ``margins``, ``ctc``: losses with loops of their own;
- ``elementwise``, ``rowwise``: elementwise and row-wise losses, from their registry entries;
- ``softmax``: softmax and log-softmax.
"""
