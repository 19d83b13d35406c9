"""What the kernels work on: the forward reads an element a position or all, the backward writes the gradient once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nkilib.base.work import Work
from nkilib.experimental.loss.indexed.class_tiles import is_streamed
from nkilib.experimental.loss.indexed.positions import Shape

_INDEX_BYTES, _FLOAT32_BYTES = 4, 4


def nll_loss_forward_work(
    input_hbm: Any, targets_hbm: Any, class_weight_hbm: Any, reduction: str, streamed: bool | None, **_: Any
) -> Work:
    """The work of ``nll_loss_forward``, whose parameters it takes: of a streamed input, all of it."""
    from nkilib.simulator.terms.dtypes import as_dtype

    element = as_dtype(input_hbm.dtype).itemsize
    shape = Shape.of(tuple(input_hbm.shape))
    of_position = _INDEX_BYTES + (element if reduction == "none" else 0)
    if is_streamed(shape, as_dtype(input_hbm.dtype)) if streamed is None else streamed:
        of_position += shape.classes * element
    else:
        of_position += element + (0 if class_weight_hbm is None else _FLOAT32_BYTES)
    return Work(prod(targets_hbm.shape) * of_position, dtype=as_dtype(input_hbm.dtype))


def nll_loss_backward_work(
    input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, class_weight_hbm: Any, **_: Any
) -> Work:
    """The work of ``nll_loss_backward``, whose parameters it takes."""
    from nkilib.simulator.terms.dtypes import as_dtype

    gradient = prod(input_hbm.shape) * as_dtype(input_hbm.dtype).itemsize
    upstream = prod(grad_loss_hbm.shape) * as_dtype(grad_loss_hbm.dtype).itemsize
    of_position = _INDEX_BYTES + (0 if class_weight_hbm is None else _FLOAT32_BYTES)
    return Work(gradient + upstream + prod(targets_hbm.shape) * of_position, dtype=as_dtype(input_hbm.dtype))
