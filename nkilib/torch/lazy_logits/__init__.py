# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Logits that are computed only if something needs them: the output layer of any model without logits in memory.

- ``head``: :func:`fuse_linear_loss`, and what then runs in place of the output layer;
- ``logits``: :class:`LazyLogits`, which it returns;
- ``form``: what lazy logits are made of;
- ``transformations``: the functions of torch that give lazy logits again;
- ``consumers``: the functions of torch that kernels compute from them;
- ``record``: what ran without logits and where they were computed, and the options of a fused layer.
"""
