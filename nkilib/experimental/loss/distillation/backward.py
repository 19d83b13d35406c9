# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of distillation on one core: both logits are read once, and the student's gradient is written once.

T is the temperature, *rows* are the positions, a *chunk* is some columns of a batch of rows, and a *piece* is the part
of a chunk that one PSUM tile holds. The forward subtracts a *shift* near the maximum from the logits of a row; e_s and
e_t are the exponentials of the shifted logits, divided by T, of student and teacher, and d is the student's logit minus
the teacher's. L is the log of the ratio of the mixture to the student's probability (:mod:`.mixture`).

:func:`backward_of_core` runs the gradient of a Kullback-Leibler divergence in either direction
(:class:`KullbackLeiblerBackward`), or that of Jensen-Shannon (:class:`MixtureBackward`). Both multiply exponentials by
coefficients of the rows, computed from results of the forward (:func:`loaded_coefficients`).
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.tiles import float32_like, load_table, product, selected, with_nan_of_infinite
from nkilib.experimental.loss.distillation.launch import POSITIONS, Launch
from nkilib.experimental.loss.distillation.mixture import Mixture, take_logs
from nkilib.experimental.loss.distillation.pair import (
    Buffers,
    CoreBatch,
    CoreRows,
    Exponentials,
    PairChunk,
    PairStream,
    Piece,
    RowTemperatures,
    Vectors,
    column,
    loaded_rows,
    store,
    valid_mask,
)
from nkilib.experimental.loss.distillation.tiling import PIECE_COLUMNS, gradient_group
from nkilib.experimental.loss.distillation.totals import Totals, center
from nkilib.nki import nisa, nl

# Bits of a float32: its sign and exponent, its fraction, and the bits of 1.
_SIGN_AND_EXPONENT, _FRACTION, _BITS_OF_ONE = -(1 << 23), (1 << 23) - 1, 127 << 23


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of rows, float32 [128, batches].

    The gradient of an element is

    - (e_t * ratio - e_s) * factor for KL(teacher || student),
    - (d - center) * e_s * factor for KL(student || teacher),
    - (L + moment) * e_s * factor for Jensen-Shannon.

    Attributes:
        factor_sbuf: the factor of each row; 0 for ignored positions.
        ratio_sbuf: the student's sum of exponentials over the teacher's.
        center_sbuf: for KL(student || teacher) T * (lse of the student - lse of the teacher + divergence); otherwise T
            * (lse of the teacher - lse of the student). KL(teacher || student) needs neither this nor the moment.
        moment_sbuf: the forward's moment: KL(student || mixture), or the loss.
    """

    factor_sbuf: nl.NkiTensor
    ratio_sbuf: nl.NkiTensor
    center_sbuf: nl.NkiTensor
    moment_sbuf: nl.NkiTensor

    def of_batch(self, number: int, rows: int) -> Coefficients:
        """Return the coefficients of the rows of one batch, [rows, 1] each."""
        tiles = (self.factor_sbuf, self.ratio_sbuf, self.center_sbuf, self.moment_sbuf)
        return Coefficients(*(column(tile_sbuf, number, rows) for tile_sbuf in tiles))


def _exponentials(neg_shift_sbuf: nl.NkiTensor, sums_sbuf: nl.NkiTensor, scale: Scale) -> Exponentials:
    """Return the exponentials of one model from the shifts and sums that the forward has stored, [128, batches]."""
    bias_sbuf = neg_shift_sbuf if scale.is_one else float32_like(neg_shift_sbuf)
    side = Exponentials(scale, neg_shift_sbuf, bias_sbuf, sums_sbuf)
    # Rows that do not exist have a sum of 0, and are divided by it: raise it to the least sum of any row.
    nisa.tensor_scalar(dst=sums_sbuf, data=sums_sbuf, op0=nl.maximum, operand0=0.25)
    for batch in range(neg_shift_sbuf.shape[1]):
        side.set_bias(batch, neg_shift_sbuf.shape[0])
    return side


def loaded_coefficients(
    launch: Launch, batches: list[CoreBatch], saved: Vectors, grad_loss_hbm: nl.NkiTensor
) -> tuple[Totals, Coefficients]:
    """Return the shifts and sums of exponentials of all rows of the core, and their coefficients.

    All values are loaded before anything is computed, so that no load waits for an engine.

    Args:
        launch: the launch of the kernel.
        batches: the batches of the core.
        saved: the results of the forward. The moment of a row is KL(student || mixture), or for a Kullback-Leibler
            divergence the loss.
        grad_loss_hbm: the upstream gradient of each row.
    """
    shifts = [loaded_rows(shift_hbm, batches) for shift_hbm in (saved.student_shift_hbm, saved.teacher_shift_hbm)]
    sums = [loaded_rows(sum_hbm, batches) for sum_hbm in (saved.student_sum_hbm, saved.teacher_sum_hbm)]
    grad_sbuf, has_moment = loaded_rows(grad_loss_hbm, batches), launch.options.beta > 0.0
    moment_sbuf = loaded_rows(saved.moment_hbm, batches) if has_moment else grad_sbuf
    temperatures = RowTemperatures.of(launch, CoreRows(batches), (POSITIONS, len(batches)))
    temperature, scale = temperatures.temperature, temperatures.scale
    student, teacher = (_exponentials(*of_side, scale) for of_side in zip(shifts, sums, strict=True))
    totals = Totals(student, teacher, student.sums_sbuf, student.sums_sbuf, temperature)
    if launch.labels_hbm is not None:
        labels_sbuf = loaded_rows(launch.labels_hbm, batches, nl.int32)
        grad_sbuf = selected(grad_sbuf, valid_mask(labels_sbuf, launch.options.ignore_index))
    inverse_sbuf = float32_like(grad_sbuf)
    nisa.reciprocal(dst=inverse_sbuf, data=student.sums_sbuf)
    factor_sbuf = product(grad_sbuf, inverse_sbuf)
    nisa.reciprocal(dst=inverse_sbuf, data=teacher.sums_sbuf)
    ratio_sbuf = center_sbuf = product(student.sums_sbuf, inverse_sbuf)
    if launch.is_reverse:
        center_sbuf = center(student, teacher, temperature)
        temperature.take_sum(center_sbuf, moment_sbuf, center_sbuf)
        factor_sbuf = scale.squared().times(factor_sbuf)
    else:
        if has_moment:
            center_sbuf = center(teacher, student, temperature)
        factor_sbuf = scale.times(factor_sbuf, -(1.0 - launch.options.beta))
    return totals, Coefficients(factor_sbuf, ratio_sbuf, center_sbuf, moment_sbuf)


def _powers_of(coefficients: Coefficients) -> nl.NkiTensor:
    """Return the power of two of each factor, with its sign; 0 for 0, and NaN for a factor that is not finite."""
    bits_sbuf = nl.ndarray(coefficients.factor_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bits_sbuf, data=coefficients.factor_sbuf.view(nl.int32), op0=nl.bitwise_and, operand0=_SIGN_AND_EXPONENT
    )
    return with_nan_of_infinite(bits_sbuf.view(nl.float32), coefficients.factor_sbuf, nl.float32)


def _fractions_of(factor_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return each factor divided by its power of two: a number from 1 to 2."""
    bits_sbuf = nl.ndarray(factor_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bits_sbuf,
        data=factor_sbuf.view(nl.int32),
        op0=nl.bitwise_and,
        operand0=_FRACTION,
        op1=nl.bitwise_or,
        operand1=_BITS_OF_ONE,
    )
    return bits_sbuf.view(nl.float32)


@dataclass(frozen=True)
class MixtureBackward:
    """The gradient of Jensen-Shannon, of several chunks at a time, so that Scalar changes its activation table less
    often.

    The gradient is (L + moment) * e_s * factor, with the symbols of :class:`Coefficients`. The factor is a signed power
    of two times a number from 1 to 2. The logarithm of that number is added to the exponent of e_s. The multiplication
    by the power of two rounds nothing, so Vector does it in the dtype of the logits.

    Attributes:
        launch: the launch of the kernel.
        batches: the batches of the core.
        buffers: the chunk buffers and scratch memory on chip.
        group: the number of chunks processed at a time.
        student: the exponentials e_s of the student, times the number from 1 to 2.
        bias_sbuf: the bias with which the logs are computed, see :meth:`.mixture.Mixture.bias`, [128, batches].
        addend_sbuf: moment + log(1 - beta), [128, batches].
        power_sbuf: the signed power of two of each row's factor, [128, batches].
    """

    launch: Launch
    batches: list[CoreBatch]
    buffers: Buffers
    group: int
    student: Exponentials
    bias_sbuf: nl.NkiTensor
    addend_sbuf: nl.NkiTensor
    power_sbuf: nl.NkiTensor

    @classmethod
    def make(
        cls, launch: Launch, batches: list[CoreBatch], saved: Vectors, grad_loss_hbm: nl.NkiTensor
    ) -> MixtureBackward:
        """Compute the coefficients of all rows, and allocate the buffers.

        Args:
            batches: the batches of the core.
            saved: the results of the forward.
            grad_loss_hbm: the upstream gradient of each row.
        """
        totals, coefficients = loaded_coefficients(launch, batches, saved, grad_loss_hbm)
        mixture = Mixture.of(launch)
        addend_sbuf, bias_sbuf = float32_like(coefficients.moment_sbuf), float32_like(coefficients.moment_sbuf)
        nisa.tensor_scalar(dst=addend_sbuf, data=coefficients.moment_sbuf, op0=nl.add, operand0=mixture.log_rest)
        nisa.activation(dst=bias_sbuf, op=nl.log, data=_fractions_of(coefficients.factor_sbuf))
        nisa.tensor_tensor(dst=bias_sbuf, data1=bias_sbuf, data2=totals.student.bias_sbuf, op=nl.add)
        scale = totals.student.scale
        student = Exponentials(scale, totals.student.neg_shift_sbuf, bias_sbuf, totals.student.sums_sbuf)
        group = gradient_group(launch.tiling.chunk_size, launch.bytes_of_pair)
        buffers = Buffers.make(launch, group + 1, {"difference": group + 2, "student": 2})
        return cls(
            launch,
            batches,
            buffers,
            group,
            student,
            mixture.bias(coefficients.center_sbuf, scale),
            addend_sbuf,
            _powers_of(coefficients),
        )

    def run(self, grad_hbm: nl.NkiTensor) -> None:
        """Compute and store the gradient of all chunks of this core."""
        stream = PairStream.make(self.launch, self.batches, self.buffers, [True] * len(self.batches))
        loads = stream.student.loads
        for first in range(0, loads, self.group):
            group = range(first, min(first + self.group, loads))
            for load in group:
                self._take_logs(stream.opened_chunk(load))
            for load in group:
                pair = stream.taken(load)
                self._take_gradient(pair)
                store(pair.chunk, grad_hbm, pair.student_sbuf)

    def _take_logs(self, pair: PairChunk[CoreBatch]) -> None:
        number, rows = pair.visit, pair.student_sbuf.shape[0]
        scale, bias_sbuf = self.student.scale.of(number, rows), column(self.bias_sbuf, number, rows)
        take_logs(pair.difference, pair.difference, scale, bias_sbuf)

    def _take_gradient(self, pair: PairChunk[CoreBatch]) -> None:
        rows = pair.student_sbuf.shape[0]
        weights_sbuf = self.buffers.tile("student", pair.chunk.load, pair.student_sbuf)
        self.student.take(weights_sbuf, pair.student_sbuf, pair.visit)
        nisa.scalar_tensor_tensor(
            dst=pair.student_sbuf,
            data=pair.difference,
            op0=nl.add,
            operand0=column(self.addend_sbuf, pair.visit, rows),
            op1=nl.multiply,
            operand1=weights_sbuf,
        )
        nisa.tensor_scalar(
            dst=pair.student_sbuf,
            data=pair.student_sbuf,
            op0=nl.multiply,
            operand0=column(self.power_sbuf, pair.visit, rows),
        )


def _scale_by_vector(pair: PairChunk[CoreBatch], piece: Piece, of_batch: Coefficients) -> None:
    """Write the gradient of a piece, its PSUM tile times the rows' factors, over the student's logits, on Vector."""
    nisa.tensor_scalar(dst=piece.of(pair.student_sbuf), data=piece.tile, op0=nl.multiply, operand0=of_batch.factor_sbuf)


def _scale_by_gpsimd(pair: PairChunk[CoreBatch], piece: Piece, of_batch: Coefficients) -> None:
    """Write the gradient of a piece over the student's logits as :func:`_scale_by_vector` does, but on GpSimd."""
    nisa.tensor_tensor(
        dst=piece.of(pair.student_sbuf),
        data1=piece.tile,
        data2=of_batch.factor_sbuf.broadcast(1, piece.end - piece.start),
        op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )


def _scale_by_scalar(pair: PairChunk[CoreBatch], piece: Piece, of_batch: Coefficients) -> None:
    nisa.activation(dst=piece.of(pair.student_sbuf), op=nl.copy, data=piece.tile, scale=of_batch.factor_sbuf)


@dataclass(frozen=True)
class KullbackLeiblerBackward:
    """The gradient of a Kullback-Leibler divergence in either direction, of one chunk at a time.

    Attributes:
        launch: the launch of the kernel.
        batches: the batches of the core.
        buffers: the chunk buffers and scratch memory on chip.
        totals: the exponentials of both models.
        coefficients: the coefficients of all rows.
    """

    launch: Launch
    batches: list[CoreBatch]
    buffers: Buffers
    totals: Totals
    coefficients: Coefficients

    @classmethod
    def make(
        cls, launch: Launch, batches: list[CoreBatch], saved: Vectors, grad_loss_hbm: nl.NkiTensor
    ) -> KullbackLeiblerBackward:
        """Compute the coefficients of all rows, and allocate the buffers.

        Args:
            batches: the batches of the core.
            saved: the results of the forward.
            grad_loss_hbm: the upstream gradient of each row.
        """
        load_table(nl.exp)
        half = div_ceil(launch.tiling.chunk_size, 2)
        piece_columns = min(PIECE_COLUMNS, half) if launch.is_split and launch.is_reverse else PIECE_COLUMNS
        buffers = Buffers.make(launch, 1, {"difference": 2, "student": 2}, piece_columns)
        totals, coefficients = loaded_coefficients(launch, batches, saved, grad_loss_hbm)
        return cls(launch, batches, buffers, totals, coefficients)

    def run(self, grad_hbm: nl.NkiTensor) -> None:
        """Compute and store the gradient of all chunks of this core."""
        has_differences = [self.launch.options.beta > 0.0] * len(self.batches)
        stream = PairStream.make(self.launch, self.batches, self.buffers, has_differences)
        take = self._take_student_from_teacher if self.launch.is_reverse else self._take_teacher_from_student
        for number, batch in enumerate(self.batches):
            totals, rows = self.totals.of_batches(number, number + 1, batch.rows), batch.rows
            of_batch = self.coefficients.of_batch(number, rows)
            for load in range(number * stream.num_chunks, (number + 1) * stream.num_chunks):
                pair = stream.taken(load)
                take(pair, totals, of_batch)
                store(pair.chunk, grad_hbm, pair.student_sbuf)

    def _take_teacher_from_student(self, pair: PairChunk[CoreBatch], totals: Totals, of_batch: Coefficients) -> None:
        """Compute (e_t * ratio - e_s) * factor for KL(teacher || student), with the symbols of :class:`Coefficients`.

        If the distributions are equal, the terms cancel in float32, before anything is rounded to the dtype of the
        logits.

        Vector has two passes and is the busier engine. So Scalar multiplies by the factor in the first piece of every
        second chunk of a row, after it has computed the exponentials of the next piece. If positions are split, chunks
        are shorter, and GpSimd multiplies in every second chunk.
        """
        student_sbuf = self.buffers.tile("student", pair.chunk.load, pair.student_sbuf)
        pieces = self.buffers.pieces(pair.chunk.load, pair.student_sbuf)
        unscaled: Piece | None = None
        for piece in pieces:
            totals.student.take(piece.of(student_sbuf), piece.of(pair.student_sbuf), 0)
            totals.teacher.take(piece.tile, piece.of(pair.teacher_sbuf), 0)
            if unscaled is not None:
                _scale_by_scalar(pair, unscaled, of_batch)
                unscaled = None
            nisa.scalar_tensor_tensor(
                dst=piece.tile,
                data=piece.tile,
                op0=nl.multiply,
                operand0=of_batch.ratio_sbuf,
                op1=nl.subtract,
                operand1=piece.of(student_sbuf),
            )
            if self.launch.is_split and pair.chunk.number % 2 == 0:
                _scale_by_gpsimd(pair, piece, of_batch)
            elif pair.chunk.number % 2 == 1 and piece.number == 0 and len(pieces) > 1:
                unscaled = piece
            else:
                _scale_by_vector(pair, piece, of_batch)

    def _take_student_from_teacher(self, pair: PairChunk[CoreBatch], totals: Totals, of_batch: Coefficients) -> None:
        """Compute (d - center) * e_s * factor for KL(student || teacher), with the symbols of :class:`Coefficients`.

        Scalar computes the exponentials of a piece and then multiplies the previous piece by the factor, while Vector
        processes the current one. In any other order each engine would wait for the other.
        """
        unscaled: Piece | None = None
        for piece in self.buffers.pieces(pair.chunk.load, pair.student_sbuf):
            totals.student.take(piece.tile, piece.of(pair.student_sbuf), 0)
            if unscaled is not None:
                _scale_by_scalar(pair, unscaled, of_batch)
            nisa.scalar_tensor_tensor(
                dst=piece.tile,
                data=piece.of(pair.difference),
                op0=nl.subtract,
                operand0=of_batch.center_sbuf,
                op1=nl.multiply,
                operand1=piece.tile,
            )
            unscaled = piece
        if unscaled is not None:
            _scale_by_scalar(pair, unscaled, of_batch)


def backward_of_core(launch: Launch, saved: Vectors, grad_loss_hbm: nl.NkiTensor, grad_hbm: nl.NkiTensor) -> None:
    """Compute and store the gradient of this core's positions."""
    batches: list[CoreBatch] = [*(launch.split_batches() if launch.is_split else launch.batches())]
    if not batches:
        return
    if launch.is_mixed:
        MixtureBackward.make(launch, batches, saved, grad_loss_hbm).run(grad_hbm)
    else:
        KullbackLeiblerBackward.make(launch, batches, saved, grad_loss_hbm).run(grad_hbm)
