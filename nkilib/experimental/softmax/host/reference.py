# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the kernels should give, in float64 from the very inputs that they get: numpy only, for host code."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


def softmax_reference(x: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """``exp(x - m) / sum(exp(x - m))``; NaN where a row has a NaN, +inf, or nothing but -inf."""
    with np.errstate(all="ignore"):
        exponentials = np.exp(_shifted(x, axis))
        found: Float64Array = exponentials / exponentials.sum(axis, keepdims=True)
    return found


def log_softmax_reference(x: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """``(x - m) - log(sum(exp(x - m)))``."""
    with np.errstate(all="ignore"):
        shifted = _shifted(x, axis)
        found: Float64Array = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    return found


def softmax_backward_reference(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """``y (dy - sum(y dy))``, from the rounded output."""
    dy, y = grad.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        found: Float64Array = y * (dy - (y * dy).sum(axis, keepdims=True))
    return found


def log_softmax_backward_reference(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """``dy - exp(y) sum(dy)``, from the rounded output."""
    dy, y = grad.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        found: Float64Array = dy - np.exp(y) * dy.sum(axis, keepdims=True)
    return found


def _shifted(x: npt.NDArray[Any], axis: int) -> Float64Array:
    exact = x.astype(np.float64)
    found: Float64Array = exact - exact.max(axis, keepdims=True)
    return found
