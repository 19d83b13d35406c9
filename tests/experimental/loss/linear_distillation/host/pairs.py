# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of both models for tests: normal hidden states and weights, biases, labels, weights of positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss.linear_distillation.host.reference import ModelProblem, PairProblem

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
