# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Comparisons that a wrong result cannot pass: each shows too that zeros, flipped signs and a transposition fail.

The reference is float64 on the very same (rounded) inputs. Tolerances count in u = 2^-23, the spacing of float32 above
1, as :mod:`nkilib.experimental.loss.bounds` does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

UNIT = 2.0**-23
# A loss may be off by 16 u of the largest of 1, the distance of target and maximum, and log V (bounds.py). It counts
# once for log-sum-exp minus target, once more for the mean over all classes of label smoothing.
LOSS_UNITS = 32.0
# Of an element p = exp(x - lse) of a gradient: 8 u and 1 u for each unit of |x - lse| and |lse|, which are below 30 in
# these tests; 2 u at the target; and as much again for the products with weights and upstream gradients.
GRADIENT_UNITS = 128.0
# Half an ulp of a type that is rounded to, and 0.01 ulp for a float32 value that lies on the other side of a tie. Below
# 2^-14, where float16 has fewer digits, the absolute part is more.
ROUNDING = {"float32": 0.0, "bfloat16": 0.51 * 2.0**-7, "float16": 0.51 * 2.0**-10}


def assert_loss(actual: jax.Array, exact: np.ndarray, magnitude: float = 15.0) -> None:
    """``actual`` is float32 and within the budget of ``exact``, a float64 loss.

    Args:
        actual: the result of the kernels.
        exact: float64, of the same shape.
        magnitude: the largest summand that enters: logits, log V, times weights; for a sum, times its length.
    """
    assert actual.dtype == jnp.float32
    _assert_telling(np.asarray(actual), np.asarray(exact), 0.0, LOSS_UNITS * UNIT * max(1.0, magnitude))


def assert_gradient(actual: jax.Array, exact: np.ndarray, scale: float = 1.0) -> None:
    """``actual``, float32, bfloat16 or float16, is within the budget of ``exact``, a float64 gradient.

    Args:
        actual: the result of the kernels.
        exact: float64, of the same shape.
        scale: the largest factor of a softmax in it: upstream gradient times weight.
    """
    rounding = ROUNDING[actual.dtype.name]
    _assert_telling(np.asarray(actual).astype(np.float64), np.asarray(exact), rounding, GRADIENT_UNITS * UNIT * scale)


def _assert_telling(actual: np.ndarray, exact: np.ndarray, rtol: float, atol: float) -> None:
    assert actual.shape == exact.shape and exact.dtype == np.float64
    np.testing.assert_allclose(actual, exact, rtol=rtol, atol=atol)
    for name, wrong in _wrong_results(exact).items():
        assert not np.allclose(wrong, exact, rtol=rtol, atol=atol), f"the comparison accepts a result that is {name}"


def _wrong_results(exact: np.ndarray) -> dict[str, np.ndarray]:
    wrong = {"all zero": np.zeros_like(exact), "of flipped sign": -exact}
    if exact.ndim == 1 and exact.size > 1:
        wrong["reversed"] = exact[::-1]
    if exact.ndim > 1 and min(exact.shape) > 1:
        wrong["transposed"] = np.moveaxis(exact, 0, -1).reshape(exact.shape)
    return wrong
