# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The table of activation functions against float64 formulas, and those that numpy lacks against the `math` module."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator.numerics import activations as special
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


POINTS = np.concatenate([np.linspace(-9, 9, 361), [-1e3, -30.0, -1e-8, -1e-300, 0.0, 1e-300, 1e-8, 30.0, 700.0, 1e3]])


def test_erf() -> None:
    for x, got in zip(POINTS, special.erf(POINTS), strict=True):
        assert got == pytest.approx(math.erf(x), rel=4e-15, abs=0)


def test_erf_is_odd_and_saturates() -> None:
    assert (special.erf(-POINTS) == -special.erf(POINTS)).all()
    assert special.erf(np.array([-np.inf, np.inf])).tolist() == [-1.0, 1.0]
    assert np.isnan(special.erf(np.array([np.nan]))).all()


def test_erf_leaves_its_argument_alone() -> None:
    array = POINTS.copy()
    special.erf(array)
    assert (array == POINTS).all()


def test_softplus() -> None:
    for x, got in zip(POINTS, special.softplus(POINTS), strict=True):
        assert got == pytest.approx(max(x, 0.0) + math.log1p(math.exp(-abs(x))), rel=4e-15, abs=0)


def test_sigmoid() -> None:
    """1 / (1 + exp(-x)) = exp(x) / (1 + exp(x)), each where it does not overflow."""
    for x, got in zip(POINTS, special.sigmoid(POINTS), strict=True):
        expected = 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
        # exp(-softplus) multiplies the rounding of the exponent, up to |x|, into the result.
        assert got == pytest.approx(expected, rel=4e-16 * (4 + abs(x)), abs=0)


def test_normal_density() -> None:
    for x, got in zip(POINTS, special.normal_density(POINTS), strict=True):
        assert got == pytest.approx(math.exp(-x * x / 2) / math.sqrt(2 * math.pi), rel=1e-14, abs=0)


def test_erfc() -> None:
    for x, got in zip(POINTS, special.erfc(POINTS), strict=True):
        assert got == pytest.approx(math.erfc(x), rel=1e-13, abs=0)


def test_erfc_at_the_ends() -> None:
    assert special.erfc(np.array([-np.inf, np.inf])).tolist() == [2.0, 0.0]
    assert np.isnan(special.erfc(np.array([np.nan]))).all()


def test_normal_distribution() -> None:
    for x, got in zip(POINTS, special.normal_distribution(POINTS), strict=True):
        assert got == pytest.approx(math.erfc(-x / math.sqrt(2)) / 2, rel=1e-13 * (1 + x * x), abs=0)
