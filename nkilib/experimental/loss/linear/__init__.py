# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts that losses of an output layer share: operands from hidden states and weights, blocks, streams, products.

The kernels are in :mod:`nkilib.experimental.loss.linear_cross_entropy` and
:mod:`nkilib.experimental.loss.linear_distillation`, whose docstrings list the steps of a launch. They use these parts:

- ``validation`` rejects operands that are not accepted, before a launch.
- ``launch``: the operands of a kernel, its tiling, and the gradients that it returns; the limits of sizes and memory.
- ``block_schedule`` divides positions and classes into parts and blocks, for a device loop.
- ``operands`` loads matrices and vectors, and rounds operands of another type.
- ``logits`` computes logits: the product, the bias and the cap; it also keeps logits in HBM.
- Forward: the loss has the loop over positions. ``class_schedule`` has a core's blocks of classes and the stream of
  W^T, ``logit_passes`` the target logits and the passes for entropy and argmax.
- ``backward``: the loop of the backward. A loss computes the tiles of the gradient of its logits.
- Host code: ``tiling`` chooses the tilings, and counts the bytes of HBM of a backward; ``reference`` has the layer in
  float64 and the errors of its products.
"""
