"""What the kernels work on, whatever the tiling: every tensor that is needed crosses HBM once.

For host code. The simulator is imported where a profile asks for the work: on hardware the kernels do without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from nkilib.base.work import Work
from nkilib.experimental.loss.rowwise.host.labels import WEIGHT
from nkilib.experimental.loss.rowwise.host.labels import needed_tensors as needed_labels
from nkilib.experimental.loss.rowwise.host.pairs import needed_tensors, num_coefficients

_FLOAT32_BYTES: Final = 4
_COSINE_COEFFICIENTS: Final = 3


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


def cosine_embedding_loss_forward_work(
    input1_hbm: Any, input2_hbm: Any, reduction: str, coefficients_wanted: bool, dtype: Any, **_: Any
) -> Work:
    """The work of ``cosine_embedding_loss_forward``, whose parameters it takes: of a row, its target too."""
    tensors = (input1_hbm, input2_hbm)
    numbers = 1 + (_COSINE_COEFFICIENTS if coefficients_wanted else 0)
    return _work(tensors, tensors, _loss_bytes(input1_hbm, reduction, dtype) + numbers * _FLOAT32_BYTES)


def cosine_embedding_loss_backward_work(
    input1_hbm: Any,
    input2_hbm: Any,
    grad_loss_hbm: Any,
    grad_input1_wanted: bool,
    grad_input2_wanted: bool,
    **_: Any,
) -> Work:
    """The work of ``cosine_embedding_loss_backward``, whose parameters it takes."""
    tensors = (input1_hbm, input2_hbm)
    flags = (grad_input1_wanted, grad_input2_wanted)
    written = [tensor for tensor, flag in zip(tensors, flags, strict=True) if flag]
    return _work(tensors, [*tensors, *written], _COSINE_COEFFICIENTS * _FLOAT32_BYTES, grad_loss_hbm)


def multilabel_soft_margin_loss_forward_work(
    input_hbm: Any, target_hbm: Any, weight_hbm: Any, reduction: str, dtype: Any, **_: Any
) -> Work:
    """The work of ``multilabel_soft_margin_loss_forward``, whose parameters it takes: a softplus an element."""
    tensors = (input_hbm, target_hbm)
    return _weighted(weight_hbm, _work(tensors, tensors, _loss_bytes(input_hbm, reduction, dtype), exponentials=1))


def multilabel_soft_margin_loss_backward_work(
    input_hbm: Any,
    target_hbm: Any,
    grad_loss_hbm: Any,
    weight_hbm: Any,
    grad_input_wanted: bool,
    grad_target_wanted: bool,
    grad_weight_wanted: bool,
    **_: Any,
) -> Work:
    """The work of ``multilabel_soft_margin_loss_backward``, whose parameters it takes.

    A sigmoid for the gradient of the input, and a softplus for that of the weight.
    """
    tensors, flags = (input_hbm, target_hbm), (grad_input_wanted, grad_target_wanted)
    wanted = tuple(number for number, flag in enumerate((*flags, grad_weight_wanted)) if flag)
    needed = needed_labels(wanted, weight_hbm is not None)
    numbers = (*needed, *wanted)
    found = _work(
        tensors,
        [tensors[number] for number in numbers if number != WEIGHT],
        0,
        grad_loss_hbm,
        exponentials=int(grad_input_wanted) + int(grad_weight_wanted),
    )
    for _each in range(numbers.count(WEIGHT)):
        found = _weighted(weight_hbm, found)
    return found


def _weighted(weight_hbm: Any, work: Work) -> Work:
    """With the weights, of which every number crosses HBM once."""
    from nkilib.simulator.terms.dtypes import as_dtype

    if weight_hbm is None:
        return work
    return replace(work, hbm_bytes=work.hbm_bytes + prod(weight_hbm.shape) * as_dtype(weight_hbm.dtype).itemsize)


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
