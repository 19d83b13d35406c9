# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The table of activation functions against float64 formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator.numerics.activations import ACTIVATIONS, PARAMETRIC

from ..activation_formulas import CASES, is_close


def evaluate(name: str, *points: float) -> list[float]:
    values = np.array(points, np.float32)
    out = np.empty_like(values)
    with np.errstate(all="ignore"):
        ACTIVATIONS[name](values, out)
    return [float(x) for x in out]


def test_the_table_is_the_documented_one() -> None:
    names = (
        "copy square sigmoid relu prelu gelu gelu_dx gelu_apprx_tanh gelu_apprx_sigmoid gelu_apprx_sigmoid_dx silu "
        "silu_dx tanh softplus mish erf erf_dx exp log sin arctan sqrt rsqrt reciprocal sign abs"
    )
    documented = set(names.split(" "))
    assert set(ACTIVATIONS) == set(CASES)
    assert set(ACTIVATIONS) | set(PARAMETRIC) == documented
    assert set(PARAMETRIC) == {"prelu"}
    for name in documented:
        assert repr(getattr(nl, name)) == f"nl.{name}"


@pytest.mark.parametrize("name", CASES)
def test_values_inside_the_valid_range(name: str) -> None:
    points = [float(np.float32(x)) for x in CASES[name].points]
    for x, result in zip(points, evaluate(name, *points), strict=True):
        assert is_close(name, x, result), (x, result, CASES[name].formula(x))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.below is not None])
def test_values_at_the_infinities(name: str) -> None:
    assert evaluate(name, -math.inf, math.inf) == [CASES[name].below, CASES[name].above]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.below is not None])
def test_values_far_out_are_near_the_limits(name: str) -> None:
    """Nothing overflows to NaN on the way from the ordinary values to infinity."""
    far = evaluate(name, -3e38, -1e30, 1e30, 3e38)
    assert not any(math.isnan(value) for value in far)
    for value, limit in ((far[0], CASES[name].below), (far[3], CASES[name].above)):
        assert value == limit or (math.isinf(limit or 0.0) and abs(value) >= 1e38 and value * (limit or 0.0) > 0)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.25, -2.0])
def test_prelu(slope: float, in_place: bool) -> None:
    """`x` where it is positive, else `slope * x`, whose limit at -inf is 0 for a slope of 0."""
    x = np.array([-math.inf, -4.0, 0.0, 3.0, math.inf, math.nan], np.float32)
    out = x if in_place else np.empty_like(x)
    with np.errstate(invalid="ignore"):
        PARAMETRIC["prelu"](x, np.float32(slope), out)
    assert out[:5].tolist() == [-math.inf * slope if slope else 0.0, -4 * slope, 0.0, 3.0, math.inf]
    assert math.isnan(out[5])


@pytest.mark.parametrize("name", sorted(set(CASES) - {"relu"}))
def test_nan_stays_nan(name: str) -> None:
    assert math.isnan(evaluate(name, math.nan)[0])


@pytest.mark.parametrize("name", CASES)
def test_the_result_may_overwrite_the_input(name: str) -> None:
    points = np.array(CASES[name].points, np.float32)
    inplace = points.copy()
    ACTIVATIONS[name](inplace, inplace)
    assert inplace.tolist() == evaluate(name, *points.tolist())


def test_sine_continues_as_a_cubic_beyond_pi() -> None:
    """The documentation: sin(9.0) gives about 27.65, not 0.41. The slope at the seam is that of the sine, -1."""
    at_nine, opposite = evaluate("sin", 9.0, -9.0)
    assert round(at_nine, 2) == 27.65
    assert opposite == -at_nine
    beyond = np.float32(math.pi + 0.9) - math.pi
    assert evaluate("sin", math.pi + 0.9)[0] == pytest.approx(-beyond + beyond**3 / 6, rel=2**-22)
    below, above = evaluate("sin", math.pi - 1e-3, math.pi + 1e-3)
    assert below == pytest.approx(1e-3, rel=1e-3)
    assert above == pytest.approx(-1e-3, rel=1e-3)


def test_exp_overflows_to_infinity_and_underflows_to_zero() -> None:
    assert evaluate("exp", 89.0, -104.0) == [math.inf, 0.0]


def test_values_at_the_edge_of_their_domain() -> None:
    """Outside the documented ranges the mathematical function is evaluated."""
    assert evaluate("log", 0.0) == [-math.inf]
    assert evaluate("reciprocal", 0.0) == [math.inf]
    assert evaluate("sqrt", 0.0) == [0.0]
    assert evaluate("rsqrt", 0.0) == [math.inf]
    assert all(math.isnan(evaluate(name, -1.0)[0]) for name in ("log", "sqrt", "rsqrt"))
