# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The factors of the gradients of a row, computed from the results of the forward."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.tiles import float32_like, product, scaled, selected
from nkilib.experimental.loss.distillation.forward import valid_mask
from nkilib.experimental.loss.distillation.options import Launch
from nkilib.experimental.loss.distillation.rows import Exponentials, Vectors, column, loaded_rows
from nkilib.experimental.loss.distillation.totals import Totals, center
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of rows, float32 [128, batches]; the gradient of an element is

    - (e_t * ratio - e_s) * factor for KL(teacher || student),
    - (d - center) * e_s * factor for KL(student || teacher),
    - (L + moment) * e_s * factor for Jensen-Shannon,

    where e_s and e_t are the exponentials of student and teacher under their shifts, d is the student's logit minus the
    teacher's, and L is that of :mod:`.mixture`.

    Attributes:
        factor_sbuf: the factor of each row; 0 for ignored positions.
        ratio_sbuf: S of the student over S of the teacher.
        center_sbuf: for KL(student || teacher) T * (lse of the student - lse of the teacher + divergence); otherwise
            T * (lse of the teacher - lse of the student).
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


def loaded_totals(launch: Launch, batches: list[Batch], saved: Vectors) -> Totals:
    """Load the shifts and sums that the forward has stored, for all rows."""
    student = _loaded_side(saved.student_shift_hbm, saved.student_sum_hbm, batches, launch.scale)
    teacher = _loaded_side(saved.teacher_shift_hbm, saved.teacher_sum_hbm, batches, launch.scale)
    return Totals(student, teacher, student.sums_sbuf, student.sums_sbuf)


def coefficients_of(
    launch: Launch, batches: list[Batch], totals: Totals, moment_hbm: nl.NkiTensor, grad_loss_hbm: nl.NkiTensor
) -> Coefficients:
    """Return the coefficients of all rows, from their shifts and sums and the vectors loaded here."""
    beta, temperature = launch.options.beta, launch.options.temperature
    moment_sbuf, grad_sbuf = loaded_rows(moment_hbm, batches), loaded_rows(grad_loss_hbm, batches)
    if launch.labels_hbm is not None:
        labels_sbuf = loaded_rows(launch.labels_hbm, batches, nl.int32)
        grad_sbuf = selected(grad_sbuf, valid_mask(labels_sbuf, launch.options.ignore_index))
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
    return Coefficients(scaled(factor_sbuf, weight), ratio_sbuf, center_sbuf, moment_sbuf)


def _loaded_side(shift_hbm: nl.NkiTensor, sum_hbm: nl.NkiTensor, batches: list[Batch], scale: float) -> Exponentials:
    side = Exponentials.make(len(batches), scale)
    sums_sbuf = loaded_rows(sum_hbm, batches)
    # Rows that do not exist have a sum of 0, and are divided by it: raise it to the least sum of any row.
    nisa.tensor_scalar(dst=side.sums_sbuf, data=sums_sbuf, op0=nl.maximum, operand0=0.25)
    nisa.tensor_copy(dst=side.neg_shift_sbuf, src=loaded_rows(shift_hbm, batches))
    for batch in range(len(batches)):
        side.set_bias(batch, side.neg_shift_sbuf.shape[0])
    return side
