# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Code that the fused linear losses share: a loss computed from X, W and an optional bias, without storing the logits.

The kernels are in :mod:`nkilib.experimental.loss.linear_cross_entropy` and
:mod:`nkilib.experimental.loss.linear_distillation`, whose docstrings list the steps of a launch. The modules here are:

- ``validation`` rejects operands that the kernels do not accept, before a launch.
- ``launch`` holds the operands of a kernel, its tiling, the gradients that it returns, and the limits of sizes and
  memory.
- ``block_schedule`` divides positions and classes into parts and blocks, for a device loop.
- ``operands`` loads matrices and vectors, and rounds operands whose dtype is not the dtype of the products.
- ``logits`` computes logits (the product, the bias and the cap), and keeps logits in HBM.
- ``class_schedule`` (forward) has a core's blocks of classes and the loads of W^T.
- ``logit_passes`` (forward) picks the target logits, and has the passes for entropy and argmax.
- ``backward`` has the loop of the backward. Each loss computes the tiles of the gradient of its logits.
- ``tiling`` (host) chooses the tilings, and counts the bytes of HBM of a backward.
- ``reference`` (host) has the output layer in float64 and bounds on the errors of its products.
"""
