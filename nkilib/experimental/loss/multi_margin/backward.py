# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the rows of one core, computed and stored chunk by chunk; then the element at each target is
written over it.

For input x, target t and exponent p, the derivative with respect to x_j is p
relu(x_j - x_t + margin)^(p - 1), and with respect to x_t it is minus the sum of the others. The core that
has stored the chunks of a row then scatters this element.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.row_sums import RowSums
from nkilib.core.rows.stream import Stream
from nkilib.core.rows.tiles import cast, float32_like
from nkilib.experimental.loss.multi_margin.host.tiling import BUFFERS
from nkilib.experimental.loss.multi_margin.launch import Launch, RowBlock
from nkilib.experimental.loss.multi_margin.terms import Scratch, hinges, sum_without
from nkilib.experimental.loss.multi_margin.thresholds import Thresholds, thresholds_of_blocks
from nkilib.experimental.loss.skeletons.indexed.upstream import Upstream
from nkilib.nki import nisa, nl


def backward_of_core(launch: Launch, upstream: Upstream, grad_input_hbm: nl.NkiTensor) -> None:
    """Write the gradient [N, C] of the rows of this core."""
    blocks = launch.blocks()
    if blocks:
        _Backward.make(launch, blocks, upstream, grad_input_hbm).run(blocks)


@dataclass(frozen=True)
class _PendingBlock:
    """A block whose gradient is being computed: float32 tiles [rows, 1].

    Attributes:
        block: the rows.
        thresholds: the thresholds of the rows.
        least_sbuf: the number above which elements have positive terms.
        factor_sbuf: the factor by which the derivatives of each row are multiplied.
        parts: the sum of the derivatives of each chunk.
        own_sbuf: the part that the target's own term contributes to these sums, and that is subtracted again.
        stores: the DMA instructions that store the chunks.
    """

    block: RowBlock
    thresholds: Thresholds
    least_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor
    parts: RowSums
    own_sbuf: nl.NkiTensor
    stores: list[nisa.NkiInstruction]


@dataclass(frozen=True)
class _Backward:
    """The operands and buffers that all blocks share.

    Attributes:
        launch: the launch of the kernel.
        stream: the stream of the input.
        scratch: tiles of derivatives without the factor of the row: 0 or 1 in bfloat16 for p = 1, float32 for
            p = 2.
        unused: tiles for the copy that Scalar writes while it sums up and that is not used, so that it
            overwrites nothing that Vector reads.
        upstream: the upstream gradients of the losses.
        uniform_sbuf: the upstream gradient of all losses; None if they differ.
        grad_input_hbm: the gradient, [N, C].
    """

    launch: Launch
    stream: Stream[Batch]
    scratch: Scratch
    unused: Scratch
    upstream: Upstream
    uniform_sbuf: nl.NkiTensor | None
    grad_input_hbm: nl.NkiTensor

    @classmethod
    def make(
        cls, launch: Launch, blocks: list[RowBlock], upstream: Upstream, grad_input_hbm: nl.NkiTensor
    ) -> _Backward:
        buffers = ring_of(BUFFERS, launch.tiling.chunk_size, launch.input_hbm.dtype)
        stream = Stream.make(launch.input_hbm, [block.batch for block in blocks], buffers, is_first_halved=True)
        scratch = Scratch.make(launch, nl.bfloat16 if launch.options.p == 1 else nl.float32)
        unused = Scratch.make(launch, nl.bfloat16)
        return cls(launch, stream, scratch, unused, upstream, upstream.uniform(), grad_input_hbm)

    def run(self, blocks: list[RowBlock]) -> None:
        """Process all rows. The sums of a block are finished during the next block, so that no engine waits
        for them.
        """
        all_thresholds = thresholds_of_blocks(self.launch, blocks)
        previous: _PendingBlock | None = None
        for visit, block in enumerate(blocks):
            pending = self._begin(block, next(all_thresholds))
            for number in range(self.stream.num_chunks):
                pending.stores.append(self._chunk(pending, visit * self.stream.num_chunks + number))
                if number == 0 and previous is not None:
                    self._scatter(previous)
            previous = pending
        if previous is not None:
            self._scatter(previous)

    def _begin(self, block: RowBlock, thresholds: Thresholds) -> _PendingBlock:
        """Begin a block, with the derivative of the target's own term, which the sums over chunks will include."""
        own_sbuf, derivative_sbuf = float32_like(thresholds.value_sbuf), float32_like(thresholds.value_sbuf)
        parts = RowSums.make(block.batch.rows, self.stream.num_chunks)
        factor_sbuf = self._factor(block, thresholds)
        pending = _PendingBlock(block, thresholds, thresholds.least(), factor_sbuf, parts, own_sbuf, [])
        self._derivative(derivative_sbuf, derivative_sbuf, thresholds.value_sbuf, pending, own_sbuf)
        return pending

    def _chunk(self, pending: _PendingBlock, load: int) -> nisa.NkiInstruction:
        """Compute the gradient of a chunk in place of the input, and store it."""
        chunk, tile_sbuf = self.stream.chunk(load), self.stream.loaded(load)
        derivative_sbuf, unused_sbuf = (ring.tile(load, tile_sbuf) for ring in (self.scratch, self.unused))
        self._derivative(
            derivative_sbuf, unused_sbuf, tile_sbuf, pending, pending.parts.part(chunk.number, chunk.batch.rows)
        )
        nisa.tensor_scalar(dst=tile_sbuf, data=derivative_sbuf, op0=nl.multiply, operand0=pending.factor_sbuf)
        return nisa.dma_copy(dst=chunk.of(self.grad_input_hbm), src=tile_sbuf)

    def _derivative(
        self,
        dst_sbuf: nl.NkiTensor,
        unused_sbuf: nl.NkiTensor,
        input_sbuf: nl.NkiTensor,
        pending: _PendingBlock,
        sum_sbuf: nl.NkiTensor,
    ) -> None:
        """Compute the derivatives of a tile without the factor of each row, and the sum over each row.

        For p = 1 a derivative is 1 where the term is positive and else 0, so that the sum is exact; for p = 2 it is
        the hinge.
        """
        if self.launch.options.p == 2:
            hinges(dst_sbuf, input_sbuf, pending.thresholds.bias_sbuf, sum_sbuf)
            return
        nisa.tensor_scalar(dst=dst_sbuf, data=input_sbuf, op0=nl.greater, operand0=pending.least_sbuf)
        nisa.activation(
            dst=unused_sbuf,
            op=nl.copy,
            data=dst_sbuf,
            reduce_op=nl.add,
            reduce_res=sum_sbuf,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def _factor(self, block: RowBlock, thresholds: Thresholds) -> nl.NkiTensor:
        """Return the factor of the derivatives of each row, float32 [rows, 1].

        It is the product of p, the upstream gradient, the weight and the factor of the reduction.
        """
        factor_sbuf = float32_like(thresholds.value_sbuf)
        nisa.scalar_tensor_tensor(
            dst=factor_sbuf,
            data=self.upstream.of_batch(block.positions, self.uniform_sbuf),
            op0=nl.multiply,
            operand0=self.launch.options.p * self.launch.factor,
            op1=nl.multiply,
            operand1=thresholds.elements.weight_sbuf,
        )
        return factor_sbuf

    def _scatter(self, pending: _PendingBlock) -> None:
        """Write minus the sum of a row's derivatives to the element at its target, after the stores of the row's
        chunks.
        """
        sum_sbuf = sum_without(pending.parts, pending.own_sbuf)
        gradient_sbuf = float32_like(sum_sbuf)
        nisa.scalar_tensor_tensor(
            dst=gradient_sbuf,
            data=sum_sbuf,
            op0=nl.multiply,
            operand0=-1.0,
            op1=nl.multiply,
            operand1=pending.factor_sbuf,
        )
        rows_hbm = pending.block.positions.block.of(self.grad_input_hbm)
        scatter = nisa.dma_copy(
            dst=vector_elements(rows_hbm, pending.thresholds.elements.index_sbuf),
            src=cast(gradient_sbuf, self.grad_input_hbm.dtype),
        )
        for store in pending.stores:
            scatter.depends_on(store, kind=nisa.dependency.runtime)
