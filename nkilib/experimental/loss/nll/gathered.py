# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients of one core that gathers and scatters only the elements at the targets.

:func:`forward_of_core` and :func:`backward_of_core` are the loops over an input [N, C * D]: N rows, C classes, D places
of a row. :class:`Results`, :class:`Sums`, :func:`weigh` and :func:`store_sums` are also used by :mod:`.few_classes`.

The gradient is 0 except for one element per position. A core first stores zeros over a whole block of rows, then
scatters the elements at the targets into the block.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.cores import PartialSums
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.tiles import cast, float32_like, selected
from nkilib.experimental.loss.skeletons.elementwise.stream import flat_tiles
from nkilib.experimental.loss.skeletons.indexed import (
    Block,
    ElementFinder,
    IndexedUpstream,
    PositionBatch,
    Shape,
    TargetElements,
    batches_of_block,
    blocks_of,
    number_of_batches,
)
from nkilib.nki import nisa, nl

# Batches whose targets are loaded, and whose elements are gathered, side by side.
_TOGETHER = 16
# Columns of the tile of zeros: runs of 16 KiB in 16 bits, 32 KiB in float32.
_ZERO_COLUMNS = 8192


@dataclass(frozen=True)
class Results:
    """The result tensors of the forward in HBM.

    Attributes:
        loss_hbm: the losses, [N, D] in the type of the input, or their sum or mean, float32 [1].
        total_weight_hbm: the sum of the class weights of all valid positions, float32 [1].
        is_each: whether every loss is stored (reduction ``"none"``).
        is_mean: whether the sum of losses is divided by the total weight (reduction ``"mean"``).
    """

    loss_hbm: nl.NkiTensor
    total_weight_hbm: nl.NkiTensor
    is_each: bool
    is_mean: bool


@dataclass(frozen=True)
class Sums:
    """Partial sums of the weights, and of the losses; ``losses`` is None if every loss is stored."""

    weights: PartialSums
    losses: PartialSums | None


def weigh(dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, weight_sbuf: nl.NkiTensor) -> None:
    """Write -w x to ``dst_sbuf``, with x from ``values_sbuf`` and w from ``weight_sbuf``."""
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf,
        data=values_sbuf,
        op0=nl.multiply,
        operand0=-1.0,
        op1=nl.multiply,
        operand1=weight_sbuf,
    )


def store_sums(sums: Sums, results: Results) -> None:
    """Combine the sums of all cores; store the total weight and, with a reduction, the loss, on the first core.

    Without a valid position the mean is 0 * inf, which is NaN, as in PyTorch.
    """
    is_first = nl.program_id(0) == 0
    weight_sbuf = sums.weights.total(pipe=0)
    if is_first:
        nisa.dma_copy(dst=results.total_weight_hbm.reshape((1, 1)), src=weight_sbuf)
    if sums.losses is None:
        return
    loss_sbuf = sums.losses.total(pipe=1)
    if results.is_mean:
        inverse_sbuf = float32_like(weight_sbuf)
        nisa.reciprocal(dst=inverse_sbuf, data=weight_sbuf)
        nisa.tensor_tensor(dst=loss_sbuf, data1=loss_sbuf, data2=inverse_sbuf, op=nl.multiply)
    if is_first:
        nisa.dma_copy(dst=results.loss_hbm.reshape((1, 1)), src=loss_sbuf)


def _take(
    elements: TargetElements, values_sbuf: nl.NkiTensor, batch: PositionBatch, results: Results, sums: Sums
) -> None:
    """Compute the losses -w x of a batch from elements x and weights w; store them in HBM or add them to the sums.

    The weights are added to their sum in both cases.
    """
    nisa.tensor_copy(dst=sums.weights.of_part(batch.number, batch.positions), src=elements.weight_sbuf)
    if sums.losses is not None:
        weigh(sums.losses.of_part(batch.number, batch.positions), values_sbuf, elements.weight_sbuf)
        return
    losses_sbuf = nl.ndarray((batch.positions, 1), dtype=results.loss_hbm.dtype, buffer=nl.sbuf)
    weigh(losses_sbuf, values_sbuf, elements.weight_sbuf)
    nisa.dma_copy(dst=batch.of(results.loss_hbm), src=losses_sbuf)


def forward_of_core(input_hbm: nl.NkiTensor, shape: Shape, finder: ElementFinder, results: Results) -> None:
    """Compute the losses of this core's rows of an input [N, C * D], and store ``results``."""
    parts = number_of_batches(shape)
    sums = Sums(PartialSums.make(parts), None if results.is_each else PartialSums.make(parts))
    own = blocks_of(shape)[nl.program_id(0) :: nl.num_programs()]
    batches = [batch for block in own for batch in batches_of_block(shape, block)]
    for start in range(0, len(batches), _TOGETHER):
        group = batches[start : start + _TOGETHER]
        targets = finder.find(group)
        gathered = [
            elements.gathered(batch.block.of(input_hbm)) for batch, elements in zip(group, targets, strict=True)
        ]
        for batch, elements, values_sbuf in zip(group, targets, gathered, strict=True):
            _take(elements, elements.counted(values_sbuf), batch, results, sums)
    store_sums(sums, results)


def _store_zeros(block_hbm: nl.NkiTensor, zeros_sbuf: nl.NkiTensor) -> list[nisa.NkiInstruction]:
    return [
        nisa.dma_copy(dst=tile.of(block_hbm), src=zeros_sbuf[0 : tile.rows, 0 : tile.columns])
        for tile in flat_tiles(block_hbm.shape[0], zeros_sbuf.shape[1])
    ]


def _gradients(elements: TargetElements, grad_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """Return the gradient at each target of a batch, [positions, 1] in type ``dtype``; 0 for an ignored target."""
    float32_sbuf = nl.ndarray(grad_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    weigh(float32_sbuf, grad_sbuf, elements.weight_sbuf)
    return cast(selected(float32_sbuf, elements.counts_sbuf), dtype)


def _scatter_block(
    grad_input_hbm: nl.NkiTensor,
    shape: Shape,
    finder: ElementFinder,
    upstream: IndexedUpstream,
    uniform_sbuf: nl.NkiTensor | None,
    block: Block,
    stores: list[nisa.NkiInstruction],
) -> None:
    block_hbm = block.of(grad_input_hbm)
    batches = batches_of_block(shape, block)
    for batch, elements in zip(batches, finder.find(batches), strict=True):
        gradient_sbuf = _gradients(elements, upstream.of_batch(batch, uniform_sbuf), grad_input_hbm.dtype)
        scatter = nisa.dma_copy(dst=vector_elements(block_hbm, elements.index_sbuf), src=gradient_sbuf)
        for store in stores:
            scatter.depends_on(store, kind=nisa.dependency.runtime)


def backward_of_core(
    grad_input_hbm: nl.NkiTensor, shape: Shape, finder: ElementFinder, upstream: IndexedUpstream
) -> None:
    """Compute and store the gradient of this core's rows in ``grad_input_hbm``, [N, C * D]."""
    blocks = blocks_of(shape)[nl.program_id(0) :: nl.num_programs()]
    if not blocks:
        return
    columns = min(_ZERO_COLUMNS, div_ceil(blocks[0].rows * shape.row_size, PARTITIONS))
    zeros_sbuf = nl.ndarray((PARTITIONS, max(columns, PARTITIONS)), dtype=grad_input_hbm.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sbuf, value=0.0)
    uniform_sbuf = upstream.uniform()
    previous: tuple[Block, list[nisa.NkiInstruction]] | None = None
    for block in blocks:
        stores = _store_zeros(block.of(grad_input_hbm), zeros_sbuf)
        if previous is not None:  # a block later, so that the scatters need not wait for the zeros
            _scatter_block(grad_input_hbm, shape, finder, upstream, uniform_sbuf, *previous)
        previous = block, stores
    if previous is not None:
        _scatter_block(grad_input_hbm, shape, finder, upstream, uniform_sbuf, *previous)
