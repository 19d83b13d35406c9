"""The backward on one core: both logits are read once, and the student's gradient is written once."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.tiles import float32_like, product, scaled, selected
from nkilib.experimental.loss.distillation.forward import counting
from nkilib.experimental.loss.distillation.host.tiling import PIECE_COLUMNS
from nkilib.experimental.loss.distillation.options import Launch
from nkilib.experimental.loss.distillation.pair import Buffers, PairChunk, PairStream, Piece
from nkilib.experimental.loss.distillation.rows import Exponentials, Vectors, column, loaded_rows
from nkilib.experimental.loss.distillation.totals import Totals, center
from nkilib.experimental.loss.distillation.visits import Visits
from nkilib.nki import nisa, nl


def backward_of_core(launch: Launch, saved: Vectors, grad_loss_hbm: nl.NkiTensor, grad_hbm: nl.NkiTensor) -> None:
    """The gradient of the positions of this core."""
    batches = launch.batches()
    if batches:
        _Backward.make(launch, batches, saved, grad_loss_hbm).run(grad_hbm)


@dataclass(frozen=True)
class _Coefficients:
    """Of rows, float32 [128, batches]; the gradient of an element is

    - (e_s - e_t * ratio) * factor for KL(teacher || student),
    - (d - center) * e_s * factor for KL(student || teacher),
    - (L + center) * e_s * factor for Jensen-Shannon.

    Attributes:
        factor_sbuf: 0 for positions that do not count.
        ratio_sbuf: S of the student over S of the teacher.
        center_sbuf: T * (r's normalization), for differences of logits; with the divergence for the second formula.
        moment_sbuf: KL(student || mixture).
    """

    factor_sbuf: nl.NkiTensor
    ratio_sbuf: nl.NkiTensor
    center_sbuf: nl.NkiTensor
    moment_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _Backward:
    """What all rows have in common."""

    launch: Launch
    batches: list[Batch]
    buffers: Buffers
    visits: Visits
    totals: Totals
    coefficients: _Coefficients

    @classmethod
    def make(cls, launch: Launch, batches: list[Batch], saved: Vectors, grad_loss_hbm: nl.NkiTensor) -> _Backward:
        scratch = {"difference": 2, "student": 2, "other": 2} if launch.is_mixed else {"difference": 2, "student": 2}
        buffers = Buffers.make(launch, 1, scratch, PIECE_COLUMNS)
        student = _loaded_side(saved.student_shift_hbm, saved.student_sum_hbm, batches, launch.scale)
        teacher = _loaded_side(saved.teacher_shift_hbm, saved.teacher_sum_hbm, batches, launch.scale)
        totals = Totals(student, teacher, student.sums_sbuf, student.sums_sbuf)
        coefficients = _coefficients(launch, batches, totals, saved.moment_hbm, grad_loss_hbm)
        return cls(launch, batches, buffers, Visits.make(launch, buffers, 1), totals, coefficients)

    def run(self, grad_hbm: nl.NkiTensor) -> None:
        """Go through all chunks."""
        has_differences = [self.launch.options.beta > 0.0] * len(self.batches)
        stream = PairStream.make(self.launch, self.batches, self.buffers, has_differences)
        take = self._mixed if self.launch.is_mixed else self._reverse if self.launch.is_reverse else self._forward
        for number, batch in enumerate(self.batches):
            totals, rows = self.totals.of_batches(number, number + 1, batch.rows), batch.rows
            of_batch = _Coefficients(
                *(
                    column(tile_sbuf, number, rows)
                    for tile_sbuf in (
                        self.coefficients.factor_sbuf,
                        self.coefficients.ratio_sbuf,
                        self.coefficients.center_sbuf,
                        self.coefficients.moment_sbuf,
                    )
                )
            )
            for load in range(number * stream.num_chunks, (number + 1) * stream.num_chunks):
                pair = stream.taken(load)
                take(pair, totals, of_batch)
                nisa.dma_copy(dst=pair.chunk.of(grad_hbm), src=pair.student_sbuf)

    def _forward(self, pair: PairChunk[Batch], totals: Totals, of_batch: _Coefficients) -> None:
        """(e_s - e_t * ratio) * factor: alike distributions cancel in float32, before anything is rounded.

        Vector has two passes and is the busier engine: Scalar multiplies the factor in the first piece of every second
        chunk of a row, once it has the exponentials of the next piece.
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

    def _reverse(self, pair: PairChunk[Batch], totals: Totals, of_batch: _Coefficients) -> None:
        """(d - center) * e_s * factor; Scalar, which has one exponential to do, multiplies the factor.

        Scalar takes the exponentials of a piece before it multiplies those of the piece before, which Vector has
        meanwhile: else each would wait for the other.
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

    def _mixed(self, pair: PairChunk[Batch], totals: Totals, of_batch: _Coefficients) -> None:
        """(L + center) * e_s * factor."""
        load = pair.chunk.load
        student_sbuf = self.buffers.tile("student", load, pair.student_sbuf)
        power_sbuf = self.buffers.tile("other", load, pair.student_sbuf)
        self.visits.ratios(pair.difference, power_sbuf, of_batch.center_sbuf)
        totals.student.take(student_sbuf, pair.student_sbuf, 0)
        for piece in self.buffers.pieces(load, pair.student_sbuf):
            self.visits.logs(piece.tile_psum, piece.of(power_sbuf))
            nisa.scalar_tensor_tensor(
                dst=piece.tile_psum,
                data=piece.tile_psum,
                op0=nl.add,
                operand0=of_batch.moment_sbuf,
                op1=nl.multiply,
                operand1=piece.of(student_sbuf),
            )
            _scale(piece.of(pair.student_sbuf), piece.tile_psum, of_batch.factor_sbuf)


def _scale(dst: nl.NkiTensor, data: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
    """The gradient where the student's logits stand, rounded once."""
    nisa.tensor_scalar(dst=dst, data=data, op0=nl.multiply, operand0=factor_sbuf)


def _scale_by_scalar(pair: PairChunk[Batch], piece: Piece, of_batch: _Coefficients) -> None:
    """As ``_scale``, on Scalar."""
    nisa.activation(dst=piece.of(pair.student_sbuf), op=nl.copy, data=piece.tile_psum, scale=of_batch.factor_sbuf)


def _loaded_side(shift_hbm: nl.NkiTensor, sum_hbm: nl.NkiTensor, batches: list[Batch], scale: float) -> Exponentials:
    side = Exponentials.make(len(batches), scale)
    sums_sbuf = loaded_rows(sum_hbm, batches)
    # Rows that do not exist have a sum of 0, and are divided by it: at least what any row has.
    nisa.tensor_scalar(dst=side.sums_sbuf, data=sums_sbuf, op0=nl.maximum, operand0=0.25)
    nisa.tensor_copy(dst=side.neg_shift_sbuf, src=loaded_rows(shift_hbm, batches))
    for batch in range(len(batches)):
        side.set_bias(batch, side.neg_shift_sbuf.shape[0])
    return side


def _coefficients(
    launch: Launch, batches: list[Batch], totals: Totals, moment_hbm: nl.NkiTensor, grad_loss_hbm: nl.NkiTensor
) -> _Coefficients:
    beta, temperature = launch.options.beta, launch.options.temperature
    moment_sbuf, grad_sbuf = loaded_rows(moment_hbm, batches), loaded_rows(grad_loss_hbm, batches)
    if launch.labels_hbm is not None:
        labels_sbuf = loaded_rows(launch.labels_hbm, batches, nl.int32)
        grad_sbuf = selected(grad_sbuf, counting(labels_sbuf, launch.options.ignore_index))
    inverse_sbuf = float32_like(grad_sbuf)
    nisa.reciprocal(dst=inverse_sbuf, data=totals.student.sums_sbuf)
    factor_sbuf = product(grad_sbuf, inverse_sbuf)
    nisa.reciprocal(dst=inverse_sbuf, data=totals.teacher.sums_sbuf)
    ratio_sbuf = product(totals.student.sums_sbuf, inverse_sbuf)
    if launch.is_reverse:
        center_sbuf = center(totals.student, totals.teacher, temperature)
        nisa.scalar_tensor_tensor(
            dst=center_sbuf, data=moment_sbuf, op0=nl.multiply, operand0=temperature, op1=nl.add, operand1=center_sbuf
        )
        weight = launch.scale * launch.scale
    else:
        center_sbuf = center(totals.teacher, totals.student, temperature)
        weight = -(1.0 - beta) * launch.scale
    return _Coefficients(scaled(factor_sbuf, weight), ratio_sbuf, center_sbuf, moment_sbuf)
