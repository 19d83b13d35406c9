"""Kernels of Huber's error: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, WEIGHT
from nkilib.experimental.loss.elementwise.kinds.smooth_l1 import SmoothL1
from nkilib.experimental.loss.elementwise.options import LEAST_NORMAL, require_option
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.experimental.loss.elementwise.weighted import weighted
from nkilib.nki import nl


def huber_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    delta: float = 1.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Huber's error, element by element: ``d^2 / 2`` up to ``|d| = delta``, ``delta (|d| - delta / 2)`` beyond, with
    ``d = x - t``, times a weight if there is one.

    Equivalent to ``F.huber_loss(input, target, reduction=reduction, delta=delta)`` in PyTorch, computed in float32;
    with a weight ``(weight * F.huber_loss(input, target, reduction="none", delta=delta))``, reduced.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        weight_hbm: of each element, likewise; or of an input [R, C] one of rows, [R, 1], or of columns, [1, C], without
            a copy; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        delta: up to which an error is squared, positive.
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "huber_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    kind = weighted(_kind(function, delta), weight_hbm)
    return run_forward(function, kind, tensors_hbm, reduction, dtype, columns, buffers)


def huber_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    delta: float = 1.0,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_weight_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of Huber's error: ``clip(x - t, -delta, delta) w`` by the input, its negative by the target, the error
    itself by the weight, each times the upstream gradient.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction, delta: what the forward was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted, grad_weight_wanted: which gradients are computed, at least one; a weight
            of rows or of columns has none.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm, grad_weight_hbm: those that are wanted, of shape and type of their
            tensor; with ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "huber_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted, WEIGHT: grad_weight_wanted}
    return run_backward(
        function,
        weighted(_kind(function, delta), weight_hbm, grad_weight_wanted),
        tensors_hbm,
        grad_loss_hbm,
        wanted,
        reduction,
        inplace,
        columns,
        buffers,
    )


def _kind(function: str, delta: float) -> SmoothL1:
    delta = require_option(function, "delta", delta, least=LEAST_NORMAL)
    return SmoothL1(delta, factor=delta)
