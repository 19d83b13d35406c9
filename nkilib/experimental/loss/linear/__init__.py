# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts that losses of an output layer share: operands from hidden states and weights, blocks, streams, products.

The kernels are in :mod:`nkilib.experimental.loss.linear_cross_entropy` and
:mod:`nkilib.experimental.loss.linear_distillation`, whose docstrings list the steps of a launch. They use these parts:

- Before a launch: ``validation`` rejects operands that are not accepted. ``shared.sizes`` defines a tiling, and
  ``shared.launch`` the operands of a kernel and the gradients that it returns. The ``host`` folders choose tilings.
- Operands, in both directions: ``shared.operands`` loads matrices and vectors, ``shared.staging`` rounds operands of
  another type, ``shared.blocks`` splits positions and classes into blocks and has the device loop, ``shared.logits``
  multiplies, adds the bias and applies the cap, and ``shared.kept_logits`` keeps logits in HBM.
- Forward: the loss has the loop over positions. It takes the parts of a pass over the classes in this order:
  ``forward.plan`` (positions, and classes that cores share), ``forward.class_schedule`` (a core's blocks of classes),
  ``forward.streams`` (X^T stays, W^T streams past), ``forward.target_logits`` and ``forward.waiting_passes`` (values
  computed from a tile of logits).
- Backward: this package has the loop, and a loss computes the tiles of the gradient. ``backward.one_core`` is the entry
  point.
- ``host``: estimates and choices, bytes of HBM, the layer in float64, and the errors of its products.

A backward goes through these stages:

1. ``backward.plan`` chooses the buffers that fit SBUF besides the blocks, with ``backward.geometry``, which computes
   the memory and instructions of a plan. ``backward.tile_needs`` has the needs of a loss, and ``backward.operand_pair``
   the second model of a distillation.
2. ``backward.position_parts`` splits very many positions into parts, which are processed one after another.
3. ``backward.class_blocks`` has the core's blocks of classes, or ``backward.class_cover`` if a program has no room for
   a second copy of its body. A block of classes and a block of positions are a round (``backward.rounds``).
4. ``backward.parts`` has the parts that all rounds share, with the buffers of ``backward.streams`` in
   ``backward.stream_memory``, or in ``backward.weight_slices`` if W^T streams.
5. ``backward.logit_gradient`` is the first half of a round: logits, tiles from the ``backward.gradient_tile`` of the
   loss, brought into the range of float16 by ``backward.power_of_two``, and their transposes, into a
   ``backward.gradient_block``.
6. ``backward.gradient_products`` is the second half: dX (``backward.input_gradient``), dW
   (``backward.weight_gradient``) and db (``backward.bias_gradient``), one stripe of features after another. At the end
   the cores add up dX.
"""
