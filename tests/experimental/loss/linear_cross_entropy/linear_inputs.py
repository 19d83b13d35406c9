# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of linear cross-entropy, the hard ones among them, as problems that the float64 reference takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs, ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem
from tests.experimental.loss.cross_entropy.extended_checks import temperature_of

BF16 = np.dtype(ml_dtypes.bfloat16)
FP16 = np.dtype(np.float16)
FP32 = np.dtype(np.float32)

Array = npt.NDArray[Any]
ProblemMaker = Callable[["Sizes", np.random.Generator], LinearProblem]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a problem: positions, features, classes, and the dtype of X and W."""

    positions: int
    features: int
    classes: int
    dtype: np.dtype[Any] = BF16


def normal_problem(sizes: Sizes, rng: np.random.Generator, spread: float = 2.0) -> LinearProblem:
    """Normal noise whose logits have the given spread, and uniform targets."""
    weight = rng.standard_normal((sizes.classes, sizes.features)) * spread / np.sqrt(sizes.features)
    return LinearProblem(
        rng.standard_normal((sizes.positions, sizes.features)).astype(sizes.dtype),
        weight.astype(sizes.dtype),
        rng.integers(0, sizes.classes, sizes.positions, dtype=np.int32),
    )


def half_confident(sizes: Sizes, rng: np.random.Generator, probability: float = 0.999) -> LinearProblem:
    """Every other position gives its target the probability, but for the rounding of its row of X."""
    problem = normal_problem(sizes, rng)
    x, weight = problem.input.astype(np.float64), problem.classes_first
    for row in range(0, sizes.positions, 2):
        x[row] = _raised(x[row], weight, int(problem.targets[row]), probability)
    return replace(problem, input=x.astype(sizes.dtype))


def _raised(row: Array, weight: Array, target: int, probability: float) -> Array:
    """A row of X moved along its target's row of W until the target has the probability, found by bisection."""
    direction = weight[target] / np.square(weight[target]).sum()
    logits, slopes = weight @ row, weight @ direction
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        z = logits + middle * slopes
        if np.exp(z[target] - z.max()) / np.exp(z - z.max()).sum() < probability:
            low = middle
        else:
            high = middle
    raised: Array = row + high * direction
    return raised


def _of_spread_50(sizes: Sizes, rng: np.random.Generator) -> LinearProblem:
    return normal_problem(sizes, rng, spread=50.0)


def _with_a_bias_of_10000(sizes: Sizes, rng: np.random.Generator) -> LinearProblem:
    bias = rng.uniform(-1.0, 1.0, sizes.classes).astype(np.float32) + np.float32(1e4)
    return replace(normal_problem(sizes, rng), bias=bias)


def _with_masked_classes(sizes: Sizes, rng: np.random.Generator) -> LinearProblem:
    """A third of the classes has a bias of -inf, and no target is one of them."""
    bias = rng.standard_normal(sizes.classes).astype(np.float32)
    masked = rng.random(sizes.classes) < 1 / 3
    masked[0] = False
    bias[masked] = -np.inf
    targets = rng.choice(np.flatnonzero(~masked), sizes.positions).astype(np.int32)
    return replace(normal_problem(sizes, rng), bias=bias, targets=targets)


def _of_duplicate_rows(sizes: Sizes, rng: np.random.Generator) -> LinearProblem:
    """All classes have one of three rows of W, and the positions one of three rows of X."""
    problem = normal_problem(sizes, rng)
    x = problem.input[rng.integers(0, min(3, sizes.positions), sizes.positions)]
    return replace(problem, input=x, weight=problem.weight[rng.integers(0, min(3, sizes.classes), sizes.classes)])


def with_ignored(problem: LinearProblem, rng: np.random.Generator, share: float = 0.3) -> LinearProblem:
    """A share of the positions does not count."""
    ignored = rng.random(len(problem.targets)) < share
    return replace(problem, targets=np.where(ignored, np.int32(-100), problem.targets))


def _with_ignored(sizes: Sizes, rng: np.random.Generator) -> LinearProblem:
    return with_ignored(normal_problem(sizes, rng), rng)


def _all_ignored(sizes: Sizes, rng: np.random.Generator) -> LinearProblem:
    return with_ignored(normal_problem(sizes, rng), rng, 1.1)


PROBLEMS: dict[str, ProblemMaker] = {
    "normal": normal_problem,
    "half at 0.999": half_confident,
    "spread 50": _of_spread_50,
    "bias 1e4": _with_a_bias_of_10000,
    "masked classes": _with_masked_classes,
    "duplicate rows": _of_duplicate_rows,
    "30% ignored": _with_ignored,
    "all ignored": _all_ignored,
}

# What may be asked for beside the loss of PyTorch without options; class weights and bias come with the problem.
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "smoothing": {"label_smoothing": 0.1},
    "softcap": {"logit_softcap": 5.0},
    "z-loss": {"lse_square_scale": 1e-2},
    "weights": {"class_weight": True},
    "bias": {"bias": True},
    "weights, smoothing": {"class_weight": True, "label_smoothing": 0.2},
    "all": {"class_weight": True, "bias": True, "label_smoothing": 0.1, "logit_softcap": 8.0, "lse_square_scale": 1e-3},
}


def problem_of(kind: str, sizes: Sizes, seed: int = 0, layout: str = "vd") -> LinearProblem:
    """One of ``PROBLEMS``; in ``"dv"`` the weight is its transpose."""
    problem = PROBLEMS[kind](sizes, np.random.default_rng(seed))
    return in_layout(problem, layout)


def in_layout(problem: LinearProblem, layout: str) -> LinearProblem:
    """A problem of layout ``"vd"`` in another."""
    if layout == "vd":
        return problem
    return replace(problem, weight=np.ascontiguousarray(problem.weight.T), weight_layout=layout)


def with_options(problem: LinearProblem, name: str, seed: int = 1) -> LinearProblem:
    """The problem with one of ``OPTIONS``."""
    chosen, rng, classes = dict(OPTIONS[name]), np.random.default_rng(seed), problem.vocab_size
    weight = rng.uniform(0.1, 2.0, classes).astype(np.float32) if chosen.pop("class_weight", False) else None
    if chosen.pop("bias", False):
        problem = replace(problem, bias=rng.standard_normal(classes).astype(np.float32))
    return replace(problem, options=ExtendedLoss(class_weight=weight, **chosen))


def upstream_of(
    problem: LinearProblem, lse: Array, further: bool = False, entropy: Array | None = None, seed: int = 2
) -> BackwardInputs:
    """Different gradients for all positions; ``further``: of lse and log-probability too; of the entropy if given."""
    rng, positions = np.random.default_rng(seed), len(problem.targets)

    def vector() -> Array:
        return (rng.standard_normal(positions) / positions).astype(np.float32)

    of_loss = vector()
    others = (vector(), vector()) if further else (None, None)
    return BackwardInputs(lse, of_loss, *others, entropy, None if entropy is None else vector())


def arguments_of(problem: LinearProblem) -> dict[str, Any]:
    """Keywords of a launch."""
    options = problem.options
    return {
        "bias_hbm": problem.bias,
        "class_weight_hbm": options.class_weight,
        "weight_layout": problem.weight_layout,
        "ignore_index": options.ignore_index,
        "label_smoothing": options.label_smoothing,
        "logit_softcap": options.logit_softcap,
        "lse_square_scale": options.lse_square_scale,
        **temperature_of(options),
        "logit_scale": problem.logit_scale,
    }
