# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Derived bounds of the distance between the kernels and :mod:`.reference`. For host code; needs numpy only.

u = 2^-23, so that one rounding to float32 changes a value v by at most u / 2 * |v|; m is the maximum of a row x of C
elements, d the sum of exp(x - m), p = exp(x - m) / d. y is the result of the forward, dy its gradient, and dx the
result of the backward.

- d: its error is at most 16 u d, as in ``cross_entropy/host/bounds.py``, whose sums are formed in the same way. Its
  sources are the rounding of arguments, u / 2 * sum p (m - x) <= u / 2 * log C; exp, for which 2.6 u are allowed
  (numpy's is off by 1.8 u on any CPU), and 2.6 u more for the weight of a piece or a partition; and the sum.
- log-softmax: y = (x - m) - log d. The difference and the result are rounded, half a unit each of their values, and a
  relative error of d is an absolute error of log d: 16 u max(1, m - x, log d).
- softmax: y = exp(x - m) * (1 / d). The argument is rounded, which adds u / 2 * (m - x) of the exponential; exp, 1 / d
  and the product add 4 u: 16 u y max(1, m - x).
- s = sum(dy) of log-softmax, or sum(y dy) of softmax: 16 u sum |dy|, or 16 u sum |y dy|, at most, for independent
  roundings of up to 2^18 additions, as in ``cross_entropy/host/bounds.py``; along another axis than the last one at
  most 1,024 elements are added at a time, and then those sums.
- gradients: dx = dy - exp(y) s and dx = y (dy - s) round three times more, each u / 2 of a term.

Results are rounded to their type once: half a unit of the last place, or of the smallest subnormal number. Float32
results may flush to zero: ``SMALLEST_NORMAL``. The bounds hold for the simulator; they were never measured on hardware.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.experimental.softmax.host.reference import (
    Float64Array,
    log_softmax_backward_reference,
    log_softmax_reference,
    softmax_backward_reference,
    softmax_reference,
)

ROW_UNITS: Final = 16.0
TERM_UNITS: Final = 2.0


def softmax_bound(x: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``softmax_forward``."""
    exact = softmax_reference(x, axis)
    with np.errstate(all="ignore"):
        relative = np.where(exact == 0.0, 0.0, ROW_UNITS * UNIT * np.maximum(1.0, _below_maximum(x, axis)))
        return relative * exact + _stored(exact, dtype)


def log_softmax_bound(x: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``log_softmax_forward``."""
    exact = log_softmax_reference(x, axis)
    below = _below_maximum(x, axis)
    with np.errstate(all="ignore"):
        largest = np.maximum(np.maximum(1.0, below), -exact - below)
        return ROW_UNITS * UNIT * largest + _stored(exact, dtype)


def softmax_backward_bound(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``softmax_backward``."""
    exact = softmax_backward_reference(grad, output, axis)
    dy, y = np.abs(grad.astype(np.float64)), np.abs(output.astype(np.float64))
    with np.errstate(all="ignore"):
        terms = TERM_UNITS * dy + ROW_UNITS * (y * dy).sum(axis, keepdims=True)
        return UNIT * y * terms + _stored(exact, dtype)


def log_softmax_backward_bound(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``log_softmax_backward``."""
    exact = log_softmax_backward_reference(grad, output, axis)
    dy, y = np.abs(grad.astype(np.float64)), output.astype(np.float64)
    with np.errstate(all="ignore"):
        terms = TERM_UNITS * dy + ROW_UNITS * np.exp(y) * dy.sum(axis, keepdims=True)
        return UNIT * terms + _stored(exact, dtype)


def _below_maximum(x: npt.NDArray[Any], axis: int) -> Float64Array:
    exact = x.astype(np.float64)
    with np.errstate(all="ignore"):
        distances: Float64Array = exact.max(axis, keepdims=True) - exact
    return distances


def _stored(exact: Float64Array, dtype: Any) -> Float64Array:
    return rounding(exact, dtype) + SMALLEST_NORMAL
