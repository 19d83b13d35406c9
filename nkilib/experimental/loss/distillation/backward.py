# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward on one core: both logits are read once, and the student's gradient is written once."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.experimental.loss.distillation.coefficients import Coefficients, coefficients_of, loaded_totals
from nkilib.experimental.loss.distillation.host.tiling import PIECE_COLUMNS
from nkilib.experimental.loss.distillation.mixture_backward import MixtureBackward
from nkilib.experimental.loss.distillation.options import Launch
from nkilib.experimental.loss.distillation.pair import Buffers, PairChunk, PairStream, Piece
from nkilib.experimental.loss.distillation.rows import Vectors
from nkilib.experimental.loss.distillation.totals import Totals
from nkilib.nki import nisa, nl


def backward_of_core(launch: Launch, saved: Vectors, grad_loss_hbm: nl.NkiTensor, grad_hbm: nl.NkiTensor) -> None:
    """Compute and store the gradient of this core's positions."""
    batches = launch.batches()
    if not batches:
        return
    if launch.is_mixed:
        MixtureBackward.make(launch, batches, saved, grad_loss_hbm).run(grad_hbm)
    else:
        _Backward.make(launch, batches, saved, grad_loss_hbm).run(grad_hbm)


@dataclass(frozen=True)
class _Backward:
    """The state that all rows of the backward of a Kullback-Leibler divergence share."""

    launch: Launch
    batches: list[Batch]
    buffers: Buffers
    totals: Totals
    coefficients: Coefficients

    @classmethod
    def make(cls, launch: Launch, batches: list[Batch], saved: Vectors, grad_loss_hbm: nl.NkiTensor) -> _Backward:
        buffers = Buffers.make(launch, 1, {"difference": 2, "student": 2}, PIECE_COLUMNS)
        totals = loaded_totals(launch, batches, saved)
        coefficients = coefficients_of(launch, batches, totals, saved.moment_hbm, grad_loss_hbm)
        return cls(launch, batches, buffers, totals, coefficients)

    def run(self, grad_hbm: nl.NkiTensor) -> None:
        """Process all chunks."""
        has_differences = [self.launch.options.beta > 0.0] * len(self.batches)
        stream = PairStream.make(self.launch, self.batches, self.buffers, has_differences)
        take = self._reverse if self.launch.is_reverse else self._forward
        for number, batch in enumerate(self.batches):
            totals, rows = self.totals.of_batches(number, number + 1, batch.rows), batch.rows
            of_batch = self.coefficients.of_batch(number, rows)
            for load in range(number * stream.num_chunks, (number + 1) * stream.num_chunks):
                pair = stream.taken(load)
                take(pair, totals, of_batch)
                nisa.dma_copy(dst=pair.chunk.of(grad_hbm), src=pair.student_sbuf)

    def _forward(self, pair: PairChunk[Batch], totals: Totals, of_batch: Coefficients) -> None:
        """Compute (e_t * ratio - e_s) * factor for KL(teacher || student).

        Equal distributions cancel in float32, before anything is rounded.

        Vector has two passes and is the busier engine. So Scalar multiplies by the factor in the first piece of every
        second chunk of a row, once it has the exponentials of the next piece.
        """
        student_sbuf = self.buffers.tile("student", pair.chunk.load, pair.student_sbuf)
        pieces = self.buffers.pieces(pair.chunk.load, pair.student_sbuf)
        unscaled: Piece | None = None
        for piece in pieces:
            totals.student.take(piece.of(student_sbuf), piece.of(pair.student_sbuf), 0)
            totals.teacher.take(piece.tile_psum, piece.of(pair.teacher_sbuf), 0)
            if unscaled is not None:
                _scale_by_scalar(pair, unscaled, of_batch)
                unscaled = None
            nisa.scalar_tensor_tensor(
                dst=piece.tile_psum,
                data=piece.tile_psum,
                op0=nl.multiply,
                operand0=of_batch.ratio_sbuf,
                op1=nl.subtract,
                operand1=piece.of(student_sbuf),
            )
            if pair.chunk.number % 2 == 1 and piece.number == 0 and len(pieces) > 1:
                unscaled = piece
            else:
                _scale(piece.of(pair.student_sbuf), piece.tile_psum, of_batch.factor_sbuf)

    def _reverse(self, pair: PairChunk[Batch], totals: Totals, of_batch: Coefficients) -> None:
        """Compute (d - center) * e_s * factor for KL(student || teacher), with d = student - teacher.

        Scalar multiplies by the factor. It has one exponential to compute, and takes the exponentials of a piece before
        it multiplies the previous piece, which Vector processes meanwhile: otherwise each would wait for the other.
        """
        unscaled: Piece | None = None
        for piece in self.buffers.pieces(pair.chunk.load, pair.student_sbuf):
            totals.student.take(piece.tile_psum, piece.of(pair.student_sbuf), 0)
            if unscaled is not None:
                _scale_by_scalar(pair, unscaled, of_batch)
            nisa.scalar_tensor_tensor(
                dst=piece.tile_psum,
                data=piece.of(pair.difference),
                op0=nl.subtract,
                operand0=of_batch.center_sbuf,
                op1=nl.multiply,
                operand1=piece.tile_psum,
            )
            unscaled = piece
        if unscaled is not None:
            _scale_by_scalar(pair, unscaled, of_batch)


def _scale(dst: nl.NkiTensor, data: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
    """Write the gradient, ``data`` times the factor of its row, over the student's logits; it is rounded once."""
    nisa.tensor_scalar(dst=dst, data=data, op0=nl.multiply, operand0=factor_sbuf)


def _scale_by_scalar(pair: PairChunk[Batch], piece: Piece, of_batch: Coefficients) -> None:
    """Do the same as ``_scale``, on Scalar."""
    nisa.activation(dst=piece.of(pair.student_sbuf), op=nl.copy, data=piece.tile_psum, scale=of_batch.factor_sbuf)
