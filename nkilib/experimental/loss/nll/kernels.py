# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the negative log-likelihood loss, as plain functions to call from NKI code.

Two loops compute the same results: one *streams* the whole input (:mod:`.few_classes`, at most 256 classes), the other
*gathers* the elements at the targets (:mod:`.gathered`). The kernels choose the one with the smaller modelled time.
"""

from __future__ import annotations

from math import prod

from nkilib.core.hardware import HbmTensor
from nkilib.core.host.options import is_integer
from nkilib.core.loss_arguments import require_float_tensor, require_reduction, require_upstream
from nkilib.core.rows.checks import require, require_indirect_dma, require_vector
from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.experimental.loss.nll.few_classes import (
    STREAMED_CLASSES_MAX,
    is_streamed,
    streamed_backward_of_core,
    streamed_forward_of_core,
)
from nkilib.experimental.loss.nll.gathered import Results, backward_of_core, forward_of_core
from nkilib.experimental.loss.skeletons.indexed import (
    BATCHES_MAX,
    ElementFinder,
    IndexedUpstream,
    Shape,
    number_of_batches,
)
from nkilib.nki import nl

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


def _checked_shape(
    function: str,
    input_hbm: nl.NkiTensor,
    targets_hbm: nl.NkiTensor,
    class_weight_hbm: nl.NkiTensor | None,
    ignore_index: int,
    reduction: str,
) -> Shape:
    """Check the arguments that forward and backward share, and return the dimensions of the input."""
    require_indirect_dma(function)
    input_shape = tuple(input_hbm.shape)
    require(
        len(input_shape) >= 2,
        f"{function}: input_hbm must be [N, C] or [N, C, d1, ...], got shape {input_shape}; reshape [C] to [1, C]",
    )
    require(
        prod(input_shape) > 0,
        f"{function}: input_hbm must have at least one element, got shape {input_shape}; launch nothing",
    )
    require_float_tensor(function, "input_hbm.dtype", input_hbm.dtype)
    shape, expected = Shape.of(input_shape), (input_shape[0], *input_shape[2:])
    require(
        shape.row_size <= INDEX_LIMIT,
        f"{function}: a row of input_hbm must have at most {INDEX_LIMIT} elements, the reach of an int32 index, got "
        f"{shape.row_size}; split the dimensions after the classes",
    )
    require(
        tuple(targets_hbm.shape) == expected,
        f"{function}: targets_hbm must have shape {expected}, that of input_hbm without the classes, "
        f"got {tuple(targets_hbm.shape)}",
    )
    require(
        targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32, got {targets_hbm.dtype}; cast the targets to int32",
    )
    if class_weight_hbm is not None:
        require_vector(function, "class_weight_hbm", class_weight_hbm, shape.classes, "the classes")
    require(
        is_integer(ignore_index) and _INT32_MIN <= ignore_index <= _INT32_MAX,
        f"{function}: ignore_index must be an integer of 32 bits, as targets are, got {ignore_index}",
    )
    require_reduction(function, reduction)
    return shape


def _streams(function: str, shape: Shape, dtype: nl.DType, streamed: bool | None) -> bool:
    """Return whether to stream the input; raise AssertionError if the shape is not accepted for the chosen loop."""
    require(
        streamed in (None, True, False), f"{function}: streamed must be True, False or None, got {streamed}; use None"
    )
    if streamed is None:
        streamed = is_streamed(shape, dtype)
    if streamed:
        require(
            shape.classes <= STREAMED_CLASSES_MAX,
            f"{function}: streamed=True takes at most {STREAMED_CLASSES_MAX} classes, got {shape.classes}; use None",
        )
        return True
    batches = number_of_batches(shape)
    require(
        batches <= BATCHES_MAX,
        f"{function}: a launch gathers for at most {BATCHES_MAX} groups of up to 128 positions, got {batches} of an "
        f"input of shape {(shape.rows, shape.classes, shape.places)}; split the rows",
    )
    return False


def nll_loss_forward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    class_weight_hbm: HbmTensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    streamed: bool | None = None,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Compute the negative log-likelihood loss of every position: ``-w[t] * x[t]``, with class weights w, target t and
    the log-probabilities x of the position.

    Equivalent to ``F.nll_loss(input, target, weight, ignore_index=ignore_index, reduction=reduction)`` in PyTorch. If
    the input is not streamed, only the elements at the targets are read. Launch with ``nll_loss_forward[2](...)`` on a
    logical NeuronCore of two cores.

    Dimensions:
        N: rows (N > 0).
        C: classes (C > 0).
        D: the product of the dimensions after the classes, 1 where there are none. The input has N * D
            positions.

    Args:
        input_hbm: [N, C] or [N, C, d1, ...], log-probabilities, bfloat16, float16 or float32, in HBM. A row may have at
            most 2^30 elements (C * D).
        targets_hbm: [N] or [N, d1, ...], int32; each in [0, C) or ``ignore_index``. Any other value causes an
            out-of-range access of the DMA engine or, if the input is streamed, a loss of NaN.
        class_weight_hbm: [C], float32; None means 1.
        ignore_index: target of ignored positions; an int32.
        reduction: ``"none"``, ``"sum"``, or ``"mean"``: the sum of losses divided by the sum of weights.
        streamed: True reads the whole input in long runs, for at most 256 classes. False gathers the elements at the
            targets. None chooses the way that is modelled to take less time.

    Returns:
        loss_hbm: for ``"none"`` the losses in the shape of the targets and the type of the input; otherwise [1],
            float32. A mean without a valid position is NaN.
        total_weight_hbm: [1], float32, the sum of ``w[t]`` over the valid positions.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "nll_loss_forward"
    shape = _checked_shape(function, input_hbm, targets_hbm, class_weight_hbm, ignore_index, reduction)
    targets_hbm_flat = targets_hbm.reshape((shape.rows, shape.places))
    rows_hbm = input_hbm.reshape((shape.rows, shape.row_size))
    is_each = reduction == "none"
    loss_shape, dtype = (tuple(targets_hbm.shape), input_hbm.dtype) if is_each else ((1,), nl.float32)
    is_stream = _streams(function, shape, input_hbm.dtype, streamed)
    loss_hbm = nl.ndarray(loss_shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    total_weight_hbm = nl.ndarray((1,), dtype=nl.float32, buffer=nl.shared_hbm, name="total_weight_hbm")
    of_rows_hbm = loss_hbm.reshape((shape.rows, shape.places)) if is_each else loss_hbm
    results = Results(of_rows_hbm, total_weight_hbm, is_each, is_mean=reduction == "mean")
    if is_stream:
        streamed_forward_of_core(rows_hbm, shape, targets_hbm_flat, class_weight_hbm, ignore_index, results)
    else:
        finder = ElementFinder.make(shape, targets_hbm_flat, class_weight_hbm, ignore_index)
        forward_of_core(rows_hbm, shape, finder, results)
    return loss_hbm, total_weight_hbm


def nll_loss_backward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    class_weight_hbm: HbmTensor | None = None,
    total_weight_hbm: HbmTensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    inplace: bool = False,
    streamed: bool | None = None,
) -> nl.NkiTensor:
    """Compute the gradient with respect to the log-probabilities: ``-w[t]`` at the targets t, 0 elsewhere, times
    the upstream gradient.

    Equivalent to the gradient of ``F.nll_loss(input, target, weight, ignore_index=ignore_index,
    reduction=reduction)`` in PyTorch. The input is not read. The gradient is written once, except that elements which
    are scattered over zeros are written twice. Launch like :func:`nll_loss_forward`.

    Dimensions:
        N, C, D: see :func:`nll_loss_forward`.

    Args:
        input_hbm, targets_hbm, class_weight_hbm, ignore_index, reduction: the arguments of the forward; of the input,
            only shape and type matter.
        grad_loss_hbm: for ``"none"`` the upstream gradients in the shape of the targets, bfloat16, float16 or float32;
            else [1], float32, read on the device.
        total_weight_hbm: [1], float32, the second result of the forward, for ``"mean"``.
        inplace: write the gradient over ``input_hbm``; else into a new tensor.
        streamed: True computes the whole gradient on chip and writes it once, for at most 256 classes; a target out of
            range then has a gradient of zeros. False writes zeros, then scatters the elements at the targets. None
            chooses the way that is modelled to take less time.

    Returns:
        grad_input_hbm: the gradient in shape and type of the input; with ``inplace``, ``input_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "nll_loss_backward"
    shape = _checked_shape(function, input_hbm, targets_hbm, class_weight_hbm, ignore_index, reduction)
    require(inplace in (True, False), f"{function}: inplace must be True or False, got {inplace}")
    is_each = reduction == "none"
    require_upstream(function, grad_loss_hbm, tuple(targets_hbm.shape), is_each)
    if reduction == "mean":
        require_vector(function, "total_weight_hbm", total_weight_hbm, 1, "the second result of nll_loss_forward")
    is_stream = _streams(function, shape, input_hbm.dtype, streamed)
    grad_input_hbm = input_hbm
    if not inplace:
        grad_input_hbm = nl.ndarray(
            tuple(input_hbm.shape), dtype=input_hbm.dtype, buffer=nl.shared_hbm, name="grad_input_hbm"
        )
    places = (shape.rows, shape.places)
    grad_hbm = grad_loss_hbm.reshape(places) if is_each else grad_loss_hbm
    upstream = IndexedUpstream(grad_hbm, total_weight_hbm if reduction == "mean" else None, is_each)
    targets_hbm_flat, rows_hbm = targets_hbm.reshape(places), grad_input_hbm.reshape((shape.rows, shape.row_size))
    if is_stream:
        streamed_backward_of_core(rows_hbm, shape, targets_hbm_flat, class_weight_hbm, ignore_index, upstream)
    else:
        finder = ElementFinder.make(shape, targets_hbm_flat, class_weight_hbm, ignore_index)
        backward_of_core(rows_hbm, shape, finder, upstream)
    return grad_input_hbm
