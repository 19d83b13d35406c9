# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``ctc_loss`` and ``CTCLoss``: connectionist temporal classification, of label sequences without an alignment."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_int, check_flags, check_reduction, hides_unknown, refuse_unknown
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, Call, Input, Output, Shape
from nkilib.torch.losses.indexed import indexed_loss
from nkilib.torch.losses.outputs import as_computed

CTC_LOSS: Final = Caller("ctc_loss", "log_probs", "log-probabilities", "torch.nn.functional.ctc_loss")
Lengths: TypeAlias = Tensor | Sequence[int]


def _check_lengths(call: Call) -> None:
    """Check that lengths are in range, as PyTorch does.

    Raises:
        RuntimeError: a length is out of range.
    """
    targets = call.tensors["targets"]
    longest = {"input_lengths": call.first.shape[0], "target_lengths": 0 if targets is None else targets.shape[1]}
    for name, most in longest.items():
        least_found, most_found = (int(bound) for bound in call.tensor(name).aminmax())
        if least_found < 0:
            raise RuntimeError(f"{CTC_LOSS}: Expected {name} to have value at least 0, but got value {least_found}")
        if most_found > most:
            raise RuntimeError(
                f"{CTC_LOSS}: Expected {name} to have value at most {most}, but got value {most_found}; there are no "
                f"more time steps, or labels of targets"
            )


def _int32(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.int32).contiguous()


def _integers(call: Call) -> dict[str, Any]:
    targets = call.tensors["targets"]
    return {
        "targets_hbm": None if targets is None else _int32(targets),
        "input_lengths_hbm": _int32(call.tensor("input_lengths")),
        "target_lengths_hbm": _int32(call.tensor("target_lengths")),
    }


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
    inputs=(
        Input("log_probs", dtypes=FLOAT_DTYPES, dimensions=3),
        Input("targets", is_optional=True, dimensions=2),
        *(Input(argument, dimensions=1) for argument in _LENGTHS),
    ),
    options={"blank": 0, "reduction": "mean", "zero_infinity": False},
    losses=_each,
    saved=(Output("nll", shape=_each, depends_on=()), Output("alpha", shape=_alphas, depends_on=())),
    backward=("log_probs", "targets", *_LENGTHS, "nll", "alpha", "grad_loss"),
    arguments=_integers,
    check_values=_check_lengths,
    may_overwrite=False,
)


def _named(input_lengths: Any, target_lengths: Any) -> list[tuple[str, Any]]:
    if isinstance(input_lengths, Tensor) != isinstance(target_lengths, Tensor):
        raise TypeError(
            f"{CTC_LOSS}: input_lengths and target_lengths must be two tensors or two sequences of int, got "
            f"{type(input_lengths).__name__} and {type(target_lengths).__name__}; pass torch.tensor of the other"
        )
    return [("input_lengths", input_lengths), ("target_lengths", target_lengths)]


def _is_integral(length: object) -> bool:
    return isinstance(length, Integral) and not isinstance(length, bool)


def _lengths(name: str, lengths: Any, log_probs: Tensor) -> Tensor:
    """Return the lengths, the argument ``name``, as a tensor on the device of the log-probabilities.

    As in PyTorch, lengths may be passed on the CPU.
    """
    if isinstance(lengths, Tensor):
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise RuntimeError(f"{CTC_LOSS}: {name} must be integral, got {lengths.dtype}; pass {name}.long()")
        return lengths.to(log_probs.device)
    if not isinstance(lengths, Sequence) or not all(map(_is_integral, lengths)):
        raise TypeError(f"{CTC_LOSS}: argument {name!r} must be Tensor or a sequence of int, got {lengths!r}")
    return torch.tensor([int(length) for length in lengths], dtype=torch.int64, device=log_probs.device)


def _check(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: Any, reduction: Any
) -> None:
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
    checks.check_float_dtype(caller, caller.input, log_probs)
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
    if not 0 <= as_int(caller, "blank", blank) < log_probs.shape[-1]:
        raise RuntimeError(f"{caller}: blank must be in label range, 0 to {log_probs.shape[-1] - 1}, got {blank}")


def _longest(lengths: Lengths, total: int, possible: int) -> int:
    """Return the length of the longest target, to which shorter targets are padded.

    Args:
        lengths: the target lengths.
        total: the number of labels of all targets together.
        possible: the greatest length that can have an alignment. It is returned if ``lengths`` is a tensor on a device
            or in a traced graph, whose values may not be read.

    Raises:
        RuntimeError: a length is negative, or the lengths do not add up to ``total``.
    """
    if isinstance(lengths, Tensor):
        if lengths.device.type != "cpu" or torch.compiler.is_compiling():
            return possible
        lengths = [int(length) for length in lengths.reshape(-1)]
    if any(length < 0 for length in lengths):
        raise RuntimeError(
            f"{CTC_LOSS}: Expected target_lengths to have value at least 0, but got value {min(lengths)}"
        )
    if sum(lengths) != total:
        raise RuntimeError(
            f"{CTC_LOSS}: Expected targets to have size {sum(lengths)} at dimension 0, the sum of their lengths, but "
            f"got size {total}"
        )
    return max(lengths)


def _padded(targets: Tensor, target_lengths: Tensor, lengths: Lengths, steps: int) -> Tensor:
    """Return concatenated targets as a padded tensor, [N, S], which is the form that the kernel takes.

    The values of ``target_lengths`` are not read. ``lengths`` are the same lengths as the caller passed them, and
    ``steps`` is the number of time steps.
    """
    total = targets.shape[0]
    longest = _longest(lengths, total, min(total, steps))
    ends = target_lengths.cumsum(0)
    places = torch.arange(longest, device=targets.device)
    index = (ends - target_lengths).unsqueeze(1) + places
    padded: Tensor = targets[index.clamp(0, max(0, total - 1))] if longest else targets.new_zeros(len(ends), 0)
    return padded


@hides_unknown
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the connectionist temporal classification loss with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank,
    reduction, zero_infinity)``, in float32. Values are never read on the device; lengths are checked on the CPU only.

    Args:
        log_probs: [T, N, C] or [T, C], log-probabilities, bfloat16, float16 or float32, as returned by ``log_softmax``:
            the gradient is correct only for an input that ``log_softmax`` computed, as in PyTorch.
        targets: [N, S] padded, or concatenated, [sum of lengths]. Labels of any integer type, none of them ``blank``.
        input_lengths, target_lengths: [N], tensors, lists or tuples of numbers; for log-probabilities [T, C] also
            scalars. With concatenated targets pass ``target_lengths`` as Python numbers: if it is a tensor on a device,
            the kernel allocates memory for the longest possible target.
        blank: the class of the blank.
        reduction: ``"mean"`` divides each loss by the length of its target, at least 1, and takes the mean; ``"sum"``;
            or ``"none"``.
        zero_infinity: whether an infinite loss, of a target that has no alignment, becomes 0, and so does its gradient.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, [N] or [] in the dtype of ``log_probs``.

    Raises:
        TypeError: an argument has the wrong Python type, or the log-probabilities are float64.
        ValueError: unknown ``reduction``.
        RuntimeError: incompatible shapes, devices or ``blank``; empty input; on the CPU, lengths out of range.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); integers; forward-mode
            differentiation.
        AssertionError: a time step does not fit a core's memory.
    """
    if unknown:
        refuse_unknown(ctc_loss, unknown)
    caller = CTC_LOSS
    checks.check_tensors(caller, {caller.input: log_probs, "targets": targets})
    lengths = [_lengths(name, values, log_probs) for name, values in _named(input_lengths, target_lengths)]
    of_inputs, of_targets = lengths
    _check(log_probs, targets, of_inputs, of_targets, blank, reduction)
    check_flags(caller, zero_infinity=zero_infinity)
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
    reduced: Tensor = loss
    return unviewed(reduced.reshape(())) if log_probs.dim() == 2 else reduced


class CTCLoss(nn.Module):
    """Connectionist temporal classification as a module, in place of ``torch.nn.CTCLoss``: :func:`ctc_loss`, computed
    by the kernels.

    Call the module with ``(log_probs, targets, input_lengths, target_lengths)``: [T, N, C] or [T, C] as ``log_softmax``
    returns them, labels [N, S] or concatenated, and two lengths for each of the N sequences. The loss is a float32
    scalar tensor, or with ``"none"`` a tensor [N]. The module keeps its options, and has neither parameters nor
    buffers.

    Args:
        blank: the class of the blank, which no label has.
        reduction: ``"mean"`` divides each loss by the length of its target, at least 1, and takes the mean over the
            sequences; ``"sum"``; or ``"none"``: a loss for each sequence.
        zero_infinity: whether the loss of a sequence without an alignment to its target is 0, and so its gradient; else
            it is infinite.
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__()
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        """Return the loss, as :func:`ctc_loss` does."""
        return ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
