# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-label margin loss: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.losses.checks import require_upstream
from nkilib.core.rows.checks import require_flag
from nkilib.experimental.loss.multilabel_margin.backward import backward_of_core
from nkilib.experimental.loss.multilabel_margin.forward import forward_of_core
from nkilib.experimental.loss.multilabel_margin.launch import Launch, validate
from nkilib.nki import nl


def multilabel_margin_loss_forward(
    input_hbm: HbmTensor, targets_hbm: HbmTensor, reduction: str = "mean"
) -> nl.NkiTensor:
    """Compute the margin loss of the targets of every row x: the sum of relu(1 - (x_t - x_j)), divided by C.

    The sum runs over the targets t of the row and the classes j that are no targets. Equivalent to
    ``F.multilabel_margin_loss(input, target, reduction=reduction)`` in PyTorch. Launch with
    ``multilabel_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores. The time grows with the
    length of the longest list of targets of all rows, which the device finds out.

    Dimensions:
        N: rows (0 < N <= 262,144).
        C: classes (0 < C <= 4,096).

    Args:
        input_hbm: the scores, [N, C], bfloat16, float16 or float32, in HBM. An infinite score counts as the
            largest finite number.
        targets_hbm: [N, C], int32; the targets of a row are the classes before its first negative number. A class that
            occurs twice counts twice. A number of C or more counts as a target with a score of 0, and touches nothing
            else.
        reduction: ``"none"``, ``"sum"``, or ``"mean"``: the sum divided by N.

    Returns:
        loss_hbm: for ``"none"`` [N] in the type of the input; otherwise [1], float32. A NaN in a row with a target
            makes its loss NaN.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    launch = Launch("multilabel_margin_loss_forward", input_hbm, targets_hbm, reduction)
    validate(launch)
    shape, dtype = ((launch.rows,), input_hbm.dtype) if launch.is_each else ((1,), nl.float32)
    loss_hbm = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    forward_of_core(launch, loss_hbm)
    return loss_hbm


def multilabel_margin_loss_backward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    inplace: bool = False,
) -> nl.NkiTensor:
    """Compute the gradient of :func:`multilabel_margin_loss_forward` with respect to the input.

    For x_j of a class that is no target it is the number of targets with x_t - x_j < 1, divided by C. For x_t
    of a target it is minus the number of such classes with x_t - x_j < 1, divided by C, for each time that t is
    in the list.

    Args:
        input_hbm, targets_hbm, reduction: the arguments of the forward.
        grad_loss_hbm: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, read on the device.
        inplace: write the gradient over ``input_hbm``; else into a new tensor.

    Returns:
        grad_input_hbm: [N, C], in the type of the input; with ``inplace``, ``input_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "multilabel_margin_loss_backward"
    launch = Launch(function, input_hbm, targets_hbm, reduction)
    validate(launch)
    require_flag(function, "inplace", inplace)
    require_upstream(function, grad_loss_hbm, (launch.rows,), launch.is_each)
    grad_input_hbm = input_hbm
    if not inplace:
        shape = tuple(input_hbm.shape)
        grad_input_hbm = nl.ndarray(shape, dtype=input_hbm.dtype, buffer=nl.shared_hbm, name="grad_input_hbm")
    backward_of_core(launch, grad_loss_hbm, grad_input_hbm)
    return grad_input_hbm
