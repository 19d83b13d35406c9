# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors of distillation from hidden states: ``python -m benchmarks.linear_distillation_errors``.

Xs, Xt ~ N(0, 1), Ws ~ N(0, (2 / sqrt Ds)^2), Wt ~ N(0, (2.5 / sqrt Dt)^2), in bfloat16, on two cores. The reference is
float64 from the same bfloat16 operands. Errors are norms of the error over the norm of the reference; for gradients,
which have the type of the operands, also for the worst row. The gradient is that of the mean, with the statistics from
the forward. A near teacher has the student's weights, 1% off.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from nkilib.experimental.loss import linear_distillation_backward, linear_distillation_forward
from nkilib.experimental.loss.linear_distillation.host.reference import (
    ModelProblem,
    PairProblem,
    PairUpstream,
    pair_backward_reference,
    pair_forward_reference,
)

Array = npt.NDArray[Any]
_BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
_LOSSES: Final = {0.0: "KL(t||s)", 1.0: "KL(s||t)", 0.5: "beta = 0.5"}
_STATISTICS: Final = ("moment", "student_maximum", "student_log_sum", "teacher_maximum", "teacher_log_sum")


class Sizes(NamedTuple):
    """N, Ds, Dt, V."""

    positions: int
    student_features: int
    teacher_features: int
    classes: int


class Errors(NamedTuple):
    """Errors in norm, over the norm of the reference; None where there is no gradient.

    Attributes:
        divergence, entropy: the errors of the forward.
        input, weight: the errors of dX and dW.
        worst_row: the largest of the rows of dX and dW.
    """

    divergence: float
    entropy: float
    input: float | None = None
    weight: float | None = None
    worst_row: float | None = None


SMALL: Final = (Sizes(256, 256, 512, 4096), Sizes(256, 512, 256, 5003))
LARGE: Final = Sizes(1024, 1024, 2048, 32_000)


def problem_of(sizes: Sizes, beta: float, is_near: bool = False, seed: int = 0) -> PairProblem:
    """Operands of both models."""
    rng = np.random.default_rng(seed)

    def model(features: int, deviation: float) -> ModelProblem:
        weight = deviation / np.sqrt(features) * rng.standard_normal((sizes.classes, features))
        x = rng.standard_normal((sizes.positions, features))
        return ModelProblem(x.astype(_BFLOAT16), weight.astype(_BFLOAT16))

    student, teacher = model(sizes.student_features, 2.0), model(sizes.teacher_features, 2.5)
    if is_near:
        noise = 1.0 + 0.01 * rng.standard_normal(student.weight.shape)
        teacher = replace(student, weight=(student.weight.astype(np.float64) * noise).astype(_BFLOAT16))
    return PairProblem(student, teacher, beta=beta)


def errors_of(problem: PairProblem, with_gradients: bool = True) -> Errors:
    """Launch a problem, and compare with float64."""
    models = (problem.student, problem.teacher)
    operands = [item for model in models for item in (model.input, model.weight)]
    results = linear_distillation_forward[2](*operands, beta=problem.beta)
    divergence, entropy, *statistics = (np.asarray(result) for result in results)
    exact = pair_forward_reference(problem)
    errors = Errors(in_norm(divergence, exact.divergence), in_norm(entropy, exact.entropy))
    if not with_gradients:
        return errors
    upstream = np.full(problem.num_positions, 1.0 / problem.num_positions, np.float32)
    inputs: dict[str, Any] = {f"{name}_hbm": statistic for name, statistic in zip(_STATISTICS, statistics, strict=True)}
    inputs["grad_divergence_hbm"] = upstream
    gradients = linear_distillation_backward[2](*operands, **inputs, beta=problem.beta)
    expected = pair_backward_reference(problem, PairUpstream.of_results(exact, upstream))
    # Without a bias there are two: of the input and of the weight.
    pairs = [
        (np.asarray(gradient).astype(np.float64), other)
        for gradient, other in zip(gradients, expected[:2], strict=True)
    ]
    rows = max(float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max()) for a, b in pairs)
    of_input, of_weight = (in_norm(*pair) for pair in pairs)
    return errors._replace(input=of_input, weight=of_weight, worst_row=rows)


def in_norm(result: Array, exact: Array) -> float:
    """The norm of the error over that of the reference."""
    return float(np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact))


def main() -> None:
    """Print the errors of all divergences at several sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--large", action="store_true", help=f"N, Ds, Dt, V = {', '.join(map(str, LARGE))} too: minutes"
    )
    options = parser.parse_args()
    table = Table(title="Error in norm over the norm of the float64 reference, bfloat16, simulated")
    for heading in ("N; Ds, Dt; V", "loss", "teacher", *Errors._fields):
        table.add_column(heading.replace("_", " "), justify="right")
    for sizes in (*SMALL, *([LARGE] if options.large else [])):
        for beta, name in _LOSSES.items():
            for is_near in (False, True):
                errors = errors_of(problem_of(sizes, beta, is_near))
                shown = ("-" if error is None else f"{error:.2e}" for error in errors)
                what = f"{sizes.positions}; {sizes.student_features}, {sizes.teacher_features}; {sizes.classes}"
                table.add_row(what, name, "near" if is_near else "other", *shown)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
