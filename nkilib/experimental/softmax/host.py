# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of softmax and log-softmax: the kernels to launch, with guarantees and work, float64 references and
bounds.

For each kernel of :mod:`.kernels`, such as ``softmax_forward``, there are a guarantee (``SOFTMAX_FORWARD``), a
reference (``softmax_reference``) and a bound on the error (``softmax_bound``); the names for a gradient contain
``backward``.

In the bounds, u = 2^-23, so that one rounding to float32 changes a value v by at most u / 2 * |v|. For a row x of C
elements, m is its maximum, d the sum of exp(x - m), and p = exp(x - m) / d. y is the result of the forward, dy its
gradient, and dx the result of the backward. Each item below ends with the bound that it derives.

- d: rounding of the arguments of exp, u / 2 * sum p (m - x) <= u / 2 * log C; 2.6 u for exp (numpy's has an error of up
  to 1.8 u on any CPU); 2.6 u for the weight of a piece or a partition; and the additions. In all 16 u d, as in
  ``cross_entropy/bounds.py``, whose sums are formed in the same way.
- log-softmax, y = (x - m) - log d: u / 2 of the difference x - m, u / 2 of the result, and the relative error of d,
  which is an absolute error of log d: 16 u max(1, m - x, log d).
- softmax, y = exp(x - m) * (1 / d): rounding of the argument adds u / 2 * (m - x) of the exponential; exp, 1 / d and
  the product add 4 u; d adds its relative error: 16 u y max(1, m - x).
- softmax of 16-bit rows that keeps the exponentials of pieces, of maximum m_k: y = exp(x - m_k) * (exp(m_k - m) / d);
  on several partitions the factor has two exponentials. A difference of 16-bit numbers is exact unless one is more than
  2^16 times the other; then it is rounded by at most u / 2 of it, which is u / 2 * (m - x) for all arguments of y. Up
  to three exponentials in y and three in d, of 1.8 u each, and six more roundings, of weights, 1 / d and products, make
  13.8 u; 2.2 u are left for the additions of d: 16 u y max(1, m - x) again. Where an exponential or a factor
  underflows, y is smaller still, as all others are at most 1: ``SMALLEST_NORMAL``.
- s = sum(dy) of log-softmax, or sum(y dy) of softmax: 16 u sum |dy|, or 16 u sum |y dy|, at most, for independent
  roundings of up to 2^18 additions, as in ``cross_entropy/bounds.py``; along another axis than the last one at most
  1,024 elements are added at a time, and then those sums.
- gradients: dx = dy - exp(y) s and dx = y (dy - s) round three times more, each u / 2 of a term.

Results are rounded to their type once: half a unit in the last place, or half the smallest subnormal number. Float32
results may be flushed to zero: ``SMALLEST_NORMAL``. The bounds hold for the simulator; they were never measured on
hardware.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.host.launchable import launchable
from nkilib.experimental.softmax import kernels

Float64Array = npt.NDArray[np.float64]

# The constants of the bounds, in units of u.
ROW_UNITS: Final = 16.0
TERM_UNITS: Final = 2.0

_NOTES = (
    "the exact bits of a row depend on the size of the axis, on whether it is the last axis, on the types, on "
    "chunk_size and on partitions_per_row, but not on other rows"
)

SOFTMAX_FORWARD = Guarantee(
    math="float32",
    accumulator="float32",
    deterministic=True,
    same_bits_on_cores=True,
    workspace="0",
    in_place=None,
    error="16 u y max(1, m - x), u = 2^-23 and m the maximum, plus one rounding to the type",
    notes=_NOTES,
)
LOG_SOFTMAX_FORWARD = replace(
    SOFTMAX_FORWARD, error="16 u max(1, m - x, log d), u = 2^-23, d = sum exp(x - m), plus one rounding to the type"
)
SOFTMAX_BACKWARD = replace(
    SOFTMAX_FORWARD,
    in_place="grad_hbm",
    error="u |y| (2 |dy| + 16 sum |y dy|), u = 2^-23, plus one rounding to the type",
)
LOG_SOFTMAX_BACKWARD = replace(
    SOFTMAX_BACKWARD, error="u (2 |dy| + 16 exp(y) sum |dy|), u = 2^-23, plus one rounding to the type"
)


def _work(like_hbm: Any, streamed: list[Any], has_exponentials: bool) -> Work:
    # Only a profile asks for the work: on hardware the kernels run without the simulator.
    from nkilib.simulator.terms.dtypes import as_dtype

    elements = prod(like_hbm.shape)
    return Work(
        hbm_bytes=elements * sum(as_dtype(dtype).itemsize for dtype in streamed),
        exponentials=elements if has_exponentials else 0,
        dtype=as_dtype(streamed[0]),
    )


def softmax_forward_work(x_hbm: Any, dtype: Any, **_: Any) -> Work:
    """Return the work of ``softmax_forward`` and of ``log_softmax_forward``, from the kernel's arguments.

    Each tensor crosses HBM once, and each element takes one exponential.
    """
    return _work(x_hbm, [x_hbm.dtype, x_hbm.dtype if dtype is None else dtype], has_exponentials=True)


def _of_backward(grad_hbm: Any, output_hbm: Any, dtype: Any) -> list[Any]:
    return [grad_hbm.dtype, output_hbm.dtype, grad_hbm.dtype if dtype is None else dtype]


def softmax_backward_work(grad_hbm: Any, output_hbm: Any, dtype: Any, **_: Any) -> Work:
    """Return the work of ``softmax_backward``, from the kernel's arguments; no exponential is needed."""
    return _work(grad_hbm, _of_backward(grad_hbm, output_hbm, dtype), has_exponentials=False)


def log_softmax_backward_work(grad_hbm: Any, output_hbm: Any, dtype: Any, **_: Any) -> Work:
    """Return the work of ``log_softmax_backward``, from the kernel's arguments."""
    return _work(grad_hbm, _of_backward(grad_hbm, output_hbm, dtype), has_exponentials=True)


def _shifted(x: npt.NDArray[Any], axis: int) -> Float64Array:
    exact = x.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted: Float64Array = exact - exact.max(axis, keepdims=True)
    return shifted


def softmax_reference(x: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``exp(x - m) / sum(exp(x - m))`` in float64, with m the maximum along the axis.

    A row that contains NaN or +inf, or only -inf, gives NaN.
    """
    with np.errstate(all="ignore"):
        exponentials = np.exp(_shifted(x, axis))
        result: Float64Array = exponentials / exponentials.sum(axis, keepdims=True)
    return result


def log_softmax_reference(x: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``(x - m) - log(sum(exp(x - m)))`` in float64, with m the maximum along the axis."""
    with np.errstate(all="ignore"):
        shifted = _shifted(x, axis)
        result: Float64Array = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    return result


def softmax_backward_reference(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``y (dy - sum(y dy))`` in float64, for dy = ``grad`` and y = ``output``, the rounded result of the
    forward.
    """
    dy, y = grad.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        result: Float64Array = y * (dy - (y * dy).sum(axis, keepdims=True))
    return result


def log_softmax_backward_reference(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int = -1) -> Float64Array:
    """Return ``dy - exp(y) sum(dy)`` in float64, for dy = ``grad`` and y = ``output``, the rounded result of the
    forward.
    """
    dy, y = grad.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        result: Float64Array = dy - np.exp(y) * dy.sum(axis, keepdims=True)
    return result


def _stored(exact: Float64Array, dtype: Any) -> Float64Array:
    return rounding(exact, dtype) + SMALLEST_NORMAL


def softmax_bound(x: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``softmax_forward``.

    ``dtype`` is the type of the result.
    """
    exact = softmax_reference(x, axis)
    with np.errstate(all="ignore"):
        relative = np.where(exact == 0.0, 0.0, ROW_UNITS * UNIT * np.maximum(1.0, -_shifted(x, axis)))
        return relative * exact + _stored(exact, dtype)


def log_softmax_bound(x: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``log_softmax_forward``.

    ``dtype`` is the type of the result.
    """
    exact = log_softmax_reference(x, axis)
    below = -_shifted(x, axis)
    with np.errstate(all="ignore"):
        largest = np.maximum(np.maximum(1.0, below), -exact - below)
        return ROW_UNITS * UNIT * largest + _stored(exact, dtype)


def softmax_backward_bound(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``softmax_backward``.

    ``dtype`` is the type of the result.
    """
    exact = softmax_backward_reference(grad, output, axis)
    dy, y = np.abs(grad.astype(np.float64)), np.abs(output.astype(np.float64))
    with np.errstate(all="ignore"):
        terms = TERM_UNITS * dy + ROW_UNITS * (y * dy).sum(axis, keepdims=True)
        return UNIT * y * terms + _stored(exact, dtype)


def log_softmax_backward_bound(grad: npt.NDArray[Any], output: npt.NDArray[Any], axis: int, dtype: Any) -> Float64Array:
    """Return the largest accepted error of each element of ``log_softmax_backward``.

    ``dtype`` is the type of the result.
    """
    exact = log_softmax_backward_reference(grad, output, axis)
    dy, y = np.abs(grad.astype(np.float64)), output.astype(np.float64)
    with np.errstate(all="ignore"):
        terms = TERM_UNITS * dy + ROW_UNITS * np.exp(y) * dy.sum(axis, keepdims=True)
        return UNIT * terms + _stored(exact, dtype)


softmax_forward = launchable(kernels.softmax_forward, SOFTMAX_FORWARD, softmax_forward_work)
log_softmax_forward = launchable(kernels.log_softmax_forward, LOG_SOFTMAX_FORWARD, softmax_forward_work)
softmax_backward = launchable(kernels.softmax_backward, SOFTMAX_BACKWARD, softmax_backward_work)
log_softmax_backward = launchable(kernels.log_softmax_backward, LOG_SOFTMAX_BACKWARD, log_softmax_backward_work)
