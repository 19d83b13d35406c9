# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions of one operand: activations, angles of any size, rounding and negation."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl

from ..activation_formulas import CASES, is_close
from ..kernels import Result, normal, run
from .calls import call, outcome, wide

F32, I32 = np.float32, np.int32


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"copy", "sin"}))
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_activation_functions(name: str, target: str) -> None:
    """Against the `math` module in float64: 4 units in the last place of a float32."""
    points = np.array([CASES[name].points], F32)
    result = call(lambda x: getattr(nl, name)(x), points, target=target)
    for x, got in zip(points[0], result[0], strict=True):
        assert is_close(name, float(x), float(got)), (x, got)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("scale", [0.01, 3.0, 40.0, 2e5])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_angles_of_any_size(name: str, scale: float, target: str) -> None:
    """Sine and cosine within 2^-21; the error of the tangent grows with its derivative 1 + tan^2."""
    x = normal(16, 200, seed=3, scale=scale / 3)
    reference = getattr(np, name)(wide(x))
    got = wide(call(lambda x: getattr(nl, name)(x), x, target=target))
    budget = 2.0**-21 * (2 * (1 + reference**2) if name == "tan" else 1)
    assert np.all(np.abs(got - reference) <= budget)


def test_the_operator_sin_is_right_on_one_turn_only_and_the_function_everywhere() -> None:
    """sin(9.0) of the table of activation functions is 27.65; the function reduces the angle first."""
    nine = np.full((1, 1), 9.0, F32)
    operator = run(lambda dst, x: nisa.activation(dst, nl.sin, x), [nine], Result((1, 1)))
    assert abs(float(operator[0, 0]) - 27.65) < 0.01
    assert abs(float(call(nl.sin, nine)[0, 0]) - math.sin(9.0)) <= 2.0**-21


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_types_of_angles(name: str) -> None:
    half = np.full((1, 2), 0.5, ml_dtypes.bfloat16)
    assert outcome(lambda x: getattr(nl, name)(x), half).dtype == nl.bfloat16
    got = outcome(lambda x: getattr(nl, name)(x, dtype=nl.float32), half)
    assert got.dtype == nl.float32 and np.all(np.abs(wide(got.values) - getattr(math, name)(0.5)) <= 2.0**-20)


def test_special_angles() -> None:
    x = np.array([[0.0, math.pi / 2, -math.pi / 2, math.pi, 100 * math.pi, math.nan]], F32)
    for name in ("sin", "cos"):
        got = call(lambda x: getattr(nl, name)(x), x)  # noqa: B023
        assert np.all(np.abs(got[0, :5] - getattr(np, name)(wide(x))[0, :5]) <= 2.0**-21) and math.isnan(got[0, 5])


ROUNDED = [0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.5, 3.2, 3.7, 1e-30, 8388607.5, 8388608.0, 16777215.0, 1e10, 3e38, math.inf]


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc"])
def test_rounding(name: str) -> None:
    """Exact: fractions of both signs, the last float with a fraction, integers of any size, infinities."""
    x = np.array([ROUNDED, [-value for value in ROUNDED]], F32)
    assert call(lambda x: getattr(nl, name)(x), x).tolist() == getattr(np, name)(wide(x)).tolist()
    assert np.isnan(call(lambda x: getattr(nl, name)(x), np.full((1, 1), math.nan, F32))).all()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_rounding_of_any_float(values: list[float]) -> None:
    x = np.array([values], F32)
    for name in ("floor", "ceil", "trunc"):
        assert call(lambda x: getattr(nl, name)(x), x).tolist() == getattr(np, name)(wide(x)).tolist()  # noqa: B023


def test_integers_are_rounded_already() -> None:
    x = np.array([[2**30 + 1, -5]], I32)
    for name in ("floor", "ceil", "trunc"):
        assert call(lambda x: getattr(nl, name)(x), x).tolist() == x.tolist()  # noqa: B023
    assert call(lambda x: nl.floor(x, dtype=nl.int8), np.array([[-2.5, 300.0]], F32)).tolist() == [[-3, 127]]


def test_negation() -> None:
    x = np.array([[5.0, -3.0, math.inf]], F32)
    assert call(nl.negative, x).tolist() == [[-5, 3, -math.inf]]
    assert call(nl.negative, np.array([[7, -8]], np.int8)).tolist() == [[-7, 8]]
    assert outcome(lambda x: nl.negative(x, dtype=nl.float16), x).dtype == nl.float16
    assert call(nl.invert, np.array([[0, -1, 5]], I32)).tolist() == [[-1, 0, -6]]
    assert call(nl.invert, np.array([[0, 255, 5]], np.uint8)).tolist() == [[255, 0, 250]]
    assert call(nl.invert, np.array([[False, True]])).tolist() == [[1, 0]]


def test_logical_not_is_exclusive_or_with_one() -> None:
    """It is the negation for truth values; the documentation sends others to nl.equal(x, 0)."""
    assert call(nl.logical_not, np.array([[0, 1]], np.uint8)).tolist() == [[1, 0]]
    assert call(nl.logical_not, np.array([[2, 5]], np.uint8)).tolist() == [[3, 4]]
    assert call(nl.logical_not, np.array([[0.0, 1.0]], F32)).tolist() == [[1, 0]]
