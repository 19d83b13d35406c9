# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``ctc_loss`` and ``CTCLoss``: connectionist temporal classification."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from nkilib.core.host.reductions import check_reduction
from nkilib.experimental.loss import ctc_loss_backward, ctc_loss_forward
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES, as_computed, check_float_dtype
from nkilib.torch.dispatch.operator import Call, Input, Output, Shape
from nkilib.torch.losses.indexed import indexed_loss

CTC_LOSS: Final = Caller("ctc_loss", "log_probs", "log-probabilities", "torch.nn.functional.ctc_loss")
Lengths: TypeAlias = Tensor | Sequence[int]


def _check_lengths(call: Call) -> None:
    """Refuse lengths out of range, as PyTorch does.

    Raises:
        RuntimeError: always then.
    """
    targets = call.tensors["targets"]
    longest = {"input_lengths": call.first.shape[0], "target_lengths": 0 if targets is None else targets.shape[1]}
    for name, most in longest.items():
        least_found, most_found = (int(each) for each in call.tensor(name).aminmax())
        if least_found < 0:
            raise RuntimeError(f"{CTC_LOSS}: Expected {name} to have value at least 0, but got value {least_found}")
        if most_found > most:
            raise RuntimeError(
                f"{CTC_LOSS}: Expected {name} to have value at most {most}, but got value {most_found}; the times, or "
                f"the labels of targets, are no more"
            )


def _integers(call: Call) -> dict[str, Any]:
    targets = call.tensors["targets"]
    return {
        "targets_hbm": None if targets is None else _int32(targets),
        "input_lengths_hbm": _int32(call.tensor("input_lengths")),
        "target_lengths_hbm": _int32(call.tensor("target_lengths")),
    }


def _int32(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.int32).contiguous()


def _each(call: Call) -> Shape:
    return (call.first.shape[1],)


def _alphas(call: Call) -> Shape:
    steps, sequences, _ = call.first.shape
    targets = call.tensors["targets"]
    return steps, sequences, 1 if targets is None else 2 * targets.shape[1] + 1


_LENGTHS: Final = ("input_lengths", "target_lengths")
# log_probs [T, N, C], targets [N, S] or None for S = 0, lengths [N], of any integer types.
_DERIVATIVE: Final = indexed_loss(
    CTC_LOSS,
    (ctc_loss_forward, ctc_loss_backward),
    inputs=(
        Input("log_probs", dtypes=FLOAT_DTYPES, dimensions=3),
        Input("targets", is_optional=True, dimensions=2),
        *(Input(each, dimensions=1) for each in _LENGTHS),
    ),
    options={"blank": 0, "reduction": "mean", "zero_infinity": False},
    losses=_each,
    saved=(Output("nll", shape=_each, depends_on=()), Output("alpha", shape=_alphas, depends_on=())),
    backward=("log_probs", "targets", *_LENGTHS, "nll", "alpha", "grad_loss"),
    arguments=_integers,
    check_values=_check_lengths,
    may_overwrite=False,
)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Connectionist temporal classification, on the kernels of :mod:`nkilib.experimental.loss`.

    Equals ``torch.nn.functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction,
    zero_infinity)``, in float32. No value is looked at on the device; on the CPU alone lengths are checked.

    Args:
        log_probs: [T, N, C] or [T, C], log-probabilities, bfloat16, float16 or float32, as of ``log_softmax``: the
            gradient is right only behind it, as in PyTorch.
        targets: [N, S] padded, or one behind the other, [sum of lengths]. Labels of any integer type, none ``blank``.
        input_lengths, target_lengths: [N], tensors or sequences of numbers; of one sequence also without a dimension.
            With concatenated targets whose lengths are on a device, pass numbers: else alpha is made for the longest
            target that there can be.
        blank: class of the blank.
        reduction: ``"mean"`` divides losses by their target's length, at least 1, and takes the mean; or ``"sum"``, or
            ``"none"``.
        zero_infinity: a loss without an alignment is 0, and its gradient too.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` [N] or [] in the type of ``log_probs``.

    Raises:
        TypeError: an argument has the wrong Python type; or log-probabilities of float64.
        ValueError: unknown ``reduction``.
        RuntimeError: shapes, devices, ``blank`` do not fit; nothing is there; on the CPU, lengths out of range.
        NotImplementedError: another device; a part of a tensor; integers; a derivative in forward mode.
        AssertionError: a time step does not fit a core's memory.
    """
    caller = CTC_LOSS
    checks.check_tensors(caller, {caller.input: log_probs, "targets": targets})
    lengths = [_lengths(name, given, log_probs) for name, given in _named(input_lengths, target_lengths)]
    of_inputs, of_targets = lengths
    _check(log_probs, targets, of_inputs, of_targets, blank, reduction)
    checks.check_flag(caller, "zero_infinity", zero_infinity)
    log_probs = as_computed(log_probs, reduction)
    batch = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    of_inputs, of_targets = of_inputs.reshape(-1), of_targets.reshape(-1)
    padded = targets if targets.dim() == 2 else _padded(targets, of_targets, target_lengths, batch.shape[0])
    loss, _, _ = _DERIVATIVE.apply(
        False,
        batch,
        padded if padded.shape[1] else None,
        of_inputs,
        of_targets,
        blank=int(blank),
        reduction=reduction,
        zero_infinity=zero_infinity,
    )
    found: Tensor = loss
    return found.reshape(()) if log_probs.dim() == 2 else found


def _named(input_lengths: Any, target_lengths: Any) -> list[tuple[str, Any]]:
    """PyTorch takes tensors or numbers, for both alike."""
    if isinstance(input_lengths, Tensor) != isinstance(target_lengths, Tensor):
        raise TypeError(
            f"{CTC_LOSS}: input_lengths and target_lengths must be two tensors or two sequences of int, got "
            f"{type(input_lengths).__name__} and {type(target_lengths).__name__}; pass torch.tensor of the other"
        )
    return [("input_lengths", input_lengths), ("target_lengths", target_lengths)]


def _lengths(name: str, given: Any, log_probs: Tensor) -> Tensor:
    """As a tensor on the device of the log-probabilities: PyTorch takes lengths from the CPU too."""
    if isinstance(given, Tensor):
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise RuntimeError(f"{CTC_LOSS}: {name} must be integral, got {given.dtype}; pass {name}.long()")
        return given.to(log_probs.device)
    if not isinstance(given, Sequence) or not all(isinstance(each, Integral) for each in given):
        raise TypeError(f"{CTC_LOSS}: argument {name!r} must be Tensor or a sequence of int, got {given!r}")
    return torch.tensor([int(each) for each in given], dtype=torch.int64, device=log_probs.device)


def _check(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: Any, reduction: Any
) -> None:
    """Refuse what the kernels cannot compute or PyTorch does not accept, with PyTorch's types of errors."""
    caller = CTC_LOSS
    check_reduction(caller, reduction)
    tensors = {caller.input: log_probs, "targets": targets}
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, log_probs, {"targets": targets})
    if log_probs.dim() not in (2, 3):
        raise RuntimeError(
            f"{caller}: Expected 3-dimensional log_probs (T, N, C), or (T, C), got {tuple(log_probs.shape)}"
        )
    if log_probs.numel() == 0:
        raise RuntimeError(f"{caller}: log_probs tensor must not be empty, got {tuple(log_probs.shape)}")
    if not log_probs.is_floating_point():
        raise NotImplementedError(f"{caller}: not implemented for {caller.noun} of {log_probs.dtype}; pass .float()")
    check_float_dtype(caller, caller.input, log_probs)
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"{caller}: targets must be integers, got {targets.dtype}; pass targets.long()")
    sequences = log_probs.shape[1] if log_probs.dim() == 3 else 1
    if targets.dim() not in (1, 2):
        raise RuntimeError(f"{caller}: Expected 1 to 2 dimensions of targets, got {tuple(targets.shape)}")
    if targets.dim() == 2 and targets.shape[0] != sequences:
        raise RuntimeError(
            f"{caller}: Expected targets to have size {sequences} at dimension 0, one for each sequence, got "
            f"{tuple(targets.shape)}"
        )
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if lengths.numel() != sequences:
            raise RuntimeError(f"{caller}: {name} must be of size batch_size, {sequences}, got {tuple(lengths.shape)}")
    if not 0 <= checks.checked_integer(caller, "blank", blank) < log_probs.shape[-1]:
        raise RuntimeError(f"{caller}: blank must be in label range, 0 to {log_probs.shape[-1] - 1}, got {blank}")


def _padded(targets: Tensor, target_lengths: Tensor, given: Lengths, steps: int) -> Tensor:
    """Concatenated targets as [N, S], by tensors alone: on a device no length is known."""
    total = targets.shape[0]
    longest = _longest(given, total, min(total, steps))
    ends = target_lengths.cumsum(0)
    places = torch.arange(longest, device=targets.device)
    index = (ends - target_lengths).unsqueeze(1) + places
    padded: Tensor = targets[index.clamp(0, max(0, total - 1))] if longest else targets.new_zeros(len(ends), 0)
    return padded


def _longest(given: Lengths, total: int, possible: int) -> int:
    """The length of the longest target. Where none may be looked at: of the longest that can have an alignment.

    Raises:
        RuntimeError: the lengths are known, and targets are more or fewer.
    """
    if isinstance(given, Tensor):
        if given.device.type != "cpu" or torch.compiler.is_compiling():
            return possible
        given = [int(each) for each in given.reshape(-1)]
    if any(each < 0 for each in given):
        raise RuntimeError(f"{CTC_LOSS}: Expected target_lengths to have value at least 0, but got value {min(given)}")
    if sum(given) != total:
        raise RuntimeError(
            f"{CTC_LOSS}: Expected targets to have size {sum(given)} at dimension 0, the sum of their lengths, but got "
            f"size {total}"
        )
    return max(given)


class CTCLoss(nn.Module):
    """``torch.nn.CTCLoss`` on the kernels.

    Args:
        blank, reduction, zero_infinity: as for :func:`ctc_loss`.
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__()
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        """The loss."""
        return ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
