"""Kernels of the Kullback-Leibler divergence: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.rows.checks import require_flag
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Kind
from nkilib.experimental.loss.elementwise.kinds.kl_div import KlDiv, KlDivOfLogTarget
from nkilib.experimental.loss.elementwise.run import BATCHMEAN, run_backward, run_forward
from nkilib.nki import nl


def kl_div_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    log_target: bool = False,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Kullback-Leibler divergence, element by element: ``t * (log t - x)``, or ``exp(t) * (t - x)``.

    Equivalent to ``F.kl_div(input, target, reduction=reduction, log_target=log_target)`` in PyTorch, computed in
    float32. Launch with ``kl_div_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, log-probabilities, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types. Probabilities that are 0 give 0; of those below
            2^-64, log t is log(t + 2^-64).
        log_target: the target holds log-probabilities.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` (over elements) or ``"batchmean"`` (the sum over the first
            dimension's size).
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "kl_div_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    kind = _kind(function, log_target)
    return run_forward(function, kind, tensors_hbm, reduction, dtype, columns, buffers, further=(BATCHMEAN,))


def kl_div_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    log_target: bool = False,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of the divergence: by the input ``-t`` or ``-exp(t)``, by the target ``log t + 1 - x`` or
    ``exp(t) * (t - x + 1)``, times the upstream gradient.

    Equivalent to the gradients of ``F.kl_div(input, target, reduction=reduction, log_target=log_target)`` in PyTorch.
    Launch as the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, log_target, reduction: what the forward was given. The input is read for the gradient of
            the target alone.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted: which gradients are computed, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: those that are wanted, of shape and type of their tensor; with ``inplace`` the
        first is ``input_hbm``. At a probability of 0 the gradient of the target is NaN, as in PyTorch.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "kl_div_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    kind, wanted = _kind(function, log_target), {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    return run_backward(
        function, kind, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers, further=(BATCHMEAN,)
    )


def _kind(function: str, log_target: bool) -> Kind:
    require_flag(function, "log_target", log_target)
    return KlDivOfLogTarget() if log_target else KlDiv()
