"""Kernels of the likelihood of Poisson's distribution: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.rows.checks import require_flag
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Kind
from nkilib.experimental.loss.elementwise.kinds.poisson_nll import PoissonOfLogRate, PoissonOfRate
from nkilib.experimental.loss.elementwise.options import LEAST_ARGUMENT_OF_LOG, require_option
from nkilib.experimental.loss.elementwise.run import run_backward, run_forward
from nkilib.nki import nl


def poisson_nll_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Negative log-likelihood of Poisson's distribution, element by element: ``exp(x) - t x``, or ``x - t log(x +
    eps)`` without ``log_input``.

    Equivalent to ``F.poisson_nll_loss(input, target, log_input=log_input, full=full, eps=eps, reduction=reduction)`` in
    PyTorch, computed in float32. Launch with ``poisson_nll_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, the rate or its logarithm, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, counts, of the input's shape, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        log_input: the input is the logarithm of the rate.
        full: add Stirling's estimate of ``log t!`` where t > 1.
        eps: added to a rate before its logarithm is taken, at least 2^-64: what ``log`` is documented from.
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "poisson_nll_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    return run_forward(function, _kind(function, log_input, full, eps), tensors_hbm, reduction, dtype, columns, buffers)


def poisson_nll_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Gradients of the likelihood of Poisson's distribution: ``exp(x) - t`` by the input and ``-x`` by the target, or
    ``1 - t / (x + eps)`` and ``-log(x + eps)``; ``full`` adds ``log t + 1 / (2 t)`` by the target where t > 1.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch as the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, reduction, log_input, full, eps: what the forward
            was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted: which gradients are
            computed, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: those that are wanted, of shape and type of their tensor; with
        ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "poisson_nll_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    kind = _kind(function, log_input, full, eps)
    return run_backward(function, kind, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _kind(function: str, log_input: bool, full: bool, eps: float) -> Kind:
    for name, flag in (("log_input", log_input), ("full", full)):
        require_flag(function, name, flag)
    require_option(function, "eps", eps, least=LEAST_ARGUMENT_OF_LOG)
    return PoissonOfLogRate(full) if log_input else PoissonOfRate(full, eps)
