"""What the kernels work on, whatever the tiling: every tensor that is needed crosses HBM once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from nkilib.experimental.loss.rowwise.host.pairs import needed_tensors, num_coefficients
from nkilib.work import Work

_FLOAT32_BYTES: Final = 4


def triplet_margin_loss_forward_work(
    anchor_hbm: Any,
    positive_hbm: Any,
    negative_hbm: Any,
    p: float,
    swap: bool,
    reduction: str,
    coefficients_wanted: bool,
    dtype: Any,
    **_: Any,
) -> Work:
    """The work of ``triplet_margin_loss_forward``, whose parameters it takes."""
    tensors = (anchor_hbm, positive_hbm, negative_hbm)
    numbers = num_coefficients(p, swap) if coefficients_wanted else 0
    return _work(tensors, tensors, _loss_bytes(anchor_hbm, reduction, dtype) + numbers * _FLOAT32_BYTES)


def triplet_margin_loss_backward_work(
    anchor_hbm: Any,
    positive_hbm: Any,
    negative_hbm: Any,
    grad_loss_hbm: Any,
    p: float,
    swap: bool,
    grad_anchor_wanted: bool,
    grad_positive_wanted: bool,
    grad_negative_wanted: bool,
    **_: Any,
) -> Work:
    """The work of ``triplet_margin_loss_backward``, whose parameters it takes."""
    tensors = (anchor_hbm, positive_hbm, negative_hbm)
    flags = (grad_anchor_wanted, grad_positive_wanted, grad_negative_wanted)
    wanted = tuple(number for number, flag in enumerate(flags) if flag)
    streamed = [tensors[number] for number in (*needed_tensors(wanted, swap), *wanted)]
    return _work(tensors, streamed, num_coefficients(p, swap) * _FLOAT32_BYTES, grad_loss_hbm)


def _loss_bytes(first_hbm: Any, reduction: str, dtype: Any) -> int:
    """Of a row."""
    from nkilib.simulator.terms.dtypes import as_dtype

    if reduction != "none":
        return 0
    return int(as_dtype(first_hbm.dtype if dtype is None else dtype).itemsize)


def _work(
    tensors: Sequence[Any],
    streamed: Sequence[Any],
    row_bytes: int,
    grad_loss_hbm: Any = None,
    exponentials: int = 0,
) -> Work:
    """Of tensors of one shape, those that are read or written, bytes of each row, and gradients of the losses."""
    from nkilib.simulator.terms.dtypes import as_dtype

    elements, rows = prod(tensors[0].shape), tensors[0].shape[0]
    nbytes = elements * sum(as_dtype(each.dtype).itemsize for each in streamed) + rows * row_bytes
    if grad_loss_hbm is not None:
        nbytes += prod(grad_loss_hbm.shape) * as_dtype(grad_loss_hbm.dtype).itemsize
    return Work(nbytes, exponentials=exponentials * elements, dtype=as_dtype(tensors[0].dtype))
