# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments and results of TRL's divergences, computed by :func:`nkilib.torch.linear_distillation_loss`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor

from nkilib.experimental.loss.distillation.options import LEAST_TEMPERATURE, MOST_TEMPERATURE
from nkilib.experimental.loss.linear.shared.launch import FEATURES_MAX, FEATURES_MIN, LOGIT_SCALE_MAX, LOGIT_SCALE_MIN
from nkilib.torch.dispatch.autocast import autocast_dtype
from nkilib.torch.functions.linear_distillation.checks import most_hidden_bytes
from nkilib.torch.functions.linear_distillation.functional import linear_distillation_loss
from nkilib.torch.functions.linear_distillation.results import LinearDistillationOutputs
from nkilib.torch.trl.operands import Head, Operands, read_cap

# The results of TRL's function: the divergence, and the student's entropy, which has no gradient.
DivergenceResults: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LogitOptions:
    """The scaling and capping of one model's logits.

    Attributes:
        scale: the factor of the logits, applied first.
        softcap: c of c * tanh(logits / c), after the scale; None applies no cap.
    """

    scale: float
    softcap: float | None


@dataclass(frozen=True)
class DivergenceRecipe:
    """The arguments of TRL's ``ChunkedDivergenceFunction`` that are not tensors.

    Attributes:
        beta: 0 is KL(teacher || student), 1 is KL(student || teacher), and between them is the generalized
            Jensen-Shannon divergence with M = beta * teacher + (1 - beta) * student.
        temperature: the divisor of the logits of both models.
        student, teacher: the logit options of each model.
    """

    beta: float
    temperature: float
    student: LogitOptions
    teacher: LogitOptions

    def is_supported(self, student: Head, teacher: Head) -> bool:
        """Return whether the kernels compute these divergences; TRL's own code computes the others."""
        if any(tensor.dtype == torch.float64 for head in (student, teacher) for tensor in head if tensor is not None):
            return False
        has_features = all(FEATURES_MIN <= model.hidden.shape[-1] <= FEATURES_MAX for model in (student, teacher))
        if not has_features or not _fit_on_chip(student, teacher):
            return False
        has_scales = all(LOGIT_SCALE_MIN <= model.scale <= LOGIT_SCALE_MAX for model in (self.student, self.teacher))
        has_options = 0.0 <= self.beta <= 1.0 and LEAST_TEMPERATURE <= self.temperature <= MOST_TEMPERATURE
        return has_scales and has_options and student.num_classes == teacher.num_classes

    def results(self, operands: Operands) -> DivergenceResults:
        """Return TRL's two results [N]: the divergence, differentiable with respect to the student's operands, and the
        student's entropy.

        Args:
            operands: hidden states [N, D], weight [V, D] and bias [V] of the student, and then of the teacher.

        Raises:
            TypeError, ValueError, RuntimeError, NotImplementedError: see :func:`nkilib.torch.linear_distillation_loss`.
        """
        student, teacher = Head.of(operands[:3]), Head.of(operands[3:])
        compute_dtype = _products(student, teacher)
        with _without_autocast(student.hidden.device):
            results = linear_distillation_loss(
                student.hidden,
                student.weight,
                teacher.hidden.detach(),
                teacher.weight.detach(),
                linear_bias=student.bias,
                teacher_bias=None if teacher.bias is None else teacher.bias.detach(),
                beta=float(self.beta),  # configurations have integers too
                temperature=float(self.temperature),
                temperature_squared=False,
                reduction="none",
                logit_scale=float(self.student.scale),
                logit_softcap=read_cap(self.student.softcap),
                teacher_logit_scale=float(self.teacher.scale),
                teacher_logit_softcap=read_cap(self.teacher.softcap),
                outputs=("entropy",),
                compute_dtype=compute_dtype,
            )
        scores = cast(LinearDistillationOutputs, results)
        return scores.loss, cast(Tensor, scores.entropy)


def _products(student: Head, teacher: Head) -> torch.dtype | None:
    """Return a dtype of the products that rounds no more than TRL does; None to multiply each model in the dtype of its
    operands.

    TRL rounds hidden states and weight of a model to autocast's dtype, or to that of its hidden states, and multiplies
    them in float32. The kernels round all hidden states and weights to one dtype, or none. So if the models differ,
    operands that TRL rounds are multiplied in float32 without rounding. Neither rounds a bias.
    """
    heads = (student, teacher)
    autocast = autocast_dtype(student.hidden.device)
    dtypes = [autocast or model.hidden.dtype for model in heads]
    pairs = list(zip(heads, dtypes, strict=True))
    if all(head.hidden.dtype == dtype == head.weight.dtype for head, dtype in pairs):
        return None
    return torch.float32 if len(set(dtypes)) > 1 else dtypes[0]


def _fit_on_chip(student: Head, teacher: Head) -> bool:
    """Return whether the hidden states of both models, in the dtypes of their products, fit on chip together."""
    dtype = _products(student, teacher)
    sizes = [model.hidden.shape[-1] * (dtype or model.hidden.dtype).itemsize for model in (student, teacher)]
    return sum(sizes) <= most_hidden_bytes(dtype is not None)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast, so that a call rounds its operands only to the ``compute_dtype`` that it
    names.
    """
    is_on = autocast_dtype(device) is not None
    return torch.autocast(device.type, enabled=False) if is_on else nullcontext()
