"""Kernels of the likelihood of the normal distribution: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.rows.checks import require_flag
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, VARIANCE, Kind
from nkilib.experimental.loss.elementwise.kinds.gaussian_nll import GaussianNll
from nkilib.experimental.loss.elementwise.options import LEAST_ARGUMENT_OF_LOG, require_option
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.nki import nl


def gaussian_nll_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    var_hbm: HbmTensor,
    reduction: str = "mean",
    full: bool = False,
    eps: float = 1e-6,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Negative log-likelihood of the normal distribution, element by element: ``(log v + (x - t)^2 / v) / 2`` for
    ``v = max(var, eps)``.

    Equivalent to ``F.gaussian_nll_loss(input, target, var, full=full, eps=eps, reduction=reduction)`` in PyTorch,
    computed in float32. Launch with ``gaussian_nll_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, means, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the input's shape, in any of these types.
        var_hbm: variances, likewise.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        full: add ``log(2 pi) / 2``.
        eps: the least variance that is computed with, at least 2^-64.
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "gaussian_nll_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, VARIANCE: var_hbm}
    return run_forward(function, _kind(function, full, eps), tensors_hbm, reduction, dtype, columns, buffers)


def gaussian_nll_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    var_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    full: bool = False,
    eps: float = 1e-6,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_var_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of the likelihood of the normal distribution: ``(x - t) / v`` by the input, its negative by the
    target, and ``(1 / v - (x - t)^2 / v^2) / 2`` by the variance, whether it was raised to ``eps`` or not.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch as the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, var_hbm, reduction, full, eps: what the forward
            was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted, grad_var_wanted: which gradients are
            computed, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm, grad_var_hbm: those that are wanted, of shape and type of their tensor; with
        ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "gaussian_nll_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, VARIANCE: var_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted, VARIANCE: grad_var_wanted}
    kind = _kind(function, full, eps)
    return run_backward(function, kind, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _kind(function: str, full: bool, eps: float) -> Kind:
    require_flag(function, "full", full)
    require_option(function, "eps", eps, least=LEAST_ARGUMENT_OF_LOG)
    return GaussianNll(full, eps)
