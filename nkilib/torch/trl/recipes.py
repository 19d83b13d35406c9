# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The computation of TRL's functions on the kernels: the conversion of TRL's arguments to those of nkilib's functions.

A *recipe* holds the arguments of a function of TRL that are not tensors, says whether the kernels take a call, and
computes the results from the tensors, the :data:`Operands`: token scores (:class:`ScoreRecipe`), and the divergence of
a student from a teacher (:class:`DivergenceRecipe`). The operands are hidden states and output layers (:class:`Head`).
:func:`rounded` and :func:`read_cap` convert biases and caps as TRL does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from nkilib.experimental.loss.distillation.launch import LEAST_TEMPERATURE, MOST_TEMPERATURE
from nkilib.experimental.loss.linear.launch import FEATURES_MAX, FEATURES_MIN, LOGIT_SCALE_MAX, LOGIT_SCALE_MIN
from nkilib.torch.dispatch.checks import autocast_dtype
from nkilib.torch.functions.linear_distillation.checks import most_hidden_bytes
from nkilib.torch.functions.linear_distillation.functional import LinearDistillationOutputs, linear_distillation_loss
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores

# Results of the token scores beside the log-probability, in the order in which they are returned.
OUTPUTS: Final = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
# The log-probability may be named too; it is returned in any case.
KNOWN_OUTPUTS: Final = frozenset({"log_probs", *OUTPUTS})


# Tensors in the order of TRL's arguments; a bias may be missing.
Operands: TypeAlias = Sequence[Tensor | None]


class Head(NamedTuple):
    """The output layer of a model, and the hidden states that it is applied to.

    Attributes:
        hidden: the hidden states [N, D].
        weight: the weight [V, D].
        bias: the bias [V], or None.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, operands: Operands) -> Head:
        """Return the head with these operands: hidden states, weight and bias.

        Raises:
            TypeError: hidden states or weight are None.
        """
        hidden, weight, bias = operands
        if hidden is None or weight is None:
            raise TypeError("nkilib.torch.trl: hidden states and weight must be tensors, got None; pass both")
        return cls(hidden, weight, bias)

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """The weight and the bias, which may be None."""
        return self.weight, self.bias

    @property
    def num_classes(self) -> int:
        """V, the number of classes, which is the number of rows of the weight.

        If ZeRO-3 has left the weight without elements, the number comes from the shape that DeepSpeed stores with it.
        """
        shape = getattr(self.weight, "ds_shape", self.weight.shape)
        return int(shape[0])


class _Rounded(torch.autograd.Function):
    """An autograd function that rounds a bias to the values of another dtype and returns them as float32. Its gradient
    has the bias's own dtype.
    """

    @staticmethod
    def forward(ctx: Any, bias: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = bias.dtype
        return bias.to(dtype).to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.dtype), None


def rounded(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias with its values rounded to ``dtype``, in float32, as TRL's token scores use it.

    A bias of ``dtype`` is returned unchanged. The gradient is not rounded to ``dtype``.
    """
    if bias.dtype == dtype:
        return bias
    function: Callable[..., Tensor] = _Rounded.apply
    return function(bias, dtype)


def read_cap(softcap: float | None) -> float | None:
    """Return the cap as TRL uses it: 0 means 1, and the sign does not matter."""
    return None if softcap is None else abs(float(softcap)) or 1.0


# The results of TRL's token scores: log-probability, entropy, log sum p^2, mean logit, whether the target is argmax.
TokenResults: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# nkilib's name of a result, by TRL's.
_NAMES: Final = {
    "entropy": "entropy",
    "log_sum_sq_probs": "log_sum_squares",
    "mean_logits": "mean_logit",
    "is_top1": "argmax",
}


@dataclass(frozen=True)
class ScoreRecipe:
    """The recipe for TRL's ``ChunkedLogProbFunction``; :func:`nkilib.torch.linear_token_scores` computes the results.

    The attributes are TRL's arguments that are not tensors, except ``chunk_size``.

    Attributes:
        temperature: the divisor of the logits.
        softcap: c of c * tanh(logits / c), before the temperature; None applies no cap.
        logit_scale: the factor of the logits, applied first.
        outputs: names of the results beside the log-probability.
    """

    temperature: float
    softcap: float | None
    logit_scale: float
    outputs: tuple[str, ...]

    def is_supported(self, head: Head) -> bool:
        """Return whether the kernels compute these scores for this output layer; if not, TRL's own code does."""
        if any(tensor is not None and tensor.dtype == torch.float64 for tensor in head):
            return False
        features = FEATURES_MIN <= head.hidden.shape[-1] <= FEATURES_MAX
        has_scale = LOGIT_SCALE_MIN <= self.logit_scale <= LOGIT_SCALE_MAX
        return features and has_scale and KNOWN_OUTPUTS.issuperset(self.outputs)

    def results(self, operands: Operands) -> TokenResults:
        """Return TRL's five results [N]: log-probability and entropy, which are differentiable, log of the sum of
        squared probabilities, mean logit, and whether the target has the largest logit; None if not in ``outputs``.

        Args:
            operands: hidden states [N, D], weight [V, D], bias [V] or None, and targets [N], int64.

        Raises:
            TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see
                :func:`nkilib.torch.linear_token_scores`.
        """
        head, targets = Head.of(operands[:3]), operands[3]
        if targets is None:
            raise TypeError("nkilib.torch.trl: targets must be a tensor, got None; pass them")
        # The operands may have different dtypes: TRL casts all to autocast's, or to that of the hidden states.
        compute_dtype = autocast_dtype(head.hidden.device) or head.hidden.dtype
        scores = linear_token_scores(
            head.hidden,
            head.weight,
            targets,
            linear_bias=None if head.bias is None else rounded(head.bias, compute_dtype),
            temperature=float(self.temperature),  # configurations have integers too
            logit_scale=float(self.logit_scale),
            logit_softcap=read_cap(self.softcap),
            outputs=tuple(ours for theirs, ours in _NAMES.items() if theirs in self.outputs),
            compute_dtype=compute_dtype,
        )
        is_top1 = None if scores.argmax is None else scores.argmax == targets
        return scores.logprob, scores.entropy, scores.log_sum_squares, scores.mean_logit, is_top1


# The results of TRL's divergences: the divergence, and the student's entropy, which has no gradient.
DivergenceResults: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LogitOptions:
    """The scale and the cap that TRL applies to one model's logits.

    Attributes:
        scale: the factor of the logits, applied first.
        softcap: c of c * tanh(logits / c), after the scale; None applies no cap.
    """

    scale: float
    softcap: float | None


def _products(student: Head, teacher: Head) -> torch.dtype | None:
    """Return a dtype for the products that rounds no more than TRL does; None to multiply each model in its operands'
    dtype.

    TRL rounds hidden states and weight of a model to autocast's dtype, or to the dtype of the hidden states, and
    multiplies them in float32. The kernels round the hidden states and weights of both models to one dtype, or none of
    them. So if the models' dtypes differ, operands that TRL rounds are multiplied in float32 without rounding. Neither
    TRL nor the kernels round a bias.
    """
    heads = (student, teacher)
    autocast = autocast_dtype(student.hidden.device)
    dtypes = [autocast or model.hidden.dtype for model in heads]
    pairs = list(zip(heads, dtypes, strict=True))
    if all(head.hidden.dtype == dtype == head.weight.dtype for head, dtype in pairs):
        return None
    return torch.float32 if len(set(dtypes)) > 1 else dtypes[0]


def _fit_on_chip(student: Head, teacher: Head) -> bool:
    dtype = _products(student, teacher)
    sizes = [model.hidden.shape[-1] * (dtype or model.hidden.dtype).itemsize for model in (student, teacher)]
    return sum(sizes) <= most_hidden_bytes(dtype is not None)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    # A call then rounds its operands only to its compute_dtype.
    is_on = autocast_dtype(device) is not None
    return torch.autocast(device.type, enabled=False) if is_on else nullcontext()


@dataclass(frozen=True)
class DivergenceRecipe:
    """The recipe for TRL's ``ChunkedDivergenceFunction``; :func:`nkilib.torch.linear_distillation_loss` computes the
    results. The attributes are TRL's arguments that are not tensors.

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
        """Return whether the kernels compute this divergence of these models; if not, TRL's own code does."""
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
            operands: hidden states [N, D], weight [V, D] and bias [V] of the student, followed by those of the teacher.

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
