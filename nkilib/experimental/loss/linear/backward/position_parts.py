# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of very many positions, one part of them after another, in a device loop.

Per-position values take SBUF, and each tile of positions takes instructions. So a launch of very many positions splits
them into parts, and repeats the backward for each part. dW and db are added up in float32 over the parts, and dW is
rounded once, at the end. dX of a part is the dX of a launch of these positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nkilib.core.cores import synchronise
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.blocks import Block, Span, cut, shares_of_cores
from nkilib.experimental.loss.linear.shared.launch import Gradients, LinearOperands
from nkilib.experimental.loss.linear.shared.sizes import PositionParts
from nkilib.nki import nisa, nl

# Zeros of a partition that sums are cleared with.
_ZEROS = 2048

WriteGradients = Callable[[Block, Gradients], None]


def write_gradients_of_parts(
    operands: LinearOperands, gradients: Gradients, parts: PositionParts, write: WriteGradients
) -> None:
    """Write the gradients of all positions.

    Args:
        operands, gradients: the operands and gradients of all positions.
        parts: the parts of the positions, several.
        write: a function that writes the gradients of a part. It must add dW to the sum in the gradients.
    """
    sums = _Sums.make(operands, gradients, parts.size)
    sums.clear()

    def run(block: Block) -> None:
        of_part = sums.of_part(block)
        write(block, of_part)
        sums.finish_part(block, of_part)

    end = parts.whole * parts.size
    nl.fori_loop(0, end, lambda first: run(Block(first, parts.size)), parts.size)
    if parts.rest > 0:
        run(Block(end, parts.rest))
    sums.finish()


@dataclass(frozen=True)
class _Sums:
    """The gradients, and the tensors that they are summed in.

    Attributes:
        gradients: the gradients of the launch.
        share: the classes of this core.
        has_classes_first: dW is [V, D].
        weight_sum_hbm: the sum of dW, float32: a tensor of its own, dW itself if it is float32, or the caller's sum;
            None if dW is not wanted.
        part_bias_hbm: db of a part, float32 [V]; None if db is not wanted.
        part_input_hbm: dX of a part, which is then moved to its place, because transfers that add take no address that
            is a loop variable. None if dX is not wanted.
    """

    gradients: Gradients
    share: Span
    has_classes_first: bool
    weight_sum_hbm: nl.NkiTensor | None
    part_bias_hbm: nl.NkiTensor | None
    part_input_hbm: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearOperands, gradients: Gradients, size: int) -> _Sums:
        """Allocate the sums for parts of ``size`` positions."""

        def scratch(name: str, shape: tuple[int, ...], dtype: nl.DType) -> nl.NkiTensor:
            return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name=name)

        weight_hbm, input_hbm, bias_hbm = gradients.weight_hbm, gradients.input_hbm, gradients.bias_hbm
        weight_sum_hbm = weight_hbm
        if weight_hbm is not None and weight_hbm.dtype != nl.float32:
            weight_sum_hbm = scratch("grad_weight_sum_hbm", tuple(weight_hbm.shape), nl.float32)
        part_input_hbm = None
        if input_hbm is not None:
            part_input_hbm = scratch("grad_input_of_part_hbm", (size, launch.num_features), input_hbm.dtype)
        return cls(
            gradients,
            shares_of_cores(launch.vocab_size, nl.num_programs())[nl.program_id(0)],
            launch.has_classes_first,
            weight_sum_hbm,
            None if bias_hbm is None else scratch("grad_bias_of_part_hbm", (launch.vocab_size,), nl.float32),
            part_input_hbm,
        )

    def clear(self) -> None:
        """Store zeros in the sums, except in a sum that the caller has."""
        if self.share.size == 0:
            return
        if self.weight_sum_hbm is not None and not self.gradients.adds_to_weight:
            _clear(self._own(self.weight_sum_hbm))
        if self.gradients.bias_hbm is not None:
            _clear(self.gradients.bias_hbm[self.share.first : self.share.end].expand_dim(0))

    def of_part(self, block: Block) -> Gradients:
        """Return the tensors that a part writes its gradients to."""
        input_hbm = self.part_input_hbm
        if input_hbm is not None and block.size < input_hbm.shape[0]:
            input_hbm = input_hbm[0 : block.size]
        return Gradients(input_hbm, self.weight_sum_hbm, self.part_bias_hbm, self.weight_sum_hbm)

    def finish_part(self, block: Block, of_part: Gradients) -> None:
        """Move dX to its place, half of it by each core, and add up db, each core its own classes."""
        grad_input_hbm, part_input_hbm = self.gradients.input_hbm, of_part.input_hbm
        if grad_input_hbm is not None and part_input_hbm is not None:
            synchronise(part_input_hbm)
            half = div_ceil(block.size, nl.num_programs())
            first = nl.program_id(0) * half
            rows = min(half, block.size - first)
            if rows > 0:
                nisa.dma_copy(dst=block.part(first, rows).of(grad_input_hbm), src=part_input_hbm[first : first + rows])
            synchronise(part_input_hbm)
        bias_hbm, part_bias_hbm = self.gradients.bias_hbm, of_part.bias_hbm
        if bias_hbm is not None and part_bias_hbm is not None and self.share.size > 0:
            classes = slice(self.share.first, self.share.end)
            sum_hbm = bias_hbm[classes]
            nisa.dma_compute(dst=sum_hbm, srcs=[sum_hbm, part_bias_hbm[classes]], reduce_op=nl.add)

    def finish(self) -> None:
        """Round the sum of dW into dW."""
        weight_hbm, sum_hbm = self.gradients.weight_hbm, self.weight_sum_hbm
        if weight_hbm is None or sum_hbm is None or weight_hbm.dtype == nl.float32 or self.share.size == 0:
            return
        nisa.dma_copy(dst=self._own(weight_hbm), src=self._own(sum_hbm))

    def _own(self, weight_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of this core's classes."""
        return weight_hbm.slice(0 if self.has_classes_first else 1, self.share.first, self.share.end)


def _clear(sum_hbm: nl.NkiTensor) -> None:
    """Store zeros in a tensor, float32 [rows, columns]."""
    zeros_sbuf = nl.ndarray((PARTITIONS, _ZEROS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sbuf, value=0.0)
    rows, columns = sum_hbm.shape
    whole = rows // PARTITIONS * PARTITIONS
    for span in cut(columns, _ZEROS):
        place_hbm = sum_hbm.slice(1, span.first, span.end)
        if whole > 0:
            tiles_hbm = place_hbm.slice(0, 0, whole).reshape_dim(0, (whole // PARTITIONS, PARTITIONS))
            source_sbuf = zeros_sbuf[:, 0 : span.size].expand_dim(1).broadcast(1, whole // PARTITIONS)
            nisa.dma_copy(dst=tiles_hbm.permute((1, 0, 2)), src=source_sbuf)
        if whole < rows:
            nisa.dma_copy(dst=place_hbm.slice(0, whole, rows), src=zeros_sbuf[0 : rows - whole, 0 : span.size])
