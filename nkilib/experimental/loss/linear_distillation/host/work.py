# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The work of the kernels, whatever the tiling, from which the performance model derives how fast hardware could be.

For host code, not for kernels. Every operand and every result crosses HBM once; logits do not: keeping logits for a
divergence from a mixture is a choice, and no work. A product of all logits takes N V D multiply-adds of each model, and
so does each of dX and dW of the student's.

Activation functions for each logit: two exponentials for a divergence of one distribution from the other; for a mixture
both again, and a softplus. The gradients of KL(teacher || student) take both exponentials, those of KL(student ||
teacher) the student's, those of a mixture the student's and a softplus. Each model's softcap is one more.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work
from nkilib.core.rows.sizes import FLOAT32_BYTES

# Divergence, entropy, moment, and maximum and log-sum of both models.
_RESULTS = 7


def pair_forward_work(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    teacher_input_hbm: Any,
    teacher_weight_hbm: Any,
    labels_hbm: Any = None,
    student_bias_hbm: Any = None,
    teacher_bias_hbm: Any = None,
    row_weight_hbm: Any = None,
    beta: float = 0.0,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    with_logprob: bool = False,
    with_target: bool = False,
    num_classes: int | None = None,
    compute_dtype: Any = None,
    **_: Any,
) -> Work:
    """Return the work of ``linear_distillation_forward``, whose parameters it takes."""
    operands = (student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm)
    vectors = (labels_hbm, student_bias_hbm, teacher_bias_hbm, row_weight_hbm)
    results = (_RESULTS + bool(with_logprob) + bool(with_target)) * student_input_hbm.shape[0]
    elements = _elements(student_input_hbm, student_weight_hbm)
    has_mixture = 0.0 < beta < 1.0 and num_classes in (None, elements // student_input_hbm.shape[0])
    functions = (5 if has_mixture else 2) + _caps(student_logit_softcap, teacher_logit_softcap)
    return Work(
        hbm_bytes=_bytes(*operands, *vectors) + FLOAT32_BYTES * results,
        exponentials=functions * elements,
        multiply_adds=elements * (student_input_hbm.shape[1] + teacher_input_hbm.shape[1]),
        dtype=_product_dtype(student_input_hbm, teacher_input_hbm, compute_dtype),
    )


def mixture_work(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    teacher_input_hbm: Any,
    teacher_weight_hbm: Any,
    student_maximum_hbm: Any,
    student_log_sum_hbm: Any,
    teacher_maximum_hbm: Any,
    teacher_log_sum_hbm: Any,
    student_bias_hbm: Any = None,
    teacher_bias_hbm: Any = None,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    compute_dtype: Any = None,
    **_: Any,
) -> Work:
    """Return the work of ``linear_distillation_mixture``, whose parameters it takes."""
    operands = (student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm)
    vectors = (student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm)
    elements = _elements(student_input_hbm, student_weight_hbm)
    return Work(
        hbm_bytes=_bytes(*operands, *vectors, student_bias_hbm, teacher_bias_hbm)
        + 4 * FLOAT32_BYTES * student_input_hbm.shape[0],
        exponentials=(3 + _caps(student_logit_softcap, teacher_logit_softcap)) * elements,
        multiply_adds=elements * (student_input_hbm.shape[1] + teacher_input_hbm.shape[1]),
        dtype=_product_dtype(student_input_hbm, teacher_input_hbm, compute_dtype),
    )


def pair_backward_work(
    student_input_hbm: Any,
    student_weight_hbm: Any,
    teacher_input_hbm: Any,
    teacher_weight_hbm: Any,
    moment_hbm: Any,
    student_maximum_hbm: Any,
    student_log_sum_hbm: Any,
    teacher_maximum_hbm: Any,
    teacher_log_sum_hbm: Any,
    grad_divergence_hbm: Any,
    labels_hbm: Any = None,
    student_bias_hbm: Any = None,
    teacher_bias_hbm: Any = None,
    row_weight_hbm: Any = None,
    grad_logprob_hbm: Any = None,
    beta: float = 0.0,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    compute_dtype: Any = None,
    grad_input_wanted: bool = True,
    grad_weight_wanted: bool = True,
    grad_bias_wanted: bool | None = None,
    grad_weight_sum_hbm: Any = None,
    grad_input_float32: bool = False,
    **_: Any,
) -> Work:
    """Return the work of ``linear_distillation_backward``, whose parameters it takes."""
    operands = (student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm)
    statistics = (moment_hbm, student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm)
    upstream = (grad_divergence_hbm, grad_logprob_hbm, labels_hbm, row_weight_hbm)
    elements = _elements(student_input_hbm, student_weight_hbm)
    of_student, of_teacher = student_input_hbm.shape[1], teacher_input_hbm.shape[1]
    products = 1 + bool(grad_input_wanted) + bool(grad_weight_wanted)
    gradients = 0
    if grad_input_wanted:
        wide = FLOAT32_BYTES * prod(student_input_hbm.shape)
        gradients += wide if grad_input_float32 else _bytes(student_input_hbm)
    if grad_weight_wanted:
        gradients += _bytes(student_weight_hbm) if grad_weight_sum_hbm is None else 2 * _bytes(grad_weight_sum_hbm)
    if student_bias_hbm is not None and grad_bias_wanted in (None, True):
        gradients += FLOAT32_BYTES * prod(student_bias_hbm.shape)
    functions = (1 if beta == 1.0 else 2) + _caps(student_logit_softcap, teacher_logit_softcap)
    return Work(
        hbm_bytes=_bytes(*operands, *statistics, *upstream, student_bias_hbm, teacher_bias_hbm) + gradients,
        exponentials=functions * elements,
        multiply_adds=elements * (products * of_student + of_teacher),
        dtype=_product_dtype(student_input_hbm, teacher_input_hbm, compute_dtype),
    )


def _caps(*softcaps: float | None) -> int:
    return sum(softcap is not None for softcap in softcaps)


def _elements(input_hbm: Any, weight_hbm: Any) -> int:
    """Return N V, the number of logits."""
    positions, features = input_hbm.shape
    elements: int = positions * prod(weight_hbm.shape) // features
    return elements


def _bytes(*arrays: Any) -> int:
    """Return the bytes of arrays in HBM, 0 for None."""
    from nkilib.simulator.terms.dtypes import as_dtype

    return sum(prod(array.shape) * as_dtype(array.dtype).itemsize for array in arrays if array is not None)


def _product_dtype(student_hbm: Any, teacher_hbm: Any, compute_dtype: Any) -> Any:
    """Return the type of the products; if the models' types differ, the faster one, so that a bound stays a bound."""
    from nkilib.simulator.terms.dtypes import as_dtype

    if compute_dtype is not None:
        return as_dtype(compute_dtype)
    student, teacher = as_dtype(student_hbm.dtype), as_dtype(teacher_hbm.dtype)
    return teacher if teacher.itemsize < student.itemsize else student
