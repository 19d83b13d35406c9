"""What the kernels work on: the input is read once, the gradient is written once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work


def forward_work(input_hbm: Any, targets_hbm: Any, reduction: str, **_: Any) -> Work:
    """The work of ``multi_margin_loss_forward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    losses = prod(targets_hbm.shape) * as_dtype(input_hbm.dtype).itemsize if reduction == "none" else 0
    nbytes = _nbytes(input_hbm) + _nbytes(targets_hbm) + losses
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, **_: Any) -> Work:
    """The work of ``multi_margin_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    nbytes = 2 * _nbytes(input_hbm) + _nbytes(targets_hbm) + _nbytes(grad_loss_hbm)
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


def _nbytes(tensor_hbm: Any) -> int:
    from nkilib.simulator.terms.dtypes import as_dtype

    return int(prod(tensor_hbm.shape) * as_dtype(tensor_hbm.dtype).itemsize)
