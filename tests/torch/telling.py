# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Comparisons that a wrong result cannot pass: each shows too that zeros, flipped signs and a transposition fail.

The reference is always float64 PyTorch on the very same (rounded) inputs. Tolerances count in u = 2^-23, the spacing of
float32 above 1, as :mod:`nkilib.experimental.loss.bounds` does.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**-23
# A loss may be off by 16 u of the largest of 1, the distance of target and maximum, and log V (bounds.py). It counts
# once for log-sum-exp minus target, once more for the mean over all classes of label smoothing.
LOSS_UNITS = 32.0
# Of an element p = exp(x - lse) of a gradient: 8 u and 1 u for each unit of |x - lse| and |lse|, which are below 30 in
# these tests; 2 u at the target; and as much again for the products with weights and upstream gradients.
GRADIENT_UNITS = 128.0
# Half an ulp of a type that is rounded to, and 0.01 ulp for a float32 value that lies on the other side of a tie. Below
# 2^-14, where float16 has fewer digits, the absolute part is more.
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 0.51 * 2.0**-7, torch.float16: 0.51 * 2.0**-10}


def assert_loss(actual: Tensor, exact: Tensor, magnitude: float) -> None:
    """``actual`` is float32 and within the budget of ``exact``, a float64 loss.

    Args:
        actual: the result of the kernels.
        exact: float64, of the same shape.
        magnitude: the largest summand that enters: logits, log V, times weights; for a sum, times its length.
    """
    assert actual.dtype == torch.float32, f"assert_loss: the loss must be torch.float32, got {actual.dtype}"
    assert_telling(actual, exact, 0.0, LOSS_UNITS * UNIT * max(1.0, magnitude))


def assert_gradient(actual: Tensor, exact: Tensor, scale: float) -> None:
    """``actual``, float32, bfloat16 or float16, is within the budget of ``exact``, a float64 gradient.

    Args:
        actual: the result of the kernels.
        exact: float64, of the same shape.
        scale: the largest factor of a softmax in it: upstream gradient times weight.
    """
    rounding = ROUNDING[actual.dtype]
    assert_telling(actual, exact, rounding, GRADIENT_UNITS * UNIT * scale)


def assert_telling(actual: Tensor, exact: Tensor, rtol: float, atol: float) -> None:
    """``actual`` is within a tolerance of ``exact``, float64, in which no wrong result is."""
    _assert_same_shape(actual, exact)
    torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=atol, msg=_result_and_reference)
    for name, wrong in _wrong_results(exact).items():
        assert not torch.allclose(wrong, exact, rtol=rtol, atol=atol), f"the comparison accepts a result that is {name}"


def assert_within(actual: Tensor, exact: Tensor, bound: Tensor) -> None:
    """``actual`` is off ``exact``, float64, by no more than a bound of each element, and no wrong result is."""
    _assert_same_shape(actual, exact)
    _assert_same_shape(bound, exact, "the bound")
    off = (actual.double() - exact).abs()
    assert (off <= bound).all(), f"off by {(off / bound).max().item():.3g} of the bound"
    for name, wrong in _wrong_results(exact).items():
        assert not ((wrong - exact).abs() <= bound).all(), f"the bounds accept a result that is {name}"


def _assert_same_shape(actual: Tensor, exact: Tensor, what: str = "the result") -> None:
    assert actual.shape == exact.shape, (
        f"{what} must have the shape of the float64 reference, {tuple(exact.shape)}, got {tuple(actual.shape)}"
    )


def _result_and_reference(difference: str) -> str:
    """Return PyTorch's words about two tensors, with which two they are."""
    return f"the result of the kernels (actual) is not near enough to the float64 reference (expected):\n{difference}"


def _wrong_results(exact: Tensor) -> dict[str, Tensor]:
    wrong = {"all zero": torch.zeros_like(exact), "of flipped sign": -exact}
    if exact.dim() == 1 and exact.numel() > 1:
        wrong["reversed"] = exact.flip(0)
    if exact.dim() > 1 and min(exact.shape) > 1:
        wrong["transposed"] = exact.transpose(0, -1).reshape(exact.shape)
    return wrong
