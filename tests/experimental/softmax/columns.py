# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches along axis 1 of [O, C, I], and how far their results are from exact ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.experimental import softmax
from nkilib.experimental.softmax.host import bounds, reference

BFLOAT16 = ml_dtypes.bfloat16
DTYPES = (BFLOAT16, np.float16, np.float32)
AXIS = 1
FORWARD = {False: softmax.softmax_forward, True: softmax.log_softmax_forward}
BACKWARD = {False: softmax.softmax_backward, True: softmax.log_softmax_backward}

_FORWARD_REFERENCE = {
    False: (reference.softmax_reference, bounds.softmax_bound),
    True: (reference.log_softmax_reference, bounds.log_softmax_bound),
}
_BACKWARD_REFERENCE = {
    False: (reference.softmax_backward_reference, bounds.softmax_backward_bound),
    True: (reference.log_softmax_backward_reference, bounds.log_softmax_backward_bound),
}

Array = npt.NDArray[Any]


def logits(shape: tuple[int, ...], dtype: Any, seed: int = 0, scale: float = 3.0) -> Array:
    """Draw logits from a normal distribution."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def saved_output(shape: tuple[int, ...], dtype: Any, is_log: bool, seed: int = 1) -> Array:
    """Return the output that the forward would have saved."""
    exact, _ = _FORWARD_REFERENCE[is_log]
    return exact(logits(shape, np.float32, seed), AXIS).astype(dtype)


def worst_of_forward(x: Array, is_log: bool, result: Array) -> float:
    """The largest error as a share of its bound."""
    exact, bound = _FORWARD_REFERENCE[is_log]
    return _worst(result, exact(x, AXIS), bound(x, AXIS, result.dtype))


def worst_of_backward(grad: Array, output: Array, is_log: bool, result: Array) -> float:
    """The largest error as a share of its bound."""
    exact, bound = _BACKWARD_REFERENCE[is_log]
    return _worst(result, exact(grad, output, AXIS), bound(grad, output, AXIS, result.dtype))


def _worst(result: Array, exact: Array, bound: Array) -> float:
    assert result.shape == exact.shape
    if result.size == 0:
        return 0.0
    values = result.astype(np.float64)
    same = (values == exact) | (np.isnan(values) & np.isnan(exact))
    with np.errstate(invalid="ignore"):
        ratio = np.where(same, 0.0, np.abs(values - exact) / bound)
    return float(ratio.max())


def same_bits(left: Array, right: Array) -> bool:
    """Whether two arrays are the same, NaN included, but for the payload of a NaN."""
    return left.dtype == right.dtype and np.array_equal(
        left.astype(np.float64), right.astype(np.float64), equal_nan=True
    )
