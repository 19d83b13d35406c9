# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The four kernels as one table, their inputs, and what they should give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nkilib.experimental import softmax
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.softmax.host import bounds, reference

DTYPES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32))


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
        of_forward = reference.log_softmax_reference if self.is_log else reference.softmax_reference
        return [rng.standard_normal(shape).astype(dtype), of_forward(x, axis).astype(dtype)]

    def worst_error(self, result: Any, inputs: list[Any], axis: int = -1) -> float:
        """The largest error as a share of its bound."""
        exact = self.reference(*inputs, axis)
        return float(error_over_bound(result, exact, self.bound(*inputs, axis, result.dtype)).max(initial=0.0))


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(softmax.softmax_forward, reference.softmax_reference, bounds.softmax_bound, False, False),
        Kernel(softmax.log_softmax_forward, reference.log_softmax_reference, bounds.log_softmax_bound, True, False),
        Kernel(
            softmax.softmax_backward, reference.softmax_backward_reference, bounds.softmax_backward_bound, False, True
        ),
        Kernel(
            softmax.log_softmax_backward,
            reference.log_softmax_backward_reference,
            bounds.log_softmax_backward_bound,
            True,
            True,
        ),
    )
}
