# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks that kernels of losses share: floating-point types, reductions, upstream gradients. NKI code may call them."""

from __future__ import annotations

from math import prod

from nkilib.core.host.reductions import REDUCTIONS
from nkilib.core.rows.checks import FLOATS, require
from nkilib.nki import nl


def require_floats(function: str, name: str, dtype: nl.DType) -> None:
    """Check that a type is one of the three that tensors may have: bfloat16, float16 or float32."""
    require(
        dtype in FLOATS,
        f"{function}: {name} must be nl.bfloat16, nl.float16 or nl.float32, got {dtype}; cast it, as with .float()",
    )


def require_reduction(function: str, reduction: str, further: tuple[str, ...] = ()) -> None:
    """Check that a reduction is one of the usual ones or of ``further``."""
    known = (*REDUCTIONS, *further)
    require(reduction in known, f"{function}: reduction must be one of {', '.join(known)}, got {reduction}")


def require_upstream(function: str, grad_hbm: nl.NkiTensor, shape: tuple[int, ...], is_each: bool) -> None:
    """Check the upstream gradient: one for each loss, or one float32 for their sum."""
    if is_each:
        require(
            tuple(grad_hbm.shape) == shape,
            f'{function}: grad_loss_hbm must have the shape of the losses, {shape}, for reduction="none", '
            f"got {tuple(grad_hbm.shape)}; expand it",
        )
        require_floats(function, "grad_loss_hbm.dtype", grad_hbm.dtype)
        return
    require(
        prod(grad_hbm.shape) == 1 and grad_hbm.dtype == nl.float32,
        f"{function}: grad_loss_hbm must be one float32, the gradient of the reduced loss, "
        f"got {grad_hbm.dtype} of shape {tuple(grad_hbm.shape)}; sum it up and cast it",
    )
