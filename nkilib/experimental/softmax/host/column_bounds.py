"""How far results along an axis that is not the last may be from exact ones, from the very inputs of a kernel.

Notation: u = 2^-23, so that rounding to float32 changes a value by at most u/2 of it; m the maximum of a column, d the
sum of exp(x - m) over it. Bounds are on the absolute error of an element, for arrays [O, C, I] with the columns along
axis 1, C <= 2^18. A result of 16 bits may be off by 0.51 of its spacing more.

A sum over a column is that of segments of at most 1,024 elements, and of at most 512 segments: pairwise in numpy, so
that a term passes through at most 22 additions in its segment and 20 after that, at u/2 each. That all err to one side
is 21 u; independent ones stay below sqrt(42 / 3) 5 u/2 = 9.4 u by five standard deviations. ``exp`` of numpy is good to
2.6 u. Hardware sums and evaluates ``exp`` in its own way: whether it stays within these bounds was never measured.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

UNIT = 2.0**-23
SMALLEST_NORMAL = 2.0**-126
SUM_UNITS = 16.0
SOFTMAX_UNITS = 24.0
ROUNDING = 0.51

_AXIS = 1


def forward_of_columns(x: npt.NDArray[Any], is_log: bool) -> Float64Array:
    """The exact result, float64; NaN where a column has a NaN, +inf, or nothing but -inf."""
    distances, sums = _distances_and_sums(x)
    with np.errstate(all="ignore"):
        return distances - np.log(sums) if is_log else np.exp(distances) / sums


def forward_bound(x: npt.NDArray[Any], is_log: bool, dtype: Any) -> Float64Array:
    """Largest accepted error of the forward::

        log-softmax: 16 u max(1, |x - m|, log d)        softmax: u p (24 + |x - m|) + 2^-126

    Derivation. A relative error of d is an absolute one of log d: arguments x - m_k and m_k - m are rounded, which
    costs |x - m| u/2 weighted by the terms, at most 6.2 u; exp 2.6 u, twice; the sums 9.4 u. All extremes at once
    exclude each other, since a large average |x - m| takes very many small terms. The subtractions of log-softmax add
    u/2 of their results each. Softmax: exp(x - m_k) has 2.6 u + |x - m_k| u/2, exp(m_k - m) likewise, d 16 u, the
    reciprocal and two products u/2 each: 22.7 u + |x - m| u/2. What underflows
    is covered by the smallest normal number.
    """
    distances, sums = _distances_and_sums(x)
    exact = forward_of_columns(x, is_log)
    with np.errstate(all="ignore"):
        if is_log:
            bound = SUM_UNITS * UNIT * np.maximum(np.maximum(1.0, np.abs(distances)), np.log(sums))
        else:
            units = np.where(exact == 0.0, 0.0, exact * (SOFTMAX_UNITS + np.abs(distances)))
            bound = UNIT * units + SMALLEST_NORMAL
    return bound + rounding_allowance(exact, dtype)


def backward_of_columns(grad: npt.NDArray[Any], output: npt.NDArray[Any], is_log: bool) -> Float64Array:
    """The exact gradient for this very output, float64."""
    dy, y = grad.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        if is_log:
            return dy - np.exp(y) * dy.sum(_AXIS, keepdims=True)
        return y * (dy - (y * dy).sum(_AXIS, keepdims=True))


def backward_bound(grad: npt.NDArray[Any], output: npt.NDArray[Any], is_log: bool, dtype: Any) -> Float64Array:
    """Largest accepted error of the backward::

        log-softmax: u (|dy| + 20 exp(y) S) + 2^-126, S = sum |dy|
        softmax: u |y| (2 |dy| + 18 S) + 2^-126, S = sum |y dy|

    Derivation. The sum s has an error of at most 9.4 u S, in softmax 10 u S with the rounding of its products. In
    log-softmax exp(y) adds 2.6 u of exp(y) |s|, the product u/2 of it and the subtraction u/2 of |dy| + exp(y) |s|; in
    softmax the subtraction and the product add u/2 of |y| (|dy| + |s|) each, and |s| <= S.
    """
    dy, y = np.abs(grad.astype(np.float64)), output.astype(np.float64)
    with np.errstate(all="ignore"):
        if is_log:
            units = dy + 20.0 * np.exp(y) * dy.sum(_AXIS, keepdims=True)
        else:
            units = np.abs(y) * (2.0 * dy + 18.0 * (np.abs(y) * dy).sum(_AXIS, keepdims=True))
    exact = backward_of_columns(grad, output, is_log)
    return UNIT * units + SMALLEST_NORMAL + rounding_allowance(exact, dtype)


def rounding_allowance(exact: Float64Array, dtype: Any) -> Float64Array:
    """0.51 of the spacing of ``dtype`` at the exact values; nothing for float32, whose rounding the bounds include."""
    dtype = np.dtype(dtype)
    if dtype == np.float32:
        return np.zeros(exact.shape)
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(exact), float(limits.smallest_normal))
        return ROUNDING * np.exp2(np.floor(np.log2(scale)) - limits.nmant)


def _distances_and_sums(x: npt.NDArray[Any]) -> tuple[Float64Array, Float64Array]:
    values = x.astype(np.float64)
    with np.errstate(all="ignore"):
        distances = values - values.max(_AXIS, keepdims=True)
        return distances, np.exp(distances).sum(_AXIS, keepdims=True)
