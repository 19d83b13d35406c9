# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``distillation_loss`` and ``DistillationLoss``: a student's divergence from a teacher, from the logits of both
models.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import handle_torch_function
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, check_flags, hides_unknown, refuse_unknown
from nkilib.experimental import loss as kernels
from nkilib.experimental.loss.distillation.launch import DistillationOptions
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.checks import check_reduction_or_batchmean
from nkilib.torch.losses.distillation import check_labels, checked_beta, checked_numbers, reduced
from nkilib.torch.losses.modules import LossModule

DISTILLATION: Final = Caller("distillation_loss", "student_logits", "logits", "torch.nn.functional.kl_div")

# Rows are positions: logits [N, V], labels [N].
_LOGITS: Final = (
    Input("student", dimensions=2, dtypes=FLOAT_DTYPES),
    Input("teacher", dimensions=2, dtypes=FLOAT_DTYPES),
)
_LABELS: Final = Input("labels", is_optional=True)
# For both distributions: minus the shift, and the sum of the exponentials after it.
_SAVED: Final = ("moment", "student_shift", "student_sum", "teacher_shift", "teacher_sum")

_FORWARD: Final = register(
    Operator(
        "distillation_forward",
        inputs=(*_LOGITS, _LABELS),
        options=(DistillationOptions,),
        outputs=(Output("loss", depends_on=("student",)), *(Output(name) for name in _SAVED)),
        kernel=lambda: kernels.distillation_forward,
        instead=DISTILLATION.instead,
    )
)

_BACKWARD: Final = register(
    Operator(
        "distillation_backward",
        inputs=(*_LOGITS, *(Input(name) for name in _SAVED), Input("grad_loss"), _LABELS),
        options=(DistillationOptions,),
        outputs=(Output("grad_student", None, as_first),),
        kernel=lambda: kernels.distillation_backward,
        may_overwrite=True,
        instead=DISTILLATION.instead,
    )
)

_DERIVATIVE: Final = differentiate(_FORWARD, _BACKWARD)


@hides_unknown
def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    labels: Tensor | None = None,
    temperature: float = 1.0,
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
        temperature: T, from 1e-3 to 1e6.
        direction: ``"forward"`` or ``"reverse"``; has no effect with ``beta``.
        beta: from 0 to 1, the weight of P in the mixture M; None: the divergence that ``direction`` names.
        ignore_index: an int32.
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
    temperature, ignore_index = checked_numbers(DISTILLATION, temperature, ignore_index)
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
        beta=chosen,
        temperature=temperature,
        ignore_index=ignore_index,
    )
    if temperature_squared:
        loss = loss * temperature**2
    counts = None if rows_labels is None else rows_labels != ignore_index
    return reduced(loss, tuple(student_logits.shape[:-1]), counts, reduction)


def _check(student: Tensor, teacher: Tensor, labels: Tensor | None, reduction: Any) -> None:
    """Reject arguments that the kernels cannot compute."""
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


class DistillationLoss(LossModule):
    """:func:`distillation_loss` as a module; call it as ``forward(student_logits, teacher_logits, labels=None)``.

    Args:
        temperature, direction, beta, ignore_index, reduction, temperature_squared, inplace: see the function.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        direction: str = "forward",
        beta: float | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        temperature_squared: bool = False,
        inplace: bool = False,
    ) -> None:
        super().__init__(reduction, inplace)
        self.temperature = temperature
        self.direction = direction
        self.beta = beta
        self.ignore_index = ignore_index
        self.temperature_squared = temperature_squared

    def forward(self, student_logits: Tensor, teacher_logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the loss."""
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
