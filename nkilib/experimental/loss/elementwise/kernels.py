"""Kernels of losses of elements: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from math import prod

from nkilib.core.rows.checks import require, require_flag
from nkilib.experimental.loss.elementwise.backward import Upstream, backward_of_core
from nkilib.experimental.loss.elementwise.forward import forward_of_core
from nkilib.experimental.loss.elementwise.kind import Kind
from nkilib.experimental.loss.elementwise.kl_div import INPUT, TARGET, KlDiv, KlDivOfLogTarget, needed_tensors
from nkilib.experimental.loss.elementwise.launch import Launch
from nkilib.experimental.loss.elementwise.validation import (
    checked_tiling,
    require_floats,
    require_reduction,
    require_tensors,
    require_upstream,
)
from nkilib.nki import nl

_BATCHMEAN = "batchmean"


def kl_div_forward(
    input_hbm: nl.NkiTensor,
    target_hbm: nl.NkiTensor,
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
    require_tensors(function, {"input_hbm": input_hbm, "target_hbm": target_hbm})
    _require_options(function, log_target, reduction)
    dtype = input_hbm.dtype if dtype is None else dtype
    require_floats(function, "dtype", dtype)
    factor = _factor(reduction, tuple(input_hbm.shape))
    streamed = [input_hbm.dtype, target_hbm.dtype] + ([dtype] if factor is None else [])
    tiling = checked_tiling(function, prod(input_hbm.shape), streamed, columns, buffers)
    shape, dtype = (tuple(input_hbm.shape), dtype) if factor is None else ((1,), nl.float32)
    loss_hbm = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    forward_of_core(Launch(function, (input_hbm, target_hbm), tiling), _kind(log_target), loss_hbm, factor)
    return loss_hbm


def kl_div_backward(
    input_hbm: nl.NkiTensor,
    target_hbm: nl.NkiTensor,
    grad_loss_hbm: nl.NkiTensor,
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
    require_tensors(function, {"input_hbm": input_hbm, "target_hbm": target_hbm})
    _require_options(function, log_target, reduction)
    for name, flag in (
        ("grad_input_wanted", grad_input_wanted),
        ("grad_target_wanted", grad_target_wanted),
        ("inplace", inplace),
    ):
        require_flag(function, name, flag)
    require(
        grad_input_wanted or grad_target_wanted,
        f"{function}: grad_input_wanted or grad_target_wanted must be True, got False for both; launch nothing",
    )
    require(
        grad_input_wanted or not inplace,
        f"{function}: inplace must be False without the gradient of the input, which it is about, got True",
    )
    factor = _factor(reduction, tuple(input_hbm.shape))
    require_upstream(function, grad_loss_hbm, tuple(input_hbm.shape), is_each=factor is None)
    wanted = {INPUT: input_hbm} if grad_input_wanted else {}
    wanted |= {TARGET: target_hbm} if grad_target_wanted else {}
    tensors = (input_hbm, target_hbm)
    streamed = [tensors[number].dtype for number in needed_tensors(tuple(wanted))]
    streamed += [each.dtype for each in wanted.values()] + ([grad_loss_hbm.dtype] if factor is None else [])
    tiling = checked_tiling(function, prod(input_hbm.shape), streamed, columns, buffers)
    gradients = {number: _gradient(number, each, inplace) for number, each in wanted.items()}
    upstream = Upstream(grad_loss_hbm, factor)
    backward_of_core(Launch(function, tensors, tiling), _kind(log_target), upstream, gradients)
    found = tuple(gradients.values())
    return found[0] if len(found) == 1 else found


def _require_options(function: str, log_target: bool, reduction: str) -> None:
    require_flag(function, "log_target", log_target)
    require_reduction(function, reduction, (_BATCHMEAN,))


def _kind(log_target: bool) -> Kind:
    return KlDivOfLogTarget() if log_target else KlDiv.make()


def _factor(reduction: str, shape: tuple[int, ...]) -> float | None:
    """Of the sum; None where there is none."""
    if reduction == "none":
        return None
    divisors = {"sum": 1, "mean": prod(shape), _BATCHMEAN: shape[0] if shape else 1}
    return 1.0 / divisors[reduction]


def _gradient(number: int, like_hbm: nl.NkiTensor, inplace: bool) -> nl.NkiTensor:
    if number == INPUT and inplace:
        return like_hbm
    name = "grad_input_hbm" if number == INPUT else "grad_target_hbm"
    return nl.ndarray(tuple(like_hbm.shape), dtype=like_hbm.dtype, buffer=nl.shared_hbm, name=name)
