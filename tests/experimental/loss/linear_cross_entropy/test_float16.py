# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Hidden states and weights of float16 where the type ends: logits, upstream gradients and results beyond its range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import choose_linear_tiling, linear_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import linear_forward_reference
from nkilib.experimental.loss.profiling import profile_linear_launch
from tests.experimental.loss.linear_cross_entropy.backward.test_backward import BLOCKS, Launched, launched, lse_of
from tests.experimental.loss.linear_cross_entropy.linear_inputs import (
    BF16,
    FP16,
    Sizes,
    arguments_of,
    problem_of,
    upstream_of,
)

SIZES = Sizes(140, 48, 260, FP16)
END = 65520.0  # from here on float16 is infinite


def test_logits_may_be_beyond_the_range() -> None:
    """Products stay in float32: logits of 1e6, of which none is left in float16."""
    problem = problem_of("normal", SIZES)
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
    problem = problem_of("half at 0.999", SIZES)
    upstream = upstream_of(problem, lse_of(problem))
    scaled = replace(upstream, grad_loss=upstream.grad_loss * np.float32(2.0**power))
    result, usual = (launched(problem, item, cores, grad_input_float32=True) for item in (scaled, upstream))
    result.check()
    np.testing.assert_array_equal(result.found["input"], usual.found["input"] * np.float32(2.0**power))


def small_gradients(largest: float, layout: str = "vd", cores: int = 2) -> tuple[Launched, Any, Any]:
    """A launch with such upstream gradients, and dX and dW of the same launch before they are rounded."""
    problem = problem_of("normal", SIZES, layout=layout)
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
    problem = problem_of("normal", SIZES)
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
    problem = problem_of("normal", SIZES)
    with pytest.raises(TypeError, match="NKI has no type float64; cast it to float32"):
        linear_cross_entropy_forward[2](problem.input.astype(np.float64), problem.weight, problem.targets)


@pytest.mark.parametrize("direction", ["forward", "backward", "forward_backward"])
def test_modelled_times_are_those_of_bfloat16(direction: str) -> None:
    sizes = 512, 1024, 8192
    half, brain = (choose_linear_tiling(*sizes, dtype, direction) for dtype in (FP16, BF16))
    assert half == brain
    times = {profile_linear_launch(*sizes, str(dtype), direction).time_us for dtype in (FP16, BF16)}
    assert len(times) == 1
