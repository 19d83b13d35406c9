# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of a core's rows: made and stored chunk by chunk, and the element at the target over it.

The derivative by x_j is p relu(x_j - x_t + margin)^(p - 1); that by x_t is minus the sum of the others. It is scattered
when the chunks of its row are stored, by the core that has stored them.
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
    """The gradient [N, C] of the rows of this core."""
    blocks = launch.blocks()
    if blocks:
        _Backward.make(launch, blocks, upstream, grad_input_hbm).run(blocks)


@dataclass(frozen=True)
class _Begun:
    """A block whose gradient is being made: float32 tiles [rows, 1].

    Attributes:
        block: which.
        thresholds: of its rows.
        least_sbuf: what elements of positive terms are above.
        factor_sbuf: of derivatives.
        parts: sums of the derivatives of chunks.
        own_sbuf: what the target's own term adds to them.
        stores: of its chunks.
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
    """What all blocks have in common.

    Attributes:
        launch: of the kernel.
        stream: of the input.
        scratch: of derivatives but for a factor of the row: 0 and 1 in bfloat16, or float32.
        unused: what Scalar writes when it sums up: not over what Vector is to read.
        upstream: gradients of the losses.
        uniform_sbuf: the one of all; None where they differ.
        grad_input_hbm: [N, C].
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
        """Go through all rows. A block is finished while the next one is worked on: no engine waits for its sums."""
        found = thresholds_of_blocks(self.launch, blocks)
        previous: _Begun | None = None
        for visit, block in enumerate(blocks):
            begun = self._begin(block, next(found))
            for number in range(self.stream.num_chunks):
                begun.stores.append(self._chunk(begun, visit * self.stream.num_chunks + number))
                if number == 0 and previous is not None:
                    self._scatter(previous)
            previous = begun
        if previous is not None:
            self._scatter(previous)

    def _begin(self, block: RowBlock, thresholds: Thresholds) -> _Begun:
        """With the derivative that the target's own term would have."""
        own_sbuf, derivative_sbuf = float32_like(thresholds.value_sbuf), float32_like(thresholds.value_sbuf)
        parts = RowSums.make(block.batch.rows, self.stream.num_chunks)
        factor_sbuf = self._factor(block, thresholds)
        begun = _Begun(block, thresholds, thresholds.least(), factor_sbuf, parts, own_sbuf, [])
        self._derivative(derivative_sbuf, derivative_sbuf, thresholds.value_sbuf, begun, own_sbuf)
        return begun

    def _chunk(self, begun: _Begun, load: int) -> nisa.NkiInstruction:
        """The gradient of a chunk, in the place of the input."""
        chunk, tile_sbuf = self.stream.chunk(load), self.stream.loaded(load)
        derivative_sbuf, unused_sbuf = (ring.tile(load, tile_sbuf) for ring in (self.scratch, self.unused))
        self._derivative(
            derivative_sbuf, unused_sbuf, tile_sbuf, begun, begun.parts.part(chunk.number, chunk.batch.rows)
        )
        nisa.tensor_scalar(dst=tile_sbuf, data=derivative_sbuf, op0=nl.multiply, operand0=begun.factor_sbuf)
        return nisa.dma_copy(dst=chunk.of(self.grad_input_hbm), src=tile_sbuf)

    def _derivative(
        self,
        dst_sbuf: nl.NkiTensor,
        unused_sbuf: nl.NkiTensor,
        input_sbuf: nl.NkiTensor,
        begun: _Begun,
        sum_sbuf: nl.NkiTensor,
    ) -> None:
        """Whether a term is positive, or the term; and the sum of each row, exact of the former."""
        if self.launch.options.p == 2:
            hinges(dst_sbuf, input_sbuf, begun.thresholds.bias_sbuf, sum_sbuf)
            return
        nisa.tensor_scalar(dst=dst_sbuf, data=input_sbuf, op0=nl.greater, operand0=begun.least_sbuf)
        nisa.activation(
            dst=unused_sbuf,
            op=nl.copy,
            data=dst_sbuf,
            reduce_op=nl.add,
            reduce_res=sum_sbuf,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def _factor(self, block: RowBlock, thresholds: Thresholds) -> nl.NkiTensor:
        """Of the derivatives of each row, float32 [rows, 1]: upstream gradient, weight, and that of the reduction."""
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

    def _scatter(self, begun: _Begun) -> None:
        """Minus the sum of the derivatives of a row, to its target, after the stores of its chunks."""
        sum_sbuf = sum_without(begun.parts, begun.own_sbuf)
        gradient_sbuf = float32_like(sum_sbuf)
        nisa.scalar_tensor_tensor(
            dst=gradient_sbuf,
            data=sum_sbuf,
            op0=nl.multiply,
            operand0=-1.0,
            op1=nl.multiply,
            operand1=begun.factor_sbuf,
        )
        rows_hbm = begun.block.positions.block.of(self.grad_input_hbm)
        scatter = nisa.dma_copy(
            dst=vector_elements(rows_hbm, begun.thresholds.elements.index_sbuf),
            src=cast(gradient_sbuf, self.grad_input_hbm.dtype),
        )
        for store in begun.stores:
            scatter.depends_on(store, kind=nisa.dependency.runtime)
