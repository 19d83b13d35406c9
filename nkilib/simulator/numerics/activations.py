# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The activation functions of the Scalar engine, and float64 functions for them that numpy lacks.

- :data:`ACTIVATIONS`, :data:`PARAMETRIC`: the activation functions by name, without and with a parameter;
- :func:`erf`, :func:`erfc`, :func:`softplus`, :func:`sigmoid`, :func:`normal_density`, :func:`normal_distribution`: the
  mathematical functions.

Source: table "Supported Activation Functions" (``nki/api/nki.api.shared.rst``). Outside the valid input range in that
table, the results of hardware are unspecified. The simulator evaluates the mathematical function there too, except
``sin``, whose extrapolation the documentation describes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_Float64s = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
# Takes a float32 array and an array to write the result to; the two may be the same.
Activation = Callable[[Float32s, Float32s], Any]
# Takes its parameter, a number or a column of one a row, in between.
_ParametricActivation = Callable[[Float32s, Any, Float32s], Any]

# Constants of the approximations of GELU (Hendrycks and Gimpel, arXiv 1606.08415, section 2).
_GELU_TANH_CUBIC = 0.044715
_GELU_SIGMOID_SCALE = 1.702
# Elements in float64 that, with a few arrays of results beside them, stay in the second cache of a core.
_CACHED = 8192

# erf(6) differs from 1 by 2e-17, less than a float64 can show.
_ERF_SATURATES_AT = 6.0
_ERF_TERMS = 160
_ERFC_FRACTION_FROM = 2.0
_ERFC_TERMS = 100


def erf(x: _Float64s) -> _Float64s:
    """Return the error function, with an error of a few float64 roundings.

    The series erf(x) = 2/sqrt(pi) * exp(-x^2) * sum over n of 2^n x^(2n+1) / (1 * 3 * ... * (2n+1)) has only positive
    terms, so that nothing cancels (Abramowitz and Stegun 7.1.6).
    """
    clipped = np.clip(x, -_ERF_SATURATES_AT, _ERF_SATURATES_AT)
    square = clipped * clipped
    term = clipped.copy()
    total = clipped.copy()
    for n in range(1, _ERF_TERMS):
        term *= 2.0 * square / (2 * n + 1)
        total += term
    return np.clip(2.0 / np.sqrt(np.pi) * np.exp(-square) * total, -1.0, 1.0)


def erfc(x: _Float64s) -> _Float64s:
    """Return 1 - erf(x), with full relative precision also for large x, where the difference itself would lose digits.

    From ``_ERFC_FRACTION_FROM`` on, the function is computed by the continued fraction exp(-x^2) / sqrt(pi) / (x + 1/2
    / (x + 2/2 / (x + 3/2 / ...))) (Abramowitz and Stegun 7.1.14).
    """
    far = np.maximum(x, _ERFC_FRACTION_FROM)
    fraction = far.copy()
    for n in range(_ERFC_TERMS, 0, -1):
        fraction = far + 0.5 * n / fraction
    tail = np.exp(-far * far) / np.sqrt(np.pi) / fraction
    return np.where(x < _ERFC_FRACTION_FROM, 1.0 - erf(x), tail)


def softplus(x: _Float64s) -> _Float64s:
    """Return log(1 + exp(x)) without overflow, as max(x, 0) + log(1 + exp(-|x|)).

    ``np.logaddexp(0, x)`` gives the same result in six times the time, because it computes one number at a time.
    """
    small = np.abs(x)
    np.exp(np.negative(small, out=small), out=small)
    np.log1p(small, out=small)
    small += np.maximum(x, 0.0)
    return small


def sigmoid(x: _Float64s) -> _Float64s:
    """Return 1 / (1 + exp(-x)).

    If the exponential overflows, the result is 1 / inf = 0, and the exact value is below the smallest float32.
    """
    result = np.negative(x)
    with np.errstate(over="ignore"):
        np.exp(result, out=result)
    result += 1.0
    return np.divide(1.0, result, out=result)


def normal_density(x: _Float64s) -> _Float64s:
    """Return the density of the standard normal distribution."""
    return np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)


def normal_distribution(x: _Float64s) -> _Float64s:
    """Return the distribution function of the standard normal distribution, precise in its tails too."""
    return 0.5 * erfc(-x / np.sqrt(2.0))


def _through_float64(function: Callable[[_Float64s], _Float64s]) -> Activation:
    """Return an activation function that evaluates ``function`` in float64 and rounds the result to float32.

    The activation takes a few rows at a time, so that intermediate values stay in a cache. This is four times as fast
    as one call for a large tile.
    """

    def activation(x: Float32s, out: Float32s) -> None:
        rows = max(1, _CACHED // max(1, x[:1].size))
        for first in range(0, len(x), rows):
            chosen = slice(first, first + rows)
            out[chosen] = function(x[chosen].astype(np.float64))

    return activation


def _with_limits(function: Activation, below: float, above: float) -> Activation:
    """Return ``function`` with the value ``below`` at -inf and ``above`` at +inf, where a formula would compute inf *
    0.
    """

    def activation(x: Float32s, out: Float32s) -> None:
        lowest, highest = x == -np.inf, x == np.inf
        function(x, out)
        out[lowest] = below
        out[highest] = above

    return activation


def _sin(x: _Float64s) -> _Float64s:
    """Return the sine on [-pi, pi], and a cubic that continues it outside this range.

    The documentation gives sin(9.0) = 27.65, which is the value of the Taylor cubic about pi: -(x - pi) + (x - pi)^3 /
    6.
    """
    beyond = np.abs(x) - np.pi
    continued = np.sign(x) * (-beyond + beyond**3 / 6.0)
    return np.where(beyond > 0, continued, np.sin(x))


def _gelu_dx(x: _Float64s) -> _Float64s:
    return normal_distribution(x) + x * normal_density(x)


def _gelu_tanh(x: _Float64s) -> _Float64s:
    # (1 + tanh(u)) / 2 is the sigmoid of 2 u, which keeps its digits where tanh(u) is near -1.
    return x * sigmoid(2.0 * np.sqrt(2.0 / np.pi) * (x + _GELU_TANH_CUBIC * x**3))


def _gelu_sigmoid(x: _Float64s) -> _Float64s:
    return x * sigmoid(_GELU_SIGMOID_SCALE * x)


def _gelu_sigmoid_dx(x: _Float64s) -> _Float64s:
    gate = sigmoid(_GELU_SIGMOID_SCALE * x)
    return gate + _GELU_SIGMOID_SCALE * x * gate * (1.0 - gate)


def _silu_dx(x: _Float64s) -> _Float64s:
    gate = sigmoid(x)
    return gate + x * gate * (1.0 - gate)


ACTIVATIONS: dict[str, Activation] = {
    "copy": lambda x, out: np.copyto(out, x),
    "square": lambda x, out: np.square(x, out=out),
    "exp": lambda x, out: np.exp(x, out=out),
    "log": lambda x, out: np.log(x, out=out),
    "sqrt": lambda x, out: np.sqrt(x, out=out),
    "rsqrt": _through_float64(lambda x: 1.0 / np.sqrt(x)),
    "reciprocal": lambda x, out: np.divide(np.float32(1.0), x, out=out),
    "relu": lambda x, out: np.maximum(x, np.float32(0.0), out=out),
    "abs": lambda x, out: np.absolute(x, out=out),
    "sign": lambda x, out: np.sign(x, out=out),
    "tanh": lambda x, out: np.tanh(x, out=out),
    "arctan": lambda x, out: np.arctan(x, out=out),
    "sin": _through_float64(_sin),
    "sigmoid": _through_float64(sigmoid),
    "softplus": _through_float64(softplus),
    "erf": _through_float64(erf),
    "erf_dx": _through_float64(lambda x: 2.0 / np.sqrt(np.pi) * np.exp(-x * x)),
    "gelu": _with_limits(_through_float64(lambda x: x * normal_distribution(x)), 0.0, np.inf),
    "gelu_dx": _with_limits(_through_float64(_gelu_dx), 0.0, 1.0),
    "gelu_apprx_tanh": _with_limits(_through_float64(_gelu_tanh), 0.0, np.inf),
    "gelu_apprx_sigmoid": _with_limits(_through_float64(_gelu_sigmoid), 0.0, np.inf),
    "gelu_apprx_sigmoid_dx": _with_limits(_through_float64(_gelu_sigmoid_dx), 0.0, 1.0),
    "silu": _with_limits(_through_float64(lambda x: x * sigmoid(x)), 0.0, np.inf),
    "silu_dx": _with_limits(_through_float64(_silu_dx), 0.0, 1.0),
    "mish": _with_limits(_through_float64(lambda x: x * np.tanh(softplus(x))), 0.0, np.inf),
}


def _prelu(x: Float32s, slope: Any, out: Float32s) -> None:
    """Write x where x is positive, else slope * x; a slope of 0 gives relu, also at -inf."""
    scaled = np.multiply(x, slope)
    np.copyto(scaled, np.float32(0.0), where=(x == -np.inf) & (slope == 0))
    np.copyto(out, np.where(x > 0, x, scaled))


# Their parameter (relu_param) is an argument of nisa.activate2 only.
PARAMETRIC: dict[str, _ParametricActivation] = {"prelu": _prelu}
