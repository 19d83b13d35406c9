# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The four kernels as one table, their inputs, and what they should give; the same along axis 1 of [O, C, I]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkilib.experimental import softmax
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.softmax import host

DTYPES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32))

BFLOAT16 = ml_dtypes.bfloat16
AXIS = 1
FORWARD = {False: softmax.softmax_forward, True: softmax.log_softmax_forward}
BACKWARD = {False: softmax.softmax_backward, True: softmax.log_softmax_backward}
_FORWARD_REFERENCE = {
    False: (host.softmax_reference, host.softmax_bound),
    True: (host.log_softmax_reference, host.log_softmax_bound),
}
_BACKWARD_REFERENCE = {
    False: (host.softmax_backward_reference, host.softmax_backward_bound),
    True: (host.log_softmax_backward_reference, host.log_softmax_backward_bound),
}
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Kernel:
    """A kernel, its reference and its bound."""

    function: Any
    reference: Callable[..., Any]
    bound: Callable[..., Any]
    is_log: bool
    is_backward: bool

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return str(self.function.__name__)

    def inputs(self, shape: tuple[int, ...], dtype: Any, seed: int = 0, axis: int = -1) -> list[Any]:
        """x, or dy and y, of a type."""
        rng = np.random.default_rng(seed)
        x = 3.0 * rng.standard_normal(shape)
        if not self.is_backward:
            return [x.astype(dtype)]
        of_forward = host.log_softmax_reference if self.is_log else host.softmax_reference
        return [rng.standard_normal(shape).astype(dtype), of_forward(x, axis).astype(dtype)]

    def worst_error(self, result: Any, inputs: list[Any], axis: int = -1) -> float:
        """The largest error as a share of its bound."""
        exact = self.reference(*inputs, axis)
        return float(error_over_bound(result, exact, self.bound(*inputs, axis, result.dtype)).max(initial=0.0))


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(softmax.softmax_forward, host.softmax_reference, host.softmax_bound, False, False),
        Kernel(softmax.log_softmax_forward, host.log_softmax_reference, host.log_softmax_bound, True, False),
        Kernel(
            softmax.softmax_backward,
            host.softmax_backward_reference,
            host.softmax_backward_bound,
            False,
            True,
        ),
        Kernel(
            softmax.log_softmax_backward,
            host.log_softmax_backward_reference,
            host.log_softmax_backward_bound,
            True,
            True,
        ),
    )
}


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
