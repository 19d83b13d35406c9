# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``distillation_loss`` and ``DistillationLoss``: a student's divergence from a teacher, from the logits of both.

``linear_distillation_loss`` also uses :func:`checked_beta`, :func:`checked_numbers` and :func:`check_labels`, which
check options and labels, and :func:`reduced_divergence`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import handle_torch_function
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_float, as_int, check_flags, hides_unknown, refuse_unknown
from nkilib.experimental import loss as kernels
from nkilib.experimental.loss.distillation.launch import (
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    DistillationOptions,
    bytes_of_pair,
)
from nkilib.experimental.loss.distillation.tiling import choose_distillation_tiling
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, TILE_DTYPES, Call, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses import outputs
from nkilib.torch.losses.checks import BATCHMEAN, check_reduction_or_batchmean
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.temperatures import (
    TEMPERATURES,
    check_temperatures,
    keep_temperature,
    number_and_tensor,
    temperatures_of_rows,
)

_BETA_OF_DIRECTION: Final = {"forward": 0.0, "reverse": 1.0}
_INT32 = 2**31


def checked_beta(caller: Caller, direction: Any, beta: Any) -> float:
    """Return ``beta`` as a float; if it is None, the beta that stands for ``direction``.

    That is 0 for KL(teacher || student) and 1 for KL(student || teacher).

    Raises:
        TypeError: ``beta`` is not a number.
        ValueError: an unknown direction; ``beta`` is out of range.
    """
    if direction not in _BETA_OF_DIRECTION:
        raise ValueError(
            f"{caller}: {direction!r} is not a valid value for direction; pass 'forward', for "
            f"KL(teacher || student), or 'reverse'"
        )
    if beta is None:
        return _BETA_OF_DIRECTION[direction]
    number = as_float(caller, "beta", beta)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{caller}: beta must be from 0 to 1, got {number}; 0.5 is the Jensen-Shannon divergence")
    return number


def checked_numbers(caller: Caller, temperature: Any, ignore_index: Any) -> tuple[float, int]:
    """Return the temperature and the ``ignore_index`` as Python numbers.

    Raises:
        TypeError: an argument has the wrong Python type.
        ValueError: an argument is out of range.
    """
    temperature = as_float(caller, "temperature", temperature)
    ignore_index = as_int(caller, "ignore_index", ignore_index)
    if not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        raise ValueError(
            f"{caller}: temperature must be from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}, got {temperature}; "
            f"it divides the logits"
        )
    if not -_INT32 <= ignore_index < _INT32:
        raise ValueError(f"{caller}: ignore_index must be an int32, got {ignore_index}; use -100")
    return temperature, ignore_index


def check_labels(caller: Caller, labels: Tensor | None, positions: tuple[int, ...]) -> None:
    """Check that labels, unless None, are one integer for each position.

    Raises:
        TypeError: another dtype.
        ValueError: another shape.
    """
    if labels is None:
        return
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{caller}: labels must be integers, got {labels.dtype}; cast them, as with .long()")
    if labels.shape != positions:
        raise ValueError(
            f"{caller}: labels must have the shape of the positions, {positions}, got {tuple(labels.shape)}"
        )


def reduced_divergence(loss: Tensor, positions: tuple[int, ...], counts: Tensor | None, reduction: str) -> Tensor:
    """Return the divergences of the positions, reduced as the caller asks.

    Args:
        loss: the divergences, [N], 0 at ignored positions.
        positions: the shape of the positions.
        counts: bool [N], True for valid positions; None if all are valid.
        reduction: ``"mean"`` over the valid positions, ``"batchmean"`` over the first dimension, ``"sum"`` or
            ``"none"``.
    """
    if reduction == BATCHMEAN:
        return outputs.reduced(loss, "mean", positions, positions[0] if positions else 1)
    if counts is None:
        return outputs.reduced(loss, reduction, positions)
    count = counts.sum()
    return outputs.reduced(loss, reduction, positions, count, count == 0)


DISTILLATION: Final = Caller("distillation_loss", "student_logits", "logits", "torch.nn.functional.kl_div")

# Rows are positions: logits [N, V], labels [N].
_LOGITS: Final = (
    Input("student", dimensions=2, dtypes=FLOAT_DTYPES),
    Input("teacher", dimensions=2, dtypes=FLOAT_DTYPES),
)
_LABELS: Final = Input("labels", is_optional=True)
# For both distributions: minus the shift, and the sum of the exponentials after it.
_SAVED: Final = ("moment", "student_shift", "student_sum", "teacher_shift", "teacher_sum")


def _check_temperatures(call: Call) -> None:
    check_temperatures(DISTILLATION, call.tensors["temperatures"], LEAST_TEMPERATURE, MOST_TEMPERATURE)


def _arguments(call: Call, is_backward: bool) -> dict[str, Any]:
    """Return the partitions of a position, which depend on the number of positions."""
    is_mixed = 0.0 < call.group(DistillationOptions).beta < 1.0
    pair = (call.tensors[logits.name] for logits in _LOGITS)
    of_pair = bytes_of_pair(*(TILE_DTYPES[logits.dtype] for logits in pair if logits is not None))
    positions, vocabulary = call.first.shape
    tiling = choose_distillation_tiling(vocabulary, of_pair, is_mixed, is_backward, positions)
    return {"partitions_per_position": tiling.partitions_per_position}


_FORWARD: Final = register(
    Operator(
        "distillation_forward",
        inputs=(*_LOGITS, _LABELS, TEMPERATURES),
        options=(DistillationOptions,),
        outputs=(Output("loss", depends_on=("student",)), *(Output(name) for name in _SAVED)),
        kernel=lambda: kernels.distillation_forward,
        arguments=partial(_arguments, is_backward=False),
        check_values=_check_temperatures,
        instead=DISTILLATION.instead,
    )
)

_BACKWARD: Final = register(
    Operator(
        "distillation_backward",
        inputs=(*_LOGITS, *(Input(name) for name in _SAVED), Input("grad_loss"), _LABELS, TEMPERATURES),
        options=(DistillationOptions,),
        outputs=(Output("grad_student", None, as_first),),
        kernel=lambda: kernels.distillation_backward,
        arguments=partial(_arguments, is_backward=True),
        may_overwrite=True,
        check_values=_check_temperatures,
        instead=DISTILLATION.instead,
    )
)

_DERIVATIVE: Final = differentiate(_FORWARD, _BACKWARD)


def _check(student: Tensor, teacher: Tensor, labels: Tensor | None, reduction: Any) -> None:
    caller = DISTILLATION
    tensors = {"student_logits": student, "teacher_logits": teacher, "labels": labels}
    checks.check_tensors(caller, tensors, optional=("labels",))
    check_reduction_or_batchmean(caller, reduction)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, student, {"teacher_logits": teacher, "labels": labels})
    for name, tensor in (("student_logits", student), ("teacher_logits", teacher)):
        checks.check_float_dtype(caller, name, tensor)
    checks.check_constant(caller, "teacher_logits", teacher)
    if student.dim() == 0:
        raise ValueError(f"{caller}: student_logits must have at least one dimension, the vocabulary, got none")
    checks.check_same_shape(caller, student, "teacher_logits", teacher)
    check_labels(caller, labels, tuple(student.shape[:-1]))


@hides_unknown
def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    labels: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    direction: str = "forward",
    beta: float | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    temperature_squared: bool = False,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the divergence of the student's distribution from the teacher's, in nats, at every position.

    With P = softmax(teacher_logits / T) and Q = softmax(student_logits / T), the divergence is KL(P || Q) for
    ``direction="forward"``, which equals::

        F.kl_div(log_softmax(student_logits / T, -1), log_softmax(teacher_logits / T, -1), log_target=True,
                 reduction="none").sum(-1)

    It is KL(Q || P) for ``"reverse"``, and with ``beta`` the generalized Jensen-Shannon divergence (arXiv 2306.13649),
    beta * KL(P || M) + (1 - beta) * KL(Q || M) with M = beta * P + (1 - beta) * Q. As in Liger and TRL, beta = 0 is
    KL(P || Q) and beta = 1 is KL(Q || P). The computation is in float32 for all dtypes of the logits. Tensor values are
    never read, so the call does not wait for the device.

    Args:
        student_logits: [..., V], bfloat16, float16 or float32.
        teacher_logits: logits of the same shape, in one of these types. The teacher gets no gradient.
        labels: integers [...]; positions whose label is ``ignore_index`` are ignored. None: all positions are valid.
        temperature: T, from 1e-3 to 1e6. A number is a constant of the compiled kernel. A tensor has one temperature
            for all positions or one per position, and other values need no compilation: see
            :func:`nkilib.torch.cross_entropy`.
        direction: ``"forward"`` or ``"reverse"``; has no effect with ``beta``.
        beta: from 0 to 1, the weight of P in the mixture M; None: the divergence that ``direction`` names.
        ignore_index: the label of ignored positions, an int32.
        reduction: ``"mean"`` over the valid positions, ``"batchmean"`` (the sum divided by
            ``student_logits.size(0)``), ``"sum"`` or ``"none"``.
        temperature_squared: multiply by T^2, as Hinton et al. (arXiv 1503.02531) do, so that gradients do not shrink
            with T; Liger and TRL do not.
        inplace: the backward writes the gradient over the memory of ``student_logits``, which saves that much memory.

    Returns:
        The loss, float32: a scalar tensor; for ``"none"``, a tensor of the shape of the positions. The mean is NaN if
        no position is valid.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction`` or ``direction``; shapes differ; ``temperature``, ``beta`` or ``ignore_index``
            out of range.
        RuntimeError: ``teacher_logits`` requires grad (pass ``teacher_logits.detach()``); devices differ; ``inplace``
            with a leaf that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(distillation_loss, unknown)
    if checks.is_lazy(student_logits) or checks.is_lazy(teacher_logits):
        lazy: Tensor = handle_torch_function(
            distillation_loss,
            (student_logits, teacher_logits),
            student_logits,
            teacher_logits,
            labels=labels,
            temperature=temperature,
            direction=direction,
            beta=beta,
            ignore_index=ignore_index,
            reduction=reduction,
            temperature_squared=temperature_squared,
        )
        return lazy
    chosen = checked_beta(DISTILLATION, direction, beta)
    _check(student_logits, teacher_logits, labels, reduction)
    number, tensor = number_and_tensor(temperature)
    number, ignore_index = checked_numbers(DISTILLATION, number, ignore_index)
    positions = tuple(student_logits.shape[:-1])
    temperatures = temperatures_of_rows(DISTILLATION, tensor, positions, student_logits.device)
    check_flags(DISTILLATION, temperature_squared=temperature_squared, inplace=inplace)
    if inplace:
        others = {"teacher_logits": teacher_logits, "labels": labels}
        is_kept = student_logits.is_contiguous()
        checks.check_inplace(DISTILLATION, student_logits, others, ("teacher_logits",), is_kept, "contiguous")
    vocabulary = student_logits.shape[-1]
    rows_labels = None if labels is None else labels.reshape(-1).to(torch.int32)
    loss, *_ = _DERIVATIVE.apply(
        inplace,
        student_logits.reshape(-1, vocabulary),
        teacher_logits.detach().reshape(-1, vocabulary),
        rows_labels,
        temperatures,
        beta=chosen,
        temperature=number,
        ignore_index=ignore_index,
    )
    if temperature_squared:
        loss = loss * (number if temperatures is None else temperatures) ** 2
    counts = None if rows_labels is None else rows_labels != ignore_index
    return reduced_divergence(loss, positions, counts, reduction)


class DistillationLoss(LossModule):
    """Distillation from logits as a module: :func:`distillation_loss` with its options kept; ``torch.nn`` has no such
    module.

    Call the module with ``(student_logits, teacher_logits, labels=None)``: two tensors [..., V], and labels [...], by
    which positions are ignored. The loss is a float32 scalar tensor, or with ``"none"`` a tensor [...].

    Args:
        temperature: T, from 1e-3 to 1e6, divides the logits of both models. A number is a constant of the compiled
            kernel; a tensor is a buffer, which moves with the module but is not in the state dict.
        direction: ``"forward"``, KL(teacher || student), or ``"reverse"``; has no effect with ``beta``.
        beta: from 0 to 1, the weight of the teacher in the mixture of the generalized Jensen-Shannon divergence; None:
            the divergence that ``direction`` names.
        ignore_index: the label of ignored positions, an int32.
        reduction: ``"mean"`` over the valid positions, ``"batchmean"`` (the sum divided by ``student_logits.size(0)``),
            ``"sum"``, or ``"none"``: a loss for each position.
        temperature_squared: multiply the loss by T^2.
        inplace: the backward writes the gradient over the memory of ``student_logits``, which must not be used
            afterwards.
    """

    temperature: float | Tensor

    def __init__(
        self,
        temperature: float | Tensor = 1.0,
        direction: str = "forward",
        beta: float | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        temperature_squared: bool = False,
        inplace: bool = False,
    ) -> None:
        super().__init__(reduction, inplace)
        keep_temperature(self, temperature)
        self.direction = direction
        self.beta = beta
        self.ignore_index = ignore_index
        self.temperature_squared = temperature_squared

    def forward(self, student_logits: Tensor, teacher_logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the divergence of the logits, as :func:`distillation_loss` does."""
        return distillation_loss(
            student_logits,
            teacher_logits,
            labels=labels,
            temperature=self.temperature,
            direction=self.direction,
            beta=self.beta,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            temperature_squared=self.temperature_squared,
            inplace=self.inplace,
        )
