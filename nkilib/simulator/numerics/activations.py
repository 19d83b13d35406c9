# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The activation functions of the Scalar engine.

Source: table "Supported Activation Functions" (``nki/api/nki.api.shared.rst``). Outside the valid input range that
the table gives, hardware results are unspecified; here the mathematical function is evaluated all the same, except for
``sin``, whose extrapolation the documentation describes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import special_functions as special

Float32s = npt.NDArray[np.float32]
# Takes a float32 array and an array to write the result to; the two may be the same.
Activation = Callable[[Float32s, Float32s], Any]
# Takes its parameter, a number or a column of one a row, in between.
ParametricActivation = Callable[[Float32s, Any, Float32s], Any]

# Constants of the approximations of GELU (Hendrycks and Gimpel, arXiv 1606.08415, section 2).
_GELU_TANH_CUBIC = 0.044715
_GELU_SIGMOID_SCALE = 1.702
# Elements in float64 that, with a few arrays of results beside them, stay in the second cache of a core.
_CACHED = 8192


def _through_float64(function: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]) -> Activation:
    """Return an activation that evaluates a float64 formula, so that its only error is the final rounding.

    The activation takes a few rows at a time, so that intermediate values stay in a cache; this is four times as fast
    as taking a large tile as a whole.
    """

    def activation(x: Float32s, out: Float32s) -> None:
        rows = max(1, _CACHED // max(1, x[:1].size))
        for first in range(0, len(x), rows):
            chosen = slice(first, first + rows)
            out[chosen] = function(x[chosen].astype(np.float64))

    return activation


def _with_limits(function: Activation, below: float, above: float) -> Activation:
    """Return ``function`` with its limits at -inf and +inf filled in, where its formula has the form inf * 0."""

    def activation(x: Float32s, out: Float32s) -> None:
        lowest, highest = x == -np.inf, x == np.inf
        function(x, out)
        out[lowest] = below
        out[highest] = above

    return activation


def _sin(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the sine on [-pi, pi]; outside, the cubic at the end of the range continues.

    The documentation gives sin(9.0) = 27.65 for the extrapolation, which is the Taylor cubic about pi:
    -(x - pi) + (x - pi)^3 / 6.
    """
    beyond = np.abs(x) - np.pi
    continued = np.sign(x) * (-beyond + beyond**3 / 6.0)
    return np.where(beyond > 0, continued, np.sin(x))


def _gelu_dx(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return special.normal_distribution(x) + x * special.normal_density(x)


def _gelu_tanh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # (1 + tanh(u)) / 2 is the sigmoid of 2 u, which keeps its digits where tanh(u) is near -1.
    return x * special.sigmoid(2.0 * np.sqrt(2.0 / np.pi) * (x + _GELU_TANH_CUBIC * x**3))


def _gelu_sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x * special.sigmoid(_GELU_SIGMOID_SCALE * x)


def _gelu_sigmoid_dx(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    gate = special.sigmoid(_GELU_SIGMOID_SCALE * x)
    return gate + _GELU_SIGMOID_SCALE * x * gate * (1.0 - gate)


def _silu_dx(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    gate = special.sigmoid(x)
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
    "sigmoid": _through_float64(special.sigmoid),
    "softplus": _through_float64(special.softplus),
    "erf": _through_float64(special.erf),
    "erf_dx": _through_float64(lambda x: 2.0 / np.sqrt(np.pi) * np.exp(-x * x)),
    "gelu": _with_limits(_through_float64(lambda x: x * special.normal_distribution(x)), 0.0, np.inf),
    "gelu_dx": _with_limits(_through_float64(_gelu_dx), 0.0, 1.0),
    "gelu_apprx_tanh": _with_limits(_through_float64(_gelu_tanh), 0.0, np.inf),
    "gelu_apprx_sigmoid": _with_limits(_through_float64(_gelu_sigmoid), 0.0, np.inf),
    "gelu_apprx_sigmoid_dx": _with_limits(_through_float64(_gelu_sigmoid_dx), 0.0, 1.0),
    "silu": _with_limits(_through_float64(lambda x: x * special.sigmoid(x)), 0.0, np.inf),
    "silu_dx": _with_limits(_through_float64(_silu_dx), 0.0, 1.0),
    "mish": _with_limits(_through_float64(lambda x: x * np.tanh(special.softplus(x))), 0.0, np.inf),
}


def _prelu(x: Float32s, slope: Any, out: Float32s) -> None:
    """Compute ``x`` where it is positive, else ``slope * x``; a slope of 0 gives relu, at -inf too."""
    scaled = np.multiply(x, slope)
    np.copyto(scaled, np.float32(0.0), where=(x == -np.inf) & (slope == 0))
    np.copyto(out, np.where(x > 0, x, scaled))


# Their parameter (relu_param) is an argument of nisa.activate2 only.
PARAMETRIC: dict[str, ParametricActivation] = {"prelu": _prelu}
