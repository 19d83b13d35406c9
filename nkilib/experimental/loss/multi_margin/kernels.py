# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-class margin loss: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.losses.checks import require_upstream
from nkilib.core.rows.checks import require_flag
from nkilib.experimental.loss.multi_margin.backward import backward_of_core
from nkilib.experimental.loss.multi_margin.forward import forward_of_core
from nkilib.experimental.loss.multi_margin.host.tiling import MultiMarginTiling, choose_multi_margin_tiling
from nkilib.experimental.loss.multi_margin.launch import Launch, MultiMarginOptions, validate
from nkilib.experimental.loss.skeletons.indexed.upstream import Upstream
from nkilib.nki import nl


def multi_margin_loss_forward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    class_weight_hbm: HbmTensor | None = None,
    p: int = 1,
    margin: float = 1.0,
    reduction: str = "mean",
    chunk_size: int | None = None,
) -> nl.NkiTensor:
    """Compute the margin loss of every row x: the sum of w[t] relu(x_j - x_t + margin)^p over classes, divided by
    C.

    The sum runs over the classes j other than the target t; w are the class weights. Equivalent to
    ``F.multi_margin_loss(input, target, p, margin, weight, reduction=reduction)`` in PyTorch. The input is read
    once. Launch with ``multi_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        N: rows (N > 0).
        C: classes (C > 0).

    Args:
        input_hbm: the scores, [N, C], bfloat16, float16 or float32, in HBM.
        targets_hbm: [N], int32, each in [0, C). Another value is an out-of-range access of the DMA engine, which
            touches no other row.
        class_weight_hbm: [C], float32; None means 1.
        p: the exponent, 1 or 2.
        margin: the amount by which the score of the target should exceed every other one; finite.
        reduction: ``"none"``, ``"sum"``, or ``"mean"``: the sum divided by N, whatever the weights are.
        chunk_size: columns that are processed at a time, at most 4,096; None:
            :func:`~nkilib.experimental.loss.multi_margin.host.tiling.choose_multi_margin_tiling`.

    Returns:
        loss_hbm: for ``"none"`` [N] in the type of the input; otherwise [1], float32. A NaN in a row makes its loss
            NaN.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    options = MultiMarginOptions(p, margin)
    launch = _launch(
        "multi_margin_loss_forward", input_hbm, targets_hbm, class_weight_hbm, options, reduction, chunk_size
    )
    shape, dtype = (tuple(targets_hbm.shape), input_hbm.dtype) if launch.is_each else ((1,), nl.float32)
    loss_hbm = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    forward_of_core(launch, loss_hbm)
    return loss_hbm


def multi_margin_loss_backward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    class_weight_hbm: HbmTensor | None = None,
    p: int = 1,
    margin: float = 1.0,
    reduction: str = "mean",
    inplace: bool = False,
    chunk_size: int | None = None,
) -> nl.NkiTensor:
    """Compute the gradient of :func:`multi_margin_loss_forward` with respect to the input.

    With respect to x_j it is w[t] p relu(x_j - x_t + margin)^(p - 1) / C where x_j - x_t + margin is positive,
    and 0 elsewhere; with respect to x_t it is minus the sum of these. The input is read once, and the gradient
    is written once, except the element at the target.

    Args:
        input_hbm, targets_hbm, class_weight_hbm, p, margin, reduction, chunk_size: the arguments of the forward.
        grad_loss_hbm: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, read on the device.
        inplace: write the gradient over ``input_hbm``; else into a new tensor.

    Returns:
        grad_input_hbm: [N, C], in the type of the input; with ``inplace``, ``input_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "multi_margin_loss_backward"
    options = MultiMarginOptions(p, margin)
    launch = _launch(function, input_hbm, targets_hbm, class_weight_hbm, options, reduction, chunk_size)
    require_flag(function, "inplace", inplace)
    require_upstream(function, grad_loss_hbm, tuple(targets_hbm.shape), launch.is_each)
    grad_input_hbm = input_hbm
    if not inplace:
        shape = tuple(input_hbm.shape)
        grad_input_hbm = nl.ndarray(shape, dtype=input_hbm.dtype, buffer=nl.shared_hbm, name="grad_input_hbm")
    grad_hbm = grad_loss_hbm.reshape((launch.shape.rows, 1)) if launch.is_each else grad_loss_hbm
    backward_of_core(launch, Upstream(grad_hbm, None, launch.is_each), grad_input_hbm)
    return grad_input_hbm


def _launch(
    function: str,
    input_hbm: nl.NkiTensor,
    targets_hbm: nl.NkiTensor,
    class_weight_hbm: nl.NkiTensor | None,
    options: MultiMarginOptions,
    reduction: str,
    chunk_size: int | None,
) -> Launch:
    classes = input_hbm.shape[-1] if len(input_hbm.shape) else 0
    tiling = choose_multi_margin_tiling(max(1, classes)) if chunk_size is None else MultiMarginTiling(chunk_size)
    launch = Launch(function, input_hbm, targets_hbm, class_weight_hbm, options, reduction, tiling)
    validate(launch)
    return launch
