"""Kernels of the smooth absolute error: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Kind
from nkilib.experimental.loss.elementwise.kinds.l1 import L1
from nkilib.experimental.loss.elementwise.kinds.smooth_l1 import SmoothL1
from nkilib.experimental.loss.elementwise.options import LEAST_NORMAL, require_option
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.nki import nl


def smooth_l1_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    beta: float = 1.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Smooth absolute error, element by element: ``d^2 / (2 beta)`` up to ``|d| = beta``, ``|d| - beta / 2`` beyond,
    with ``d = x - t``.

    Equivalent to ``F.smooth_l1_loss(input, target, reduction=reduction, beta=beta)`` in PyTorch, computed in float32.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        beta: up to which an error is squared; 0: never, as in ``l1_loss_forward``.
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "smooth_l1_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    return run_forward(function, _kind(function, beta), tensors_hbm, reduction, dtype, columns, buffers)


def smooth_l1_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    beta: float = 1.0,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of the smooth absolute error: ``clip(x - t, -beta, beta) / beta`` by the input and its negative by the
    target, each times the upstream gradient; the sign of the difference for beta 0.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, reduction, beta: what the forward was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted: which gradients are computed, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: those that are wanted, of shape and type of their
            tensor; with ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "smooth_l1_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    return run_backward(
        function, _kind(function, beta), tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers
    )


def _kind(function: str, beta: float) -> Kind:
    beta = require_option(function, "beta", beta, least=0.0)
    # One below the normal numbers is no option of an engine: the loss differs from the absolute error by less than it.
    return L1() if beta < LEAST_NORMAL else SmoothL1(beta)
