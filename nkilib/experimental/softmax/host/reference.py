# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 reference results of the kernels, from the very inputs that the kernels get. For host code; needs numpy
only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


def softmax_reference(x: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``exp(x - m) / sum(exp(x - m))`` with m the maximum along the axis; NaN where a row has a NaN, +inf, or
    nothing but -inf.
    """
    with np.errstate(all="ignore"):
        exponentials = np.exp(_shifted(x, axis))
        result: Float64Array = exponentials / exponentials.sum(axis, keepdims=True)
    return result


def log_softmax_reference(x: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``(x - m) - log(sum(exp(x - m)))`` with m the maximum along the axis."""
    with np.errstate(all="ignore"):
        shifted = _shifted(x, axis)
        result: Float64Array = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    return result


def softmax_backward_reference(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``y (dy - sum(y dy))`` for dy = ``grad`` and y = ``output``, the rounded result of the forward."""
    dy, y = grad.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        result: Float64Array = y * (dy - (y * dy).sum(axis, keepdims=True))
    return result


def log_softmax_backward_reference(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``dy - exp(y) sum(dy)`` for dy = ``grad`` and y = ``output``, the rounded result of the forward."""
    dy, y = grad.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        result: Float64Array = dy - np.exp(y) * dy.sum(axis, keepdims=True)
    return result


def _shifted(x: npt.NDArray[Any], axis: int) -> Float64Array:
    exact = x.astype(np.float64)
    shifted: Float64Array = exact - exact.max(axis, keepdims=True)
    return shifted
