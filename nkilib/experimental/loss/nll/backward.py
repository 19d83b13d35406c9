# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the rows of one core: zeros, over which one element for each position is written.

The zeros of a block of rows are stored from one tile, in long runs; then the elements are scattered. The core that
stores the zeros of a row also scatters into that row, and the scatter waits for the stores.
"""

from __future__ import annotations

from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.tiles import cast, selected
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.elementwise.tiles import flat_tiles
from nkilib.experimental.loss.skeletons.indexed.elements import ElementFinder, TargetElements
from nkilib.experimental.loss.skeletons.indexed.positions import (
    PARTITIONS,
    Block,
    Shape,
    batches_of_block,
    blocks_of,
)
from nkilib.experimental.loss.skeletons.indexed.upstream import Upstream
from nkilib.nki import nisa, nl

# Columns of the tile of zeros: runs of 16 KiB in 16 bits, 32 KiB in float32.
_ZERO_COLUMNS = 8192


def backward_of_core(grad_input_hbm: nl.NkiTensor, shape: Shape, finder: ElementFinder, upstream: Upstream) -> None:
    """Write the gradient [N, C * D] of the rows of this core."""
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


def _store_zeros(block_hbm: nl.NkiTensor, zeros_sbuf: nl.NkiTensor) -> list[nisa.NkiInstruction]:
    return [
        nisa.dma_copy(dst=tile.of(block_hbm), src=zeros_sbuf[0 : tile.rows, 0 : tile.columns])
        for tile in flat_tiles(block_hbm.shape[0], zeros_sbuf.shape[1])
    ]


def _scatter_block(
    grad_input_hbm: nl.NkiTensor,
    shape: Shape,
    finder: ElementFinder,
    upstream: Upstream,
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


def _gradients(elements: TargetElements, grad_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """Return the gradients at the targets of a batch, -w times the upstream gradient, with the weight w of the
    target's class.

    An ignored target gets 0, whatever its upstream gradient is.
    """
    float32_sbuf = nl.ndarray(grad_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=float32_sbuf,
        data=grad_sbuf,
        op0=nl.multiply,
        operand0=-1.0,
        op1=nl.multiply,
        operand1=elements.weight_sbuf,
    )
    return cast(selected(float32_sbuf, elements.counts_sbuf), dtype)
