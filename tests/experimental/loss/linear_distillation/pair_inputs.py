# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of both models for tests: normal hidden states and weights, biases, labels, weights of positions; and hard
ones.

Hard are near and equal teachers, confident ones, masked classes, wide logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss.linear_distillation.host.reference import ModelProblem, PairProblem

from ..linear_cross_entropy import linear_inputs

FP32, BF16, FP16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
IGNORE = -100


class Sizes(NamedTuple):
    """N, Ds, Dt, V."""

    positions: int = 40
    student_features: int = 24
    teacher_features: int = 32
    classes: int = 96


SIZES = Sizes()


def model_of(
    rng: np.random.Generator, positions: int, features: int, classes: int, dtype: npt.DTypeLike, deviation: float = 2.0
) -> ModelProblem:
    """X ~ N(0, 1), W ~ N(0, (deviation / sqrt D)^2), so that logits have that deviation."""
    x = rng.standard_normal((positions, features)).astype(np.float32)
    weight = (deviation / np.sqrt(features) * rng.standard_normal((classes, features))).astype(np.float32)
    return ModelProblem(x.astype(dtype), weight.astype(dtype))


def pair_of(
    sizes: Sizes = SIZES,
    seed: int = 0,
    dtype: npt.DTypeLike = FP32,
    teacher_dtype: npt.DTypeLike | None = None,
    *,
    beta: float = 0.0,
    temperature: float = 1.0,
    with_bias: bool = False,
    **of_student: Any,
) -> PairProblem:
    """A problem with labels, of which some are ignored, and weights of positions.

    Args:
        sizes: the sizes of the problem.
        seed: the seed of all numbers.
        dtype: the type of the student.
        teacher_dtype: the type of the teacher; None: that of the student.
        beta, temperature: the parameters of the loss.
        with_bias: both models have a bias.
        of_student: further fields of the student.
    """
    rng = np.random.default_rng(seed)
    positions, student_features, teacher_features, classes = sizes
    student = model_of(rng, positions, student_features, classes, dtype)
    teacher = model_of(rng, positions, teacher_features, classes, teacher_dtype or dtype, 2.5)
    labels = rng.integers(0, classes, positions).astype(np.int32)
    labels[3::7] = IGNORE
    weight = rng.uniform(0.2, 2.0, positions).astype(np.float32)
    if with_bias:
        student, teacher = (
            replace(array, bias=rng.standard_normal(classes).astype(np.float32)) for array in (student, teacher)
        )
    return PairProblem(
        replace(student, temperature=temperature, **of_student),
        replace(teacher, temperature=temperature),
        labels,
        weight,
        beta,
    )


PairMaker = Callable[[Sizes, int, dict[str, Any]], PairProblem]


def _normal(sizes: Sizes, seed: int, options: dict[str, Any]) -> PairProblem:
    return pair_of(sizes, seed, **options)


def _equal(sizes: Sizes, seed: int, options: dict[str, Any]) -> PairProblem:
    """The teacher is the student."""
    problem = pair_of(sizes, seed, **options)
    return replace(problem, teacher=problem.student)


def _near(sizes: Sizes, seed: int, options: dict[str, Any]) -> PairProblem:
    """The weight of the teacher is 1% off the student's."""
    problem = pair_of(sizes, seed, **options)
    student = problem.student
    noise = 1.0 + 0.01 * np.random.default_rng(seed).standard_normal(student.weight.shape)
    weight = (student.weight.astype(np.float64) * noise).astype(student.weight.dtype)
    return replace(problem, teacher=replace(student, weight=weight))


def _confident(model: ModelProblem, sizes: Sizes, seed: int) -> ModelProblem:
    """Every other position gives a class 0.999 at temperature 1."""
    positions, classes = sizes.positions, sizes.classes
    linear = linear_inputs.Sizes(positions, model.input.shape[1], classes, model.input.dtype)
    result = linear_inputs.half_confident(linear, np.random.default_rng(seed))
    return replace(model, input=result.input, weight=result.weight, bias=None)


def _confident_teacher(sizes: Sizes, seed: int, options: dict[str, Any]) -> PairProblem:
    problem = pair_of(sizes, seed, **options)
    return replace(problem, teacher=_confident(problem.teacher, sizes, seed))


def _confident_student(sizes: Sizes, seed: int, options: dict[str, Any]) -> PairProblem:
    problem = pair_of(sizes, seed, **options)
    return replace(problem, student=_confident(problem.student, sizes, seed))


def _wide(sizes: Sizes, seed: int, options: dict[str, Any]) -> PairProblem:
    """Logits of the student are some ten times as large: p underflows."""
    problem = pair_of(sizes, seed, **options)
    wide = (10.0 * problem.student.weight.astype(np.float32)).astype(problem.student.weight.dtype)
    return replace(problem, student=replace(problem.student, weight=wide))


def _masked(sizes: Sizes, seed: int, options: dict[str, Any]) -> PairProblem:
    """A third of the classes is masked in both; some in one model alone where the divergence stays finite."""
    problem = pair_of(sizes, seed, **{**options, "with_bias": True})
    rng = np.random.default_rng(seed)
    both = rng.random(sizes.classes) < 1 / 3
    both[0] = False

    def masked(model: ModelProblem, may: bool) -> ModelProblem:
        further = (rng.random(sizes.classes) < 0.1) & may
        further[0] = False
        bias = np.where(both | further, -np.inf, model.bias)
        return replace(model, bias=bias.astype(np.float32))

    student, teacher = masked(problem.student, problem.beta != 0.0), masked(problem.teacher, problem.beta != 1.0)
    # No label is a class that the student masks.
    kept = np.flatnonzero(np.isfinite(student.bias))
    labels = np.where(problem.labels == problem.ignore_index, problem.labels, rng.choice(kept, sizes.positions))
    return replace(problem, student=student, teacher=teacher, labels=labels.astype(np.int32))


PROBLEMS: dict[str, PairMaker] = {
    "normal": _normal,
    "equal teacher": _equal,
    "near teacher": _near,
    "confident teacher": _confident_teacher,
    "confident student": _confident_student,
    "wide student": _wide,
    "masked classes": _masked,
}
