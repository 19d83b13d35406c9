# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of both linear losses; each loss computes the tiles of the gradient of its logits.

In the order of a launch:

- ``memory_plan`` chooses the buffers that fit SBUF besides the blocks, and the core's blocks of classes, with
  ``geometry``, which computes the memory and instructions of a plan.
- ``one_core``: the entry point. It goes through the blocks of the core, and splits very many positions into parts.
- ``rounds``: a block of classes and a block of positions are a round; buffers that all rounds share.
- ``streams``: the operands of each model and the buffers of those that stream past.
- ``logit_gradient``: the first half of a round: logits, tiles of the gradient from the ``tile_maker`` of the loss, and
  their transposes, which fill a ``gradient_block``.
- ``gradient_products``: the second half: dX (``input_gradient``), dW (``weight_gradient``) and db
  (``bias_gradient``), one stripe of features after another. At the end the cores add up dX.
"""
