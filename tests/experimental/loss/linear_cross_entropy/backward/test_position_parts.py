# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""More positions than a launch keeps: split by the kernels, here from fewer positions on than usual."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import linear_cross_entropy_backward, linear_cross_entropy_forward
from nkilib.experimental.loss.linear.shared.sizes import position_parts
from tests.experimental.loss.linear_cross_entropy.backward.test_backward import launched, lse_of
from tests.experimental.loss.linear_cross_entropy.forward.forward_checks import WANTED, Launch
from tests.experimental.loss.linear_cross_entropy.linear_inputs import (
    BF16,
    FP16,
    FP32,
    Sizes,
    arguments_of,
    problem_of,
    upstream_of,
    with_options,
)
from tests.experimental.loss.linear_cross_entropy.test_one_launch import launched as launched_together

# Three parts of 256 positions, or two and a rest.
LIMITS = PlanLimits(positions=256)
POSITIONS = [768, 700]


@pytest.mark.parametrize(
    ("positions", "layout", "dtype", "name"),
    [(768, "vd", BF16, "all"), (700, "dv", BF16, "all"), (700, "vd", FP32, "bias"), (768, "dv", FP16, "none")],
    ids=str,
)
def test_gradients_of_parts(positions: int, layout: str, dtype: Any, name: str) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(positions, 200, 700, dtype), layout=layout), name)
    upstream = upstream_of(problem, lse_of(problem), further=True)
    with shrunk(LIMITS):
        assert position_parts(positions, 200).is_split
        launched(problem, upstream).check()
        launched(problem, upstream, cores=1, position_block=None, class_block=None).check()


@pytest.mark.parametrize("positions", POSITIONS)
def test_loss_and_gradients_of_parts_in_one_launch(positions: int) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(positions, 64, 300, BF16)), "all")
    with shrunk(LIMITS):
        launched_together(problem, position_block=None, class_block=None).check()


@pytest.mark.parametrize("positions", POSITIONS)
def test_rows_are_those_of_a_launch_that_is_not_split(positions: int) -> None:
    """The results of the forward, and dX, are bitwise identical to those of the launch that is not split."""
    problem = with_options(problem_of("30% ignored", Sizes(positions, 200, 900, BF16)), "bias")
    launch = Launch(position_block=256, class_block=128, wanted=WANTED)
    whole = launch.results(problem)
    upstream = upstream_of(problem, whole["lse"])
    blocks = {"position_block": 256, "class_block": 256}
    gradients = launched(problem, upstream, **blocks).found
    with shrunk(LIMITS):
        split = launch.results(problem)
        of_parts = launched(problem, upstream, **blocks).found
    assert split.keys() == whole.keys()
    for name, value in split.items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
    np.testing.assert_array_equal(of_parts["input"], gradients["input"])
    assert (of_parts["weight"] != gradients["weight"]).mean() < 0.05


@pytest.mark.parametrize("layout", ["vd", "dv"])
def test_the_weight_gradient_is_added_to_a_sum(layout: str) -> None:
    problem = problem_of("normal", Sizes(700, 200, 700, BF16), layout=layout)
    upstream = upstream_of(problem, lse_of(problem))
    start = np.random.default_rng(4).standard_normal(problem.weight.shape).astype(np.float32)
    with shrunk(LIMITS):
        result = launched(problem, upstream, grad_weight_sum_hbm=start.copy())
    added = replace(result, found={**result.found, "weight": result.found["weight"].astype(np.float64) - start})
    rounding = 2.0**-22 * (np.abs(start) + np.abs(result.found["weight"]))
    replace(added, bounds=result.bounds._replace(weight=result.bounds.weight + rounding)).check()


@pytest.mark.parametrize("wanted", ["input", "weight", "bias"])
def test_one_gradient_alone(wanted: str) -> None:
    problem = with_options(problem_of("normal", Sizes(700, 64, 300, BF16)), "bias")
    upstream = upstream_of(problem, lse_of(problem))
    flags = {f"grad_{name}_wanted": name == wanted for name in ("input", "weight", "bias")}
    arguments = (problem.input, problem.weight, problem.targets, upstream.lse, upstream.grad_loss)
    with shrunk(LIMITS):
        every = linear_cross_entropy_backward[2](*arguments, **arguments_of(problem))
        (alone,) = linear_cross_entropy_backward[2](*arguments, **arguments_of(problem), **flags)
    np.testing.assert_array_equal(alone, dict(zip(("input", "weight", "bias"), every, strict=True))[wanted])


def test_operands_of_another_type() -> None:
    problem = with_options(problem_of("normal", Sizes(700, 200, 700, FP32)), "bias")
    rounded = replace(problem, input=problem.input.astype(BF16), weight=problem.weight.astype(BF16))
    upstream = upstream_of(rounded, lse_of(rounded))
    arguments = {"position_block": 256, "class_block": 256}
    with shrunk(LIMITS):
        expected = launched(rounded, upstream, **arguments).found
        operands = (problem.input, problem.weight, problem.targets, upstream.lse, upstream.grad_loss)
        result = linear_cross_entropy_backward[2](*operands, problem.bias, compute_dtype=BF16, **arguments)
        loss, lse = linear_cross_entropy_forward[2](*operands[:3], problem.bias, compute_dtype=BF16)
    np.testing.assert_array_equal(result[0].astype(BF16), expected["input"])
    np.testing.assert_array_equal(result[1].astype(BF16), expected["weight"])
    np.testing.assert_array_equal(result[2], expected["bias"])
    np.testing.assert_allclose(lse, upstream.lse, rtol=1e-6)
    assert np.isfinite(loss).all()


def test_parts_are_as_equal_as_tiles_can_be() -> None:
    assert position_parts(65_536, 4096) == (65_536, 1, 0)
    assert position_parts(131_072, 1024) == (16_384, 8, 0)
    assert position_parts(65_537, 4096) == (7296, 8, 7169)
    for positions, features in ((65_537, 16), (70_001, 16_384), (10**6, 8192)):
        parts = position_parts(positions, features)
        assert parts.is_split and parts.whole * parts.size + parts.rest == positions
        assert parts.size % 128 == 0 and parts.size * features <= 4096 * 8192 and parts.size <= 16_384
