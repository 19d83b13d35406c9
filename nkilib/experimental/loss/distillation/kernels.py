# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of distillation from logits: the divergence of a student from a teacher, and its gradient.

:func:`distillation_forward` computes the divergence at every position, :func:`distillation_backward` the gradient with
respect to the student's logits.
"""

from __future__ import annotations

from dataclasses import replace

from nkilib.core.hardware import HbmTensor
from nkilib.core.rows.checks import require_flag
from nkilib.experimental.loss.distillation.backward import backward_of_core
from nkilib.experimental.loss.distillation.forward import forward_of_core
from nkilib.experimental.loss.distillation.launch import (
    DistillationOptions,
    Launch,
    validate,
    validate_tiling,
    validate_vectors,
)
from nkilib.experimental.loss.distillation.pair import Vectors
from nkilib.experimental.loss.distillation.split_forward import forward_of_split
from nkilib.experimental.loss.distillation.tiling import DistillationTiling, tiling_of
from nkilib.nki import nl


def _checked_launch(
    function: str,
    student_hbm: nl.NkiTensor,
    teacher_hbm: nl.NkiTensor,
    labels_hbm: nl.NkiTensor | None,
    options: DistillationOptions,
    chunk_size: int | None,
    partitions_per_position: int,
    *,
    is_backward: bool,
    temperature_hbm: nl.NkiTensor | None,
) -> Launch:
    tiling = DistillationTiling(0, partitions_per_position)
    launch = Launch(function, student_hbm, teacher_hbm, labels_hbm, options, tiling, is_backward, temperature_hbm)
    validate(launch)
    tiling = tiling_of(launch.vocab_size, launch.bytes_of_pair, launch.form, partitions_per_position)
    launch = replace(launch, tiling=tiling if chunk_size is None else tiling._replace(chunk_size=chunk_size))
    validate_tiling(launch)
    return launch


def distillation_forward(
    student_hbm: HbmTensor,
    teacher_hbm: HbmTensor,
    labels_hbm: HbmTensor | None = None,
    *,
    beta: float = 0.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
    chunk_size: int | None = None,
    temperature_hbm: HbmTensor | None = None,
    partitions_per_position: int = 1,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the divergence of the student from the teacher at every position, from their logits.

    With P = softmax(teacher / T), Q = softmax(student / T) and M = beta * P + (1 - beta) * Q, the divergence is

    - beta = 0: KL(P || Q), ``F.kl_div(log_softmax(student / T), log_softmax(teacher / T), log_target=True,
      reduction="none").sum(1)``;
    - beta = 1: KL(Q || P);
    - beta between 0 and 1: beta * KL(P || M) + (1 - beta) * KL(Q || M), generalized Jensen-Shannon (arXiv 2306.13649).

    The loss has no factor T^2. A KL reads both logits once. Jensen-Shannon needs two passes over a row, because the
    mixture needs both log-sum-exps. It also reads both logits once if a row of both fits on chip between the passes: up
    to 40,832 classes of bfloat16 and 19,712 of other dtypes. Longer rows are read twice.

    Dimensions:
        N: positions; each core processes its positions in parts of 32,768.
        V: vocabulary size.

    Args:
        student_hbm, teacher_hbm: the logits, [N, V], bfloat16, float16 or float32, in HBM; their dtypes may differ. A
            logit of -inf marks a masked class. A class that both models mask adds nothing. A class that only the
            student masks makes KL(P || Q) infinite if P of the class is 2^-68 or more.
        labels_hbm: [N], int32; a position whose label is ``ignore_index`` has loss 0. None means that every position is
            valid.
        beta: from 0 to 1, selects the divergence as above.
        temperature: T, from 1e-3 to 1e6, a constant of the compiled kernel.
        ignore_index: the label of ignored positions, an int32.
        chunk_size: the number of vocabulary entries processed at a time, at most 4,096; None for the choice of
            :func:`~nkilib.experimental.loss.distillation.tiling.choose_distillation_tiling`.
        temperature_hbm: [N] or [1], float32, in HBM: T of each position or of all, in place of ``temperature``; no
            value compiles the kernel again. Where a temperature is not from 1e-3 to 1e6 (0, negative, infinite, NaN),
            loss and moment of the position are NaN; at an ignored position it counts as 1.
        partitions_per_position: F, the number of partitions of a position, a power of two up to 128. F > 1 is for
            launches of few positions; with V < F it counts as 1. With F > 1 the shifts are the maxima of the rows, and
            ``chunk_size`` counts the entries of a partition.

    Returns:
        float32 [N] each: loss in nats, never negative; moment, which the backward needs: KL(Q || M), or the loss for
        beta 0 and 1; then minus the shift and the sum of exp((x - shift) / T), first of the student and then of the
        teacher. The shift of a row is the largest of some or all of its logits x. The loss of a valid position is NaN
        if all logits of the student or of the teacher are -inf, or if a logit is +inf or NaN.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    launch = _checked_launch(
        "distillation_forward",
        student_hbm,
        teacher_hbm,
        labels_hbm,
        DistillationOptions(beta, temperature, ignore_index),
        chunk_size,
        partitions_per_position,
        is_backward=False,
        temperature_hbm=temperature_hbm,
    )
    vectors = Vectors.make(launch.num_positions)
    of_core = forward_of_split if launch.is_split else forward_of_core
    for part in launch.parts():
        of_core(launch.of_part(part), vectors.of_part(part))
    return vectors.returned()


def distillation_backward(
    student_hbm: HbmTensor,
    teacher_hbm: HbmTensor,
    moment_hbm: HbmTensor,
    student_shift_hbm: HbmTensor,
    student_sum_hbm: HbmTensor,
    teacher_shift_hbm: HbmTensor,
    teacher_sum_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    labels_hbm: HbmTensor | None = None,
    *,
    beta: float = 0.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
    chunk_size: int | None = None,
    inplace: bool = False,
    temperature_hbm: HbmTensor | None = None,
    partitions_per_position: int = 1,
) -> nl.NkiTensor:
    """Compute the gradient of :func:`distillation_forward` with respect to the student's logits; the teacher gets none.

    With P, Q and M of the forward, r = log(P / Q) and L = log(M / Q) = log(beta * exp(r) + 1 - beta), the gradient is
    the upstream gradient times

    - beta = 0: (Q - P) / T;
    - beta = 1: -Q * (r + KL(Q || P)) / T;
    - beta between 0 and 1: -(1 - beta) * Q * (L + KL(Q || M)) / T.

    Both logits are read once, and the gradient is written once.

    Args:
        student_hbm, teacher_hbm, labels_hbm, beta, temperature, ignore_index, chunk_size: see the forward.
        moment_hbm, student_shift_hbm, student_sum_hbm, teacher_shift_hbm, teacher_sum_hbm: float32 [N], from the
            forward.
        grad_loss_hbm: the upstream gradient, float32 [N].
        inplace: whether the gradient is written over ``student_hbm``; else into a new tensor of the same dtype.
        temperature_hbm: see the forward; it gets no gradient. The row of a position whose temperature is not accepted
            is NaN, unless the position is ignored.
        partitions_per_position: see the forward; the value may differ from the forward's.

    Returns:
        grad_student_hbm: [N, V], in the student's dtype; 0 at ignored positions, unless a logit there is +inf or NaN.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "distillation_backward"
    options = DistillationOptions(beta, temperature, ignore_index)
    launch = _checked_launch(
        function,
        student_hbm,
        teacher_hbm,
        labels_hbm,
        options,
        chunk_size,
        partitions_per_position,
        is_backward=True,
        temperature_hbm=temperature_hbm,
    )
    saved = Vectors(moment_hbm, moment_hbm, student_shift_hbm, student_sum_hbm, teacher_shift_hbm, teacher_sum_hbm)
    validate_vectors(
        launch,
        {
            "moment_hbm": moment_hbm,
            "student_shift_hbm": student_shift_hbm,
            "student_sum_hbm": student_sum_hbm,
            "teacher_shift_hbm": teacher_shift_hbm,
            "teacher_sum_hbm": teacher_sum_hbm,
            "grad_loss_hbm": grad_loss_hbm,
        },
    )
    require_flag(function, "inplace", inplace)
    grad_hbm = student_hbm
    if not inplace:
        shape = student_hbm.shape
        grad_hbm = nl.ndarray(shape, dtype=student_hbm.dtype, buffer=nl.shared_hbm, name="grad_student_hbm")
    for part in launch.parts():
        backward_of_core(launch.of_part(part), saved.of_part(part), part.of(grad_loss_hbm), part.of(grad_hbm))
    return grad_hbm
