# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward that both fused linear losses share; each loss computes the tiles of the gradient of its logits.

The modules in the order of a launch:

- ``memory_plan`` chooses the buffers in SBUF and the blocks of classes of a core; ``geometry`` computes the memory and
  the instructions of such a plan.
- ``one_core`` is the entry point. It loops over the blocks of the core, and splits very many positions into parts.
- ``rounds``: a round is the work on one block of classes with one block of positions. The module has the buffers that
  all rounds share.
- ``streams`` has the buffers of X and W, and loads them.
- ``logit_gradient`` is the first half of a round: logits, tiles of their gradient from the ``tile_maker`` of the loss,
  and the transposes of these tiles. They fill a ``gradient_block``.
- ``gradient_products`` is the second half of a round: dX (``input_gradient``), dW (``weight_gradient``) and db
  (``bias_gradient``), one stripe of features after another. At the end the cores add up dX.
"""
