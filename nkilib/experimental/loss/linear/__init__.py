# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What losses of an output layer share: operands from hidden states and weights, blocks, streams, products.

The kernels are in :mod:`nkilib.experimental.loss.linear_cross_entropy` and
:mod:`nkilib.experimental.loss.linear_distillation`, whose docstrings have the order of a launch. They take from here:

- Before a launch: ``validation`` refuses operands. ``shared.sizes`` says what a tiling is, ``shared.launch`` what a
  kernel is given and which gradients it returns. Tilings are chosen in the ``host`` folders.
- Operands, both ways: ``shared.operands`` loads matrices and numbers, ``shared.staging`` rounds those of another type,
  ``shared.blocks`` cuts positions and classes and has the loop of the device, ``shared.logits`` multiplies, adds the
  bias and applies the cap, and ``shared.kept_logits`` keeps logits in HBM.
- Forward: a loss has the loop over positions, and takes the parts of a pass over the classes in this order:
  ``forward.plan`` (positions, and classes that cores share), ``forward.class_schedule`` (the blocks of classes of a
  core), ``forward.streams`` (X^T stays, W^T streams by), ``forward.target_logits`` and ``forward.waiting_passes`` (what
  is taken of a tile of logits).
- Backward: it has the loop, and a loss makes the tiles of the gradient: ``backward.one_core`` begins it.
- ``host``: estimates and choices, bytes of HBM, the layer in float64, and the errors of its products.

A backward goes through these stages:

1. ``backward.plan``: the buffers that fit SBUF beside blocks, by ``backward.geometry``, which says what a plan takes.
   ``backward.tile_needs`` are those of a loss, ``backward.operand_pair`` has the second model of a distillation.
2. ``backward.position_parts``: very many positions, one part of them after the other.
3. ``backward.class_blocks``, or ``backward.class_cover`` where a program has no room for a second copy of its body: the
   blocks of classes of a core. A block of classes and one of positions are a round (``backward.rounds``).
4. ``backward.parts``: what all rounds have in common, with the buffers of ``backward.streams`` in
   ``backward.stream_memory``, or in ``backward.weight_slices`` where W^T streams.
5. ``backward.logit_gradient``, the first half of a round: logits, tiles by the ``backward.gradient_tile`` of the loss,
   in the range of float16 by ``backward.power_of_two``, and their transposes, into a ``backward.gradient_block``.
6. ``backward.gradient_products``, the second half: dX (``backward.input_gradient``), dW and db
   (``backward.weight_gradient``), a stripe of features after the other. At the end the cores add up dX.
"""
