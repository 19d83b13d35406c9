# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Accuracy of loss and gradients: beside those of PyTorch, on hard inputs, and where float16 ends.

Inputs like those that peers were measured on; forward and backward after each other, and both in one launch, on inputs
that are hard, within derived bounds; hidden states and weights of float16 whose logits, upstream gradients and results
are beyond its range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import (
    choose_linear_tiling,
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.cross_entropy.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear.reference import LinearGradients
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_backward_reference,
    linear_forward_reference,
)
from nkilib.experimental.loss.profiling import profile_linear_launch

from .linear_inputs import (
    BF16,
    FP16,
    FP32,
    PROBLEMS,
    Array,
    Sizes,
    arguments_of,
    normal_problem,
    problem_of,
    upstream_of,
    with_options,
)
from .test_backward import BLOCKS, Launched, launched, lse_of

SIZES = Sizes(256, 512, 4096)
# Relative, of the mean; and of the worst row of dW, where the best peer has 4e-3 to 8e-3 and the others 3e-2.
OF_LOSS, OF_WORST_ROW = 1e-6, 5e-3
KINDS = ("normal", "half at 0.999")
FORMS = ("two launches", "one launch")


@dataclass(frozen=True)
class Computed:
    """The mean loss, and its gradients."""

    loss: float
    input: Array
    weight: Array

    def errors(self, expected: Computed) -> Errors:
        """Against the reference."""
        worst = np.linalg.norm(self.weight - expected.weight, axis=1) / np.linalg.norm(expected.weight, axis=1)
        return Errors(
            abs(self.loss - expected.loss) / expected.loss,
            _relative(self.input, expected.input),
            _relative(self.weight, expected.weight),
            float(worst.max()),
        )


@dataclass(frozen=True)
class Errors:
    """Relative: of the loss, of gradients in norm, of the worst row of dW."""

    loss: float
    input: float
    weight: float
    worst_row: float


def _relative(result: Array, expected: Array) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


@cache
def problem(kind: str) -> LinearProblem:
    """Return the inputs of a kind."""
    return problem_of(kind, SIZES)


@cache
def expected(kind: str) -> Computed:
    """Compute loss and gradients in float64."""
    inputs, scale = problem(kind), 1.0 / SIZES.positions
    forward = linear_forward_reference(inputs)
    result = linear_backward_reference(inputs, BackwardInputs(forward.lse, np.full(SIZES.positions, scale)))
    return Computed(float(forward.loss.mean()), result.input, result.weight)


@cache
def computed(kind: str, form: str) -> Computed:
    """Compute loss and gradients by the kernels, with the default tiling on two cores."""
    inputs, scale = problem(kind), 1.0 / SIZES.positions
    operands = inputs.input, inputs.weight, inputs.targets
    if form == "one launch":
        loss, _, *gradients = linear_cross_entropy_forward_backward[2](*operands, grad_scale=scale)
    else:
        loss, lse = linear_cross_entropy_forward[2](*operands)
        upstream = np.full(SIZES.positions, scale, np.float32)
        gradients = linear_cross_entropy_backward[2](*operands, lse, upstream)
    result = LinearGradients(*(np.asarray(gradient, np.float64) for gradient in gradients), np.zeros(0))
    return Computed(float(np.asarray(loss, np.float64).mean()), result.input, result.weight)


@cache
def of_torch(kind: str) -> Computed:
    """Compute loss and gradients in PyTorch, with bfloat16 products whose logits become float32 for the loss."""
    import torch
    import torch.nn.functional as F

    inputs = problem(kind)
    x, w = (_leaf(values) for values in (inputs.input, inputs.weight))
    loss = F.cross_entropy(F.linear(x, w).float(), torch.from_numpy(inputs.targets).long())
    loss.backward()  # type: ignore[no-untyped-call]
    return Computed(loss.item(), x.grad.double().numpy(), w.grad.double().numpy())


def _leaf(values: Array) -> Any:
    import torch

    return torch.from_numpy(values.astype(np.float32)).bfloat16().requires_grad_()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_float32_logits_and_less(kind: str, form: str) -> None:
    errors, usual = computed(kind, form).errors(expected(kind)), of_torch(kind).errors(expected(kind))
    assert errors.loss <= OF_LOSS
    assert errors.input <= usual.input and errors.weight <= usual.weight
    assert errors.worst_row <= OF_WORST_ROW < usual.worst_row


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_have_the_same_accuracy(kind: str) -> None:
    two, one = (computed(kind, form).errors(expected(kind)) for form in FORMS)
    assert one.input == pytest.approx(two.input, rel=0.05)
    assert one.weight == pytest.approx(two.weight, rel=0.05)


def test_float32_with_steep_logits() -> None:
    """Standard normal operands: logits of spread 22, up to 90. The page says what their float32 errors come from."""
    sizes = Sizes(64, 512, 1024, FP32)
    inputs = normal_problem(sizes, np.random.default_rng(0), spread=float(np.sqrt(sizes.features)))
    upstream = np.full(sizes.positions, 1.0 / sizes.positions, np.float32)
    _, lse = linear_cross_entropy_forward[2](inputs.input, inputs.weight, inputs.targets)
    results = linear_cross_entropy_backward[2](inputs.input, inputs.weight, inputs.targets, lse, upstream)
    of_exact_lse = BackwardInputs(linear_forward_reference(inputs).lse, upstream)
    exact, bounds = linear_gradients_and_bounds(inputs, of_exact_lse)
    for name, values in zip(("input", "weight"), results, strict=False):
        right = np.asarray(values, np.float64)
        reference_of_it, allowed = getattr(exact, name), getattr(bounds, name)
        assert (np.abs(right - reference_of_it) <= allowed).all(), name
        for wrong in (0.0 * right, -right, right[::-1]):
            assert (np.abs(wrong - reference_of_it) > allowed).mean() > 0.5, name


def test_wrong_results_have_errors() -> None:
    right, exact = computed("normal", FORMS[0]), expected("normal")
    for wrong in (
        Computed(0.0, 0.0 * right.input, 0.0 * right.weight),
        Computed(-right.loss, -right.input, -right.weight),
        Computed(2.0 * right.loss, right.input[::-1], right.weight[::-1]),
    ):
        errors = wrong.errors(exact)
        assert min(errors.loss, errors.input, errors.weight, errors.worst_row) > 0.5


# Ragged in all three dimensions: two tiles of positions, two of features, three of classes.
POSITIONS, FEATURES, CLASSES = 150, 160, 310
# Gradients in all types, and both forms in bfloat16; the other combinations are swept.
COMBINED = {("two launches", dtype) for dtype in (BF16, FP16, FP32)} | {("one launch", BF16)}


def _launch(problem: LinearProblem, form: str) -> list[Array]:
    """Loss, lse and all gradients of the mean."""
    operands, scale = (problem.input, problem.weight, problem.targets), 1.0 / POSITIONS
    options = arguments_of(problem)
    if problem.bias is None:
        options["bias_hbm"] = np.zeros(CLASSES, np.float32)
    if form == "one launch":
        results = linear_cross_entropy_forward_backward[2](*operands, grad_scale=scale, **options)
    else:
        loss, lse = linear_cross_entropy_forward[2](*operands, **options)
        upstream = np.full(POSITIONS, scale, np.float32)
        results = (loss, lse, *linear_cross_entropy_backward[2](*operands, lse, upstream, **options))
    return [np.asarray(result) for result in results]


def _ratios(problem: LinearProblem, results: list[Array]) -> list[float]:
    """The worst error of each result over its bound; lse of the gradients is the exact one."""
    forward, bounds = linear_forward_reference(problem), linear_forward_bounds(problem)
    upstream = BackwardInputs(forward.lse, np.full(POSITIONS, np.float32(1.0 / POSITIONS)))
    gradients, of_gradients = linear_gradients_and_bounds(problem, upstream)
    exact: list[Any] = [forward.loss, forward.lse, *gradients]
    allowed: list[Any] = [bounds["loss"], bounds["lse"], *of_gradients]
    return [float(error_over_bound(*item).max()) for item in zip(results, exact, allowed, strict=True)]


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        pytest.param(form, dtype, id=f"{form}-{dtype}", marks=() if (form, dtype) in COMBINED else pytest.mark.sweep)
        for form in FORMS
        for dtype in (BF16, FP16, FP32)
    ],
)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_errors_are_within_their_bounds(kind: str, form: str, dtype: np.dtype[Any]) -> None:
    layout = "dv" if dtype == FP32 else "vd"
    problem = problem_of(kind, Sizes(POSITIONS, FEATURES, CLASSES, dtype), layout=layout)
    results = _launch(problem, form)
    assert max(_ratios(problem, results)) <= 1.0
    if kind != "all ignored":
        assert min(_ratios(problem, [-result for result in results])) > 1.0
        assert min(_ratios(problem, [0 * result for result in results])) > 1.0


@pytest.mark.parametrize("form", FORMS)
def test_nothing_but_zeros_comes_of_ignored_positions(form: str) -> None:
    loss, lse, *gradients = _launch(problem_of("all ignored", Sizes(POSITIONS, FEATURES, CLASSES)), form)
    assert not loss.any() and np.isfinite(lse).all()
    assert all(not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("form", FORMS)
def test_a_masked_class_has_no_gradient_and_takes_no_part(form: str) -> None:
    problem = problem_of("masked classes", Sizes(POSITIONS, FEATURES, CLASSES, FP32))
    assert problem.bias is not None
    masked = np.isneginf(problem.bias)
    weight = problem.weight.copy()
    weight[masked] = 7.0
    other = LinearProblem(problem.input, weight, problem.targets, problem.bias)
    result, of_other = _launch(problem, form), _launch(other, form)
    np.testing.assert_allclose(of_other[0], result[0], rtol=1e-5, atol=1e-6)
    assert not result[3][masked].any() and not result[4][masked].any()


@pytest.mark.parametrize("name", ["softcap", "all"])
@pytest.mark.parametrize("form", FORMS)
def test_masked_classes_have_no_gradient_under_a_cap(form: str, name: str) -> None:
    masks = problem_of("masked classes", Sizes(POSITIONS, FEATURES, CLASSES, FP32))
    problem = replace(with_options(masks, name), bias=masks.bias)
    # A smoothed loss is infinite where a class is masked.
    problem = replace(problem, options=replace(problem.options, label_smoothing=0.0))
    assert problem.bias is not None
    result = _launch(problem, form)
    assert max(_ratios(problem, result)) <= 1.0
    masked = np.isneginf(problem.bias)
    assert not result[3][masked].any() and not result[4][masked].any()


FLOAT16_SIZES = Sizes(140, 48, 260, FP16)
END = 65520.0  # from here on float16 is infinite


def test_logits_may_be_beyond_the_range() -> None:
    """Products stay in float32: logits of 1e6, of which none is left in float16."""
    problem = problem_of("normal", FLOAT16_SIZES)
    problem = replace(problem, input=problem.input * np.float16(500), weight=problem.weight * np.float16(1000))
    loss, lse, *_ = linear_cross_entropy_forward[2](
        problem.input, problem.weight, problem.targets, **arguments_of(problem), **BLOCKS
    )
    exact, bounds = linear_forward_reference(problem), linear_forward_bounds(problem)
    assert np.abs(exact.lse).max() > 10 * END
    assert error_over_bound(np.asarray(loss), exact.loss, bounds["loss"]).max() <= 1.0
    assert error_over_bound(np.asarray(lse), exact.lse, bounds["lse"]).max() <= 1.0


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("power", [-40, -10, 13])
def test_the_size_of_the_upstream_gradient_does_not_matter(power: int, cores: int) -> None:
    """A power of two is put on for the products: a mean over many positions has no p * 2^-30 in float16."""
    problem = problem_of("half at 0.999", FLOAT16_SIZES)
    upstream = upstream_of(problem, lse_of(problem))
    scaled = replace(upstream, grad_loss=upstream.grad_loss * np.float32(2.0**power))
    result, usual = (launched(problem, item, cores, grad_input_float32=True) for item in (scaled, upstream))
    result.check()
    np.testing.assert_array_equal(result.found["input"], usual.found["input"] * np.float32(2.0**power))


def small_gradients(largest: float, layout: str = "vd", cores: int = 2) -> tuple[Launched, Any, Any]:
    """A launch with such upstream gradients, and dX and dW of the same launch before they are rounded."""
    problem = problem_of("normal", FLOAT16_SIZES, layout=layout)
    upstream = upstream_of(problem, lse_of(problem))
    size = np.float32(largest) / np.abs(upstream.grad_loss).max()
    upstream = replace(upstream, grad_loss=upstream.grad_loss * size)
    total = np.zeros(problem.weight.shape, np.float32)
    unrounded = launched(problem, upstream, cores, grad_input_float32=True, grad_weight_sum_hbm=total)
    return launched(problem, upstream, cores), unrounded.found["input"], total


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize("largest", [1e-6, 1e-5, 1e-4])
def test_small_gradients_are_rounded_once_and_lose_no_more_than_that(largest: float, layout: str, cores: int) -> None:
    """The float32 sums lose nothing, whatever their size; float16 drops the digits that it has no numbers for."""
    result, *unrounded = small_gradients(largest, layout, cores)
    result.check()
    for name, sums in zip(("input", "weight"), unrounded, strict=True):
        exact, rounded = getattr(result.expected, name), np.asarray(result.found[name])
        assert np.median(np.abs(exact)) < 2.0**-14  # below the normal numbers
        np.testing.assert_array_equal(rounded, sums.astype(FP16))
        size = np.linalg.norm(exact)
        # G was rounded to float16 once, each number by at most 2^-11 of itself; such errors do not all add up.
        assert np.linalg.norm(sums - exact) <= 2.0**-11 * size
        alone = np.linalg.norm(exact.astype(FP16) - exact)
        assert np.linalg.norm(rounded - exact) <= alone + 2.0**-11 * size


@pytest.mark.parametrize("largest", [1e-6, 1e-4])
@pytest.mark.parametrize("changed", [np.zeros_like, np.negative, lambda array: array.T.reshape(array.shape)])
def test_the_bounds_of_small_gradients_refuse_others(changed: Any, largest: float) -> None:
    result, *_ = small_gradients(largest)
    for name, array in result.found.items():
        with pytest.raises(AssertionError):
            replace(result, found={name: changed(np.asarray(array))}).check()


def test_gradients_beyond_the_range_are_infinite_and_no_nan() -> None:
    problem = problem_of("normal", FLOAT16_SIZES)
    upstream = upstream_of(problem, lse_of(problem))
    result = launched(
        problem, replace(upstream, grad_loss=upstream.grad_loss * np.float32(1e7)), grad_input_float32=True
    )
    weight, exact = np.float32(result.found["weight"]), result.expected.weight
    np.testing.assert_array_equal(np.isinf(weight), np.abs(weight) > 65504)
    assert np.isinf(weight).any() and not np.isnan(weight).any()
    clearly = np.abs(exact) > 1.1 * END
    np.testing.assert_array_equal(weight[clearly], np.copysign(np.inf, exact[clearly]))
    assert np.isfinite(weight[np.abs(exact) < 0.9 * END]).all()
    assert np.isfinite(result.found["input"]).all() and np.abs(result.found["input"]).max() > END


def test_operands_of_float64_are_refused_with_the_remedy() -> None:
    problem = problem_of("normal", FLOAT16_SIZES)
    with pytest.raises(TypeError, match="NKI has no type float64; cast it to float32"):
        linear_cross_entropy_forward[2](problem.input.astype(np.float64), problem.weight, problem.targets)


@pytest.mark.parametrize("direction", ["forward", "backward", "forward_backward"])
def test_modelled_times_are_those_of_bfloat16(direction: str) -> None:
    sizes = 512, 1024, 8192
    half, brain = (choose_linear_tiling(*sizes, dtype, direction) for dtype in (FP16, BF16))
    assert half == brain
    times = {profile_linear_launch(*sizes, str(dtype), direction).time_us for dtype in (FP16, BF16)}
    assert len(times) == 1
