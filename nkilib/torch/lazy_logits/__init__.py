# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Logits that are computed only if something needs them: the output layer of any model without logits in memory.

- ``head``: :func:`fuse_linear_loss`, and the forward that replaces the output layer's;
- ``logits``: :class:`LazyLogits`, the object that this forward returns;
- ``form``: the description of logits that are not computed;
- ``transformations``: the functions of torch whose result is lazy logits again;
- ``consumers``: the functions of torch that kernels compute from lazy logits;
- ``record``: the options of a fused layer, and its record of functions without logits and of places where logits were
  computed.
"""
