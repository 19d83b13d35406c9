# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The activation functions of the documentation's table in float64, one number at a time, with the `math` module only.

Nothing here is shared with the simulator. Derivatives are central differences of the functions themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

Formula = Callable[[float], float]

# A central difference errs by STEP^2 / 6 times the third derivative, below 1e-10 here, and by rounding, 1e-11.
STEP = 1e-5
DERIVATIVE_ERROR = 2e-10


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def gelu(x: float) -> float:
    return 0.5 * x * math.erfc(-x / math.sqrt(2.0))


def gelu_tanh(x: float) -> float:
    """0.5 x (1 + tanh(u)), and 1 + tanh(u) = 1 - tanh(-u) = 2 exp(2 u) / (1 + exp(2 u)) where it is small."""
    u = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + math.tanh(u)) if u > -1 else x * math.exp(2.0 * u) / (1.0 + math.exp(2.0 * u))


def gelu_sigmoid(x: float) -> float:
    return x * sigmoid(1.702 * x)


def silu(x: float) -> float:
    return x * sigmoid(x)


def derivative(function: Formula) -> Formula:
    return lambda x: (function(x + STEP) - function(x - STEP)) / (2.0 * STEP)


class Case(NamedTuple):
    """One row of the table.

    Attributes:
        formula: the function.
        points: inputs inside the documented valid range, its ends included where it has any.
        below: value at -inf, None where the valid range does not reach it.
        above: value at +inf, None where the valid range does not reach it.
        error: absolute error of the formula itself.
    """

    formula: Formula
    points: tuple[float, ...]
    below: float | None
    above: float | None
    error: float = 0.0


_LINE = (
    -1e4,
    -88.0,
    -20.0,
    -8.0,
    -3.3,
    -1.0,
    -0.5,
    -1e-3,
    -1e-20,
    0.0,
    1e-20,
    1e-3,
    0.7,
    1.0,
    2.5,
    5.0,
    12.0,
    88.0,
    1e4,
)
# Central differences of values up to 1e4 lose digits; the derivatives are constant there.
_NEAR = tuple(x for x in _LINE if abs(x) < 100)
_INF = math.inf

CASES: dict[str, Case] = {
    "copy": Case(lambda x: x, _LINE, -_INF, _INF),
    "square": Case(lambda x: x * x, _LINE, _INF, _INF),
    "sigmoid": Case(sigmoid, _NEAR, 0.0, 1.0),
    "relu": Case(lambda x: max(x, 0.0), _LINE, 0.0, _INF),
    "gelu": Case(gelu, _LINE, 0.0, _INF),
    "gelu_dx": Case(derivative(gelu), _NEAR, 0.0, 1.0, DERIVATIVE_ERROR),
    "gelu_apprx_tanh": Case(gelu_tanh, (*_LINE, -7.0), 0.0, _INF),
    "gelu_apprx_sigmoid": Case(gelu_sigmoid, _LINE[2:], 0.0, _INF),
    "gelu_apprx_sigmoid_dx": Case(derivative(gelu_sigmoid), _NEAR, 0.0, 1.0, DERIVATIVE_ERROR),
    "silu": Case(silu, _NEAR, 0.0, _INF),
    "silu_dx": Case(derivative(silu), _NEAR, 0.0, 1.0, DERIVATIVE_ERROR),
    "tanh": Case(math.tanh, _LINE, -1.0, 1.0),
    "softplus": Case(softplus, _NEAR, 0.0, _INF),
    "mish": Case(lambda x: x * math.tanh(softplus(x)), _NEAR, 0.0, _INF),
    "erf": Case(math.erf, _LINE, -1.0, 1.0),
    "erf_dx": Case(derivative(math.erf), _NEAR, 0.0, 0.0, DERIVATIVE_ERROR),
    "exp": Case(math.exp, (-87.0, -20.0, -1.0, -1e-6, 0.0, 1e-6, 0.5, 10.0, 88.5), 0.0, _INF),
    "log": Case(math.log, (2.0**-64, 1e-6, 0.5, 0.999, 1.0, 1.001, 2.0, 1e9, 2.0**64), None, None),
    "sin": Case(math.sin, (-math.pi, -3.0, -1.5, -1e-5, 0.0, 0.1, 1.0, 2.0, math.pi), None, None),
    "arctan": Case(math.atan, (-math.pi / 2, -1.0, -1e-4, 0.0, 0.3, 1.0, math.pi / 2), None, None),
    "sqrt": Case(math.sqrt, (2.0**-116, 1e-10, 0.5, 2.0, 1e10, 2.0**118), None, None),
    "rsqrt": Case(lambda x: 1.0 / math.sqrt(x), (2.0**-87, 1e-5, 0.3, 1.0, 7.0, 2.0**97), None, None),
    "reciprocal": Case(lambda x: 1.0 / x, (-(2.0**42), -3.0, -(2.0**-42), 2.0**-42, 0.7, 2.0**42), None, None),
    "sign": Case(lambda x: math.copysign(1.0, x) if x else 0.0, _LINE, -1.0, 1.0),
    "abs": Case(abs, _LINE, _INF, _INF),
}


def is_close(name: str, x: float, result: float) -> bool:
    """Whether a float32 result is right to 4 units in the last place, for a float32 input `x`."""
    expected = CASES[name].formula(x)
    return abs(result - expected) <= 4 * 2.0**-23 * abs(expected) + 2.0**-126 + CASES[name].error
