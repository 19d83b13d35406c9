# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of the kernels on a problem, and checks of their results against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss import (
    linear_distillation_backward,
    linear_distillation_forward,
    linear_distillation_mixture,
)
from nkilib.experimental.loss.linear.reference import EVERY_CLASS, ROUNDOFF
from nkilib.experimental.loss.linear_distillation.host.bounds import (
    mixture_bounds,
    pair_forward_bounds,
    pair_gradients_and_bounds,
)
from nkilib.experimental.loss.linear_distillation.host.reference import (
    ExactMixtureSums,
    ModelProblem,
    PairProblem,
    PairUpstream,
    Statistics,
    mixture_reference,
    pair_forward_reference,
)

Array = npt.NDArray[Any]
RESULTS = (
    "divergence",
    "entropy",
    "moment",
    "student_maximum",
    "student_log_sum",
    "teacher_maximum",
    "teacher_log_sum",
)


class Launch(NamedTuple):
    """How a problem is launched.

    Attributes:
        cores: the number of cores of the launch.
        position_block, class_block: the block sizes of the tiling; None: the default.
        compute_dtype: the type that the operands are rounded to; None for their own.
    """

    cores: int = 2
    position_block: int | None = None
    class_block: int | None = None
    compute_dtype: npt.DTypeLike | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options as keyword arguments of a kernel."""
        arguments = {"position_block": self.position_block, "class_block": self.class_block}
        result: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
        return result if self.compute_dtype is None else {**result, "compute_dtype": np.dtype(self.compute_dtype).name}


def arguments_of(problem: PairProblem) -> dict[str, Any]:
    """Operands and options of a launch that both directions take, by name."""
    results: dict[str, Any] = {}
    for name, model in (("student", problem.student), ("teacher", problem.teacher)):
        results |= {f"{name}_input_hbm": model.input, f"{name}_weight_hbm": model.weight}
        if model.bias is not None:
            results[f"{name}_bias_hbm"] = model.bias
        results |= {f"{name}_weight_layout": model.weight_layout, f"{name}_logit_scale": model.logit_scale}
        results[f"{name}_logit_softcap"] = model.logit_softcap
    for name, vector in (("labels_hbm", problem.labels), ("row_weight_hbm", problem.row_weight)):
        if vector is not None:
            results[name] = vector
    temperature = problem.student.temperature
    name = "temperature" if isinstance(temperature, float) else "temperature_hbm"
    return results | {"beta": problem.beta, name: temperature, "ignore_index": problem.ignore_index}


def rounded(problem: PairProblem, compute_dtype: npt.DTypeLike | None) -> PairProblem:
    """The problem with operands of the type of the products."""
    if compute_dtype is None:
        return problem

    def of_model(model: ModelProblem) -> ModelProblem:
        weight = model.weight.astype(compute_dtype)
        return replace(model, input=model.input.astype(compute_dtype), weight=weight)

    return replace(problem, student=of_model(problem.student), teacher=of_model(problem.teacher))


def in_layouts(problem: PairProblem, student: str, teacher: str) -> PairProblem:
    """The problem, of [V, D], with weights in these layouts."""

    def of_model(model: ModelProblem, layout: str) -> ModelProblem:
        weight = model.weight if layout == "vd" else np.ascontiguousarray(model.weight.T)
        return replace(model, weight=weight, weight_layout=layout)

    return replace(problem, student=of_model(problem.student, student), teacher=of_model(problem.teacher, teacher))


USUAL = Launch()


def launched_forward(problem: PairProblem, launch: Launch = USUAL, **options: Any) -> dict[str, Array]:
    """Results of a forward by name."""
    if problem.labels is not None:
        options = {"with_logprob": True, "with_target": True, **options}
    names = [*RESULTS, *(name for name in ("logprob", "target_logit") if options.get(f"with_{name.split('_')[0]}"))]
    result = linear_distillation_forward[launch.cores](**arguments_of(problem), **launch.options, **options)
    return dict(zip(names, map(np.asarray, result), strict=True))


def worst_errors(results: dict[str, Array], problem: PairProblem) -> dict[str, float]:
    """The largest error of each result as a share of its bound; infinite where one of both is not finite."""
    exact, bounds = pair_forward_reference(problem), pair_forward_bounds(problem)
    return {name: worst_error(value, getattr(exact, name), bounds[name]) for name, value in results.items()}


def worst_error(result: Array, exact: Array, bound: Array) -> float:
    """The largest error as a share of its bound; where the reference is infinite, 0 for the same and else infinite."""
    with np.errstate(invalid="ignore"):
        same = np.isinf(exact) & (result.astype(np.float64) == exact)
        errors = np.where(same, 0.0, np.abs(result.astype(np.float64) - exact) / bound)
    return float(np.where(np.isnan(errors), np.inf, errors).max(initial=0.0))


def check_forward(problem: PairProblem, launch: Launch = USUAL, **options: Any) -> dict[str, Array]:
    """Launch a forward and hold every result to its bound, which those that are wrong throughout exceed."""
    result, expected = launched_forward(problem, launch, **options), rounded(problem, launch.compute_dtype)
    for name, worst in worst_errors(result, expected).items():
        assert worst <= 1.0, (name, worst)
    return result


def float32_statistics(problem: PairProblem) -> tuple[Statistics, Array]:
    """Exact log-sum-exps, as maxima and logs of sums, and the moment, each rounded to float32: what a kernel gets."""
    exact = pair_forward_reference(problem)
    names = ("student_maximum", "student_log_sum", "teacher_maximum", "teacher_log_sum")
    statistics = Statistics(*(getattr(exact, name).astype(np.float32) for name in names))
    return statistics, exact.moment.astype(np.float32)


def upstream_of(problem: PairProblem, with_logprob: bool = True, seed: int = 5) -> PairUpstream:
    """Gradients of the divergence and the log-probability that come to each position, for a mean of them."""
    rng, shape = np.random.default_rng(seed), (problem.num_positions,)
    of_divergence = rng.uniform(0.2, 2.0, shape) / problem.num_positions
    of_logprob = rng.standard_normal(shape) / problem.num_positions
    has_logprob = with_logprob and problem.labels is not None
    statistics, moment = float32_statistics(problem)
    return PairUpstream(
        statistics, moment, of_divergence.astype(np.float32), of_logprob.astype(np.float32) if has_logprob else None
    )


def vectors_of(statistics: Statistics) -> dict[str, Array]:
    """Return the statistics as arguments of a kernel."""
    return {
        "student_maximum_hbm": statistics.student_maximum,
        "student_log_sum_hbm": statistics.student_log_sum,
        "teacher_maximum_hbm": statistics.teacher_maximum,
        "teacher_log_sum_hbm": statistics.teacher_log_sum,
    }


def launched_backward(
    problem: PairProblem, upstream: PairUpstream, launch: Launch = USUAL, **options: Any
) -> dict[str, Array]:
    """Gradients by the field of ``LinearGradients``."""
    arguments = {**arguments_of(problem), **vectors_of(upstream.statistics), "moment_hbm": upstream.moment}
    arguments["grad_divergence_hbm"] = upstream.grad_divergence
    if upstream.grad_logprob is not None:
        arguments["grad_logprob_hbm"] = upstream.grad_logprob
    result = linear_distillation_backward[launch.cores](**arguments, **launch.options, **options)
    wanted = {
        "input": options.get("grad_input_wanted", True),
        "weight": options.get("grad_weight_wanted", True),
        "bias": problem.student.bias is not None and options.get("grad_bias_wanted") in (None, True),
    }
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    results = result if isinstance(result, tuple | list) else (result,)
    return dict(zip(names, map(np.asarray, results), strict=True))


def gradient_errors(
    results: dict[str, Array],
    problem: PairProblem,
    upstream: PairUpstream,
    classes: slice = EVERY_CLASS,
    added_to: Array | None = None,
) -> dict[str, float]:
    """The largest error of each gradient as a share of its bound, for a problem with operands of the products' type."""
    types = {f"{name}_dtype": results[name].dtype for name in ("input", "weight") if name in results}
    exact, bounds = pair_gradients_and_bounds(problem, upstream, classes, **types)
    if added_to is not None:
        total = exact.weight + added_to
        exact, bounds = exact._replace(weight=total), bounds._replace(weight=bounds.weight + ROUNDOFF * np.abs(total))
    return {name: worst_error(value, getattr(exact, name), getattr(bounds, name)) for name, value in results.items()}


def check_backward(
    problem: PairProblem, launch: Launch = USUAL, adds: bool = False, **options: Any
) -> dict[str, Array]:
    """Launch a backward, which may add dW to a sum, and hold every gradient to its bound."""
    expected = rounded(problem, launch.compute_dtype)
    upstream, start = upstream_of(expected), None
    if adds:
        start = np.random.default_rng(6).standard_normal(problem.student.weight.shape).astype(np.float32)
        options = {**options, "grad_weight_sum_hbm": start.copy()}
    result = launched_backward(problem, upstream, launch, **options)
    for name, worst in gradient_errors(result, expected, upstream, added_to=start).items():
        assert worst <= 1.0, (name, worst)
    return result


def check_mixture(problem: PairProblem, launch: Launch = USUAL) -> ExactMixtureSums:
    """Launch the sums of a mixture, with log-sum-exps of all classes of the problem, and hold them to their bounds."""
    expected = rounded(problem, launch.compute_dtype)
    statistics, _ = float32_statistics(expected)
    arguments = arguments_of(problem)
    for name in ("labels_hbm", "row_weight_hbm", "ignore_index"):
        arguments.pop(name, None)
    returned = linear_distillation_mixture[launch.cores](**arguments, **vectors_of(statistics), **launch.options)
    results = ExactMixtureSums(*map(np.asarray, returned))
    exact, bounds = mixture_reference(expected, statistics), mixture_bounds(expected, statistics)
    for name, value, other, bound in zip(ExactMixtureSums._fields, results, exact, bounds, strict=True):
        worst = worst_error(value, other, bound)
        assert worst <= 1.0, (name, worst)
    return results


def check_wrong_results_are_told(results: dict[str, Array], problem: PairProblem, names: tuple[str, ...]) -> None:
    """All-zero, sign-flipped and reversed results exceed the bounds."""
    for change in (np.zeros_like, np.negative, lambda item: item[::-1]):
        wrong = worst_errors({name: change(results[name]) for name in names}, problem)
        assert all(worst > 1.0 for worst in wrong.values()), wrong
