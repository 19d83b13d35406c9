# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launching the kernels, and the assertions that hold their results against the float64 oracle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.bounds import forward_error_over_bound, gradient_error_over_bound
from nkilib.nki import nl

Array = npt.NDArray[Any]


def as_nl(dtype: Any) -> Any:
    """The ``nl`` type of the same name as a numpy type."""
    return getattr(nl, np.dtype(dtype).name)


def forward(logits: Array, targets: Array, *, cores: int, **options: Any) -> tuple[Array, Array]:
    """``cross_entropy_forward`` on the given number of cores."""
    return cross_entropy_forward[cores](logits, targets, **options)


def backward(logits: Array, targets: Array, lse_state: Array, *, cores: int, **options: Any) -> Array:
    """``cross_entropy_backward`` on the given number of cores."""
    return cross_entropy_backward[cores](logits, targets, lse_state, **options)


def assert_loss_and_lse(
    loss: Array,
    lse: Array,
    logits: Array,
    targets: Array,
    dtype: Any,
    *,
    loss_dtype: Any,
    lse_dtype: Any,
) -> None:
    """Shapes, types and errors of a forward's results; the errors as ``bounds.forward_bounds`` limits them."""
    positions = logits.shape[:1]
    assert loss.shape == positions and lse.shape == positions
    assert loss.dtype == loss_dtype and lse.dtype == lse_dtype
    loss_ratio, lse_ratio = forward_error_over_bound(loss, lse, logits, targets, dtype)
    assert loss_ratio <= 1.0, f"loss: worst error is {loss_ratio:.3g} times the bound"
    assert lse_ratio <= 1.0, f"lse: worst error is {lse_ratio:.3g} times the bound"
    assert not (loss.astype(np.float64) < 0).any(), "a loss is negative"


def assert_gradient(
    gradient: Array,
    logits: Array,
    targets: Array,
    lse_state: Array,
    reduction: str,
    dtype: Any,
    *,
    gradient_dtype: Any,
) -> None:
    """Shape, type and errors of a backward's result; the errors as ``bounds.gradient_bound`` limits them."""
    assert gradient.shape == logits.shape
    assert gradient.dtype == gradient_dtype
    ratio = gradient_error_over_bound(gradient, logits, targets, lse_state, reduction, dtype)
    assert ratio <= 1.0, f"gradient: worst error is {ratio:.3g} times the bound"


def check_forward(logits: Array, targets: Array, dtype: Any, lse_dtype: Any, **options: Any) -> tuple[Array, Array]:
    """Run the forward, hold it against the oracle, and return loss and log-sum-exp."""
    loss, lse = forward(logits, targets, dtype=as_nl(dtype), lse_dtype=as_nl(lse_dtype), **options)
    assert_loss_and_lse(loss, lse, logits, targets, dtype, loss_dtype=dtype, lse_dtype=lse_dtype)
    return loss, lse


def check_backward(
    logits: Array,
    targets: Array,
    lse_state: Array,
    dtype: Any,
    *,
    reduction: str = "mean",
    inplace: bool = True,
    **options: Any,
) -> Array:
    """Run the backward on a copy of ``logits``, hold it against the oracle, and return the gradient."""
    array = logits.copy()
    gradient = backward(array, targets, lse_state, reduction=reduction, dtype=as_nl(dtype), inplace=inplace, **options)
    if inplace:
        assert gradient is array, "in place, the gradient is the very array of the logits"
    else:
        assert array.tobytes() == logits.tobytes(), "not in place, the logits keep every byte"
        assert not np.shares_memory(array, gradient)
    assert_gradient(
        gradient,
        logits,
        targets,
        lse_state,
        reduction,
        dtype,
        gradient_dtype=logits.dtype if inplace else dtype,
    )
    return gradient


def same_bits(first: Array, second: Array) -> bool:
    """Whether two arrays have equal type, shape and bytes (NaN and signed zeros included)."""
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def names_row_and_target(row: int, target: int) -> str:
    """Pattern of a message that names both, as whole numbers."""
    return rf"\brow {row}\b.*\btarget {re.escape(str(target))}(?!\d)"
