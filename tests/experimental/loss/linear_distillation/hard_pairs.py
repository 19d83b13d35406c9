# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of both models that are hard: near and equal teachers, confident ones, masked classes, wide logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nkilib.experimental.loss.linear_distillation.host.reference import ModelProblem, PairProblem
from tests.experimental.loss.linear_cross_entropy import linear_inputs

from .host.pairs import Sizes, pair_of

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
