# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_distillation_loss``: a student's divergence from a teacher, from the hidden states of both models.

:class:`LinearDistillationOutputs` is the result of a call that requests scores; :class:`LinearDistillationLoss` is the
module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, check_flags, hides_unknown, refuse_unknown
from nkilib.torch.dispatch.layout import as_rows
from nkilib.torch.functions.distillation_loss import checked_beta, checked_numbers, reduced_divergence
from nkilib.torch.functions.linear_cross_entropy.checks import check_memory_limit
from nkilib.torch.functions.linear_cross_entropy.operators import wanted_gradients
from nkilib.torch.functions.linear_distillation.checks import (
    STUDENT,
    TEACHER,
    DistillationArguments,
    Model,
    check_arguments,
    check_features_fit,
    check_tensor_arguments,
    checked_compute_dtype,
    checked_outputs,
    checked_recipe,
)
from nkilib.torch.functions.linear_distillation.operators import (
    DERIVATIVE,
    FORWARD,
    DistillationOperands,
    DistillationResults,
    Labels,
    Memory,
    Wanted,
)
from nkilib.torch.functions.linear_distillation.operators import LINEAR_DISTILLATION as _CALLER
from nkilib.torch.functions.linear_distillation.placement import plain_arguments
from nkilib.torch.functions.linear_distillation.shards import vocab_parallel_divergence
from nkilib.torch.losses.checks import check_reduction_or_batchmean
from nkilib.torch.losses.indexed import is_ignored
from nkilib.torch.losses.outputs import in_shape_of_rows
from nkilib.torch.losses.temperatures import keep_temperature, number_and_tensor, temperatures_of_rows


class LinearDistillationOutputs(NamedTuple):
    """The loss and the requested scores of the student, float32; None for a score that is not requested.

    Attributes:
        loss: the same loss as without ``outputs``. Differentiable.
        entropy: the entropy of the student's softmax at every position, ignored ones included, in nats. A constant.
        logprob: the student's log-probability of the label, in nats, of the shape of the labels; 0 at ignored
            positions. Differentiable.
    """

    loss: Tensor
    entropy: Tensor | None
    logprob: Tensor | None


def _operands(arguments: DistillationArguments) -> DistillationOperands:
    student, teacher = arguments.student, arguments.teacher
    rows, bias = as_rows(student.input, -1), student.kernel_bias
    wanted = wanted_gradients(rows, student.weight, bias)
    summed = arguments.grad_weight_sum if wanted is not None and wanted.grad_weight_wanted else None
    teacher_bias = teacher.kernel_bias
    return DistillationOperands(
        rows,
        student.weight,
        as_rows(teacher.input.detach(), -1),
        teacher.weight.detach(),
        None if arguments.labels is None else arguments.labels.reshape(-1),
        bias,
        None if teacher_bias is None else teacher_bias.detach(),
        None if arguments.row_weight is None else arguments.row_weight.detach().to(torch.float32).reshape(-1),
        summed,
        temperatures_of_rows(_CALLER, arguments.temperature, student.positions, student.input.device),
    )


def _returned(
    loss: Tensor, results: DistillationResults, names: tuple[str, ...], positions: tuple[int, ...]
) -> LinearDistillationOutputs:
    def score(name: str) -> Tensor | None:
        return in_shape_of_rows(getattr(results, name), positions) if name in names else None

    return LinearDistillationOutputs(loss, score("entropy"), score("logprob"))


@overload
def linear_distillation_loss(
    input: Tensor,
    linear_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    labels: Tensor | None = ...,
    group: dist.ProcessGroup | None = ...,
    *,
    linear_bias: Tensor | None = ...,
    teacher_bias: Tensor | None = ...,
    direction: str = ...,
    beta: float | None = ...,
    temperature: float | Tensor = ...,
    temperature_squared: bool = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    logit_scale: float = ...,
    logit_softcap: float | None = ...,
    teacher_logit_scale: float = ...,
    teacher_logit_softcap: float | None = ...,
    row_weight: Tensor | None = ...,
    outputs: tuple[()] = ...,
    compute_dtype: torch.dtype | None = ...,
    grad_weight_sum: Tensor | None = ...,
    memory_limit: int | None = ...,
) -> Tensor: ...


@overload
def linear_distillation_loss(
    input: Tensor,
    linear_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    labels: Tensor | None = ...,
    group: dist.ProcessGroup | None = ...,
    *,
    linear_bias: Tensor | None = ...,
    teacher_bias: Tensor | None = ...,
    direction: str = ...,
    beta: float | None = ...,
    temperature: float | Tensor = ...,
    temperature_squared: bool = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    logit_scale: float = ...,
    logit_softcap: float | None = ...,
    teacher_logit_scale: float = ...,
    teacher_logit_softcap: float | None = ...,
    row_weight: Tensor | None = ...,
    outputs: Iterable[str],
    compute_dtype: torch.dtype | None = ...,
    grad_weight_sum: Tensor | None = ...,
    memory_limit: int | None = ...,
) -> Tensor | LinearDistillationOutputs: ...


@hides_unknown
def linear_distillation_loss(
    input: Tensor,
    linear_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    labels: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    linear_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    direction: str = "forward",
    beta: float | None = None,
    temperature: float | Tensor = 1.0,
    temperature_squared: bool = False,
    reduction: str = "mean",
    ignore_index: int = -100,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    teacher_logit_scale: float = 1.0,
    teacher_logit_softcap: float | None = None,
    row_weight: Tensor | None = None,
    outputs: Iterable[str] = (),
    compute_dtype: torch.dtype | None = None,
    grad_weight_sum: Tensor | None = None,
    memory_limit: int | None = None,
    **unknown: Unpack[NoKeywords],
) -> Tensor | LinearDistillationOutputs:
    """Compute the divergence of the student's distribution from the teacher's, in nats, from the hidden states of both
    models.

    The loss equals, with ``F`` for ``torch.nn.functional``::

        student = logit_scale * F.linear(input, linear_weight, linear_bias)
        teacher = teacher_logit_scale * F.linear(teacher_input, teacher_weight, teacher_bias)
        z_s, z_t = softcap(student, logit_softcap), softcap(teacher, teacher_logit_softcap)
        nkilib.torch.distillation_loss(z_s, z_t, labels=labels, direction=direction, beta=beta, ...)

    All steps are in float32, without rounding of logits and without a tensor of logits of either model in memory. The
    forward is one launch, and so is the backward. For ``beta`` between 0 and 1 the forward keeps the float32 logits of
    a block of positions, whose size ``memory_limit`` bounds. The gradients of ``input``, ``linear_weight`` and
    ``linear_bias`` have the dtypes of these tensors, are accumulated in float32 and rounded once; a gradient that is
    not needed is not computed, and the teacher has none. Tensor values are never read, so the call does not wait for
    the device; only on the CPU are labels checked for their range, if ``"logprob"`` is requested.

    Let P be the teacher's softmax and Q the student's. A class that a bias of -inf masks in both models adds nothing. A
    class masked only in the teacher adds nothing to KL(P || Q), and makes KL(Q || P) infinite. A class masked only in
    the student makes KL(P || Q) infinite, and adds nothing to KL(Q || P). The Jensen-Shannon divergence is always
    finite. Where KL(P || Q) is infinite, the gradient with respect to the logits is that of the formula, Q - P. Where
    KL(Q || P) is infinite, the gradient of the logits is NaN or infinite, and so are the gradients of weight and bias,
    and with products in float16 the gradients of all positions: give such positions the label ``ignore_index``.

    Args:
        input: [..., Ds], the student's hidden states, bfloat16, float16 or float32.
        linear_weight: [V, Ds], the student's weight, in one of these types; with ``group``, the rows of this rank.
            DTensors are treated as in :func:`nkilib.torch.linear_token_scores`: a DTensor of ``Shard(0)`` with a
            replicated ``input`` is a sharded vocabulary; with a plain ``input`` a DTensor is gathered, as FSDP2 would,
            and its gradient is averaged over the ranks.
        teacher_input: [..., Dt], the teacher's hidden states of the same positions, in one of these types.
        teacher_weight: [V, Dt], the teacher's weight of the same classes; with ``group``, the rows of this rank. A
            DTensor is gathered, unless this rank already has the classes that it needs.
        labels: integers [...]; positions whose label is ``ignore_index`` are ignored. None: all positions are valid.
        group: the ranks that share the vocabulary, with equally many classes each; None: both weights have all classes.
        linear_bias, teacher_bias: [V], in one of these types, used in float32, without rounding; -inf masks a class.
        direction: ``"forward"``, KL(teacher || student), or ``"reverse"``; has no effect with ``beta``.
        beta: from 0 to 1, or None for the divergence that ``direction`` names: 0 is KL(teacher || student), 1 is
            KL(student || teacher), and values between them are the generalized Jensen-Shannon divergence, see
            :func:`nkilib.torch.distillation_loss`.
        temperature: T, from 1e-3 to 1e6, divides the logits of both models, after the caps. Like scales and caps, a
            number is a constant of the compiled kernel: each new value compiles a new kernel. A tensor has one
            temperature for all positions or one per position, and other values need no compilation: see
            :func:`nkilib.torch.cross_entropy`.
        temperature_squared: multiply the loss by T^2.
        reduction: ``"mean"`` over the valid positions, ``"batchmean"`` (the sum divided by ``input.size(0)``),
            ``"sum"`` or ``"none"``.
        ignore_index: the label of ignored positions, an int32.
        logit_scale, teacher_logit_scale: multiply the logits before the cap; from 1e-6 to 1e6.
        logit_softcap, teacher_logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c); None
            applies no cap.
        row_weight: [...] floating, a factor for the loss of each position, used in float32; a constant. A mean divides
            by the number of valid positions, not by the sum of their weights; entropies and log-probabilities are not
            weighted.
        outputs: names of scores of the student to return too: ``"entropy"``, and with labels ``"logprob"``. Gradients
            flow through the log-probability, and not through the entropy.
        compute_dtype: bfloat16, float16 or float32, the dtype of the products. None: autocast's dtype if autocast is
            on; otherwise each model is multiplied in its own dtype, and if hidden states and weight of a model have
            different dtypes, all hidden states and weights are rounded to the dtype of ``input``.
        grad_weight_sum: [V, Ds] float32, contiguous: the backward adds the gradient of ``linear_weight`` to it,
            unrounded, and returns no gradient for ``linear_weight``.
        memory_limit: the HBM bytes that the kept float32 logits of both models may use, for ``beta`` between 0 and 1;
            it has no effect otherwise, nor with ``group``. If it is too small for the logits of two blocks of 128
            positions (2,048 V bytes), or of one block if there is only one, both products are computed twice. None: 2
            GiB.

    Returns:
        The loss, float32: a scalar tensor; for ``"none"``, a tensor of the shape of the positions. The mean is NaN if
        no position is valid. With ``outputs``, a named tuple of the loss and the scores, each of the shape of the
        positions; None for a score that is not requested. With ``group`` or a sharded vocabulary, the result is the
        same on every rank.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: an unknown ``reduction``, ``direction`` or name in ``outputs``; ``"logprob"`` without labels; shapes
            differ; a number out of range; ``grad_weight_sum`` cannot be used; both a group and a DTensor. On the CPU,
            raised on all ranks: the ranks do not see the same shards or options.
        RuntimeError: a tensor of the teacher, or ``row_weight``, requires grad (pass it detached); devices differ.
        IndexError: on the CPU, a label out of range whose log-probability is requested.
        NotImplementedError: an unsupported device; a number of features or classes that no kernel takes, such as more
            than 16,384 float32 features of both models together, or 32,768 features of 16 bits; other DTensor
            placements; forward-mode or second-order differentiation.
    """
    if unknown:
        refuse_unknown(linear_distillation_loss, unknown)
    chosen = checked_beta(_CALLER, direction, beta)
    number, temperatures = number_and_tensor(temperature)
    number, ignore_index = checked_numbers(_CALLER, number, ignore_index)
    check_flags(_CALLER, temperature_squared=temperature_squared)
    check_reduction_or_batchmean(_CALLER, reduction)
    names = checked_outputs(_CALLER, outputs, labels)
    recipe = checked_recipe(
        _CALLER, chosen, number, logit_scale, logit_softcap, teacher_logit_scale, teacher_logit_softcap
    )
    check_memory_limit(_CALLER, memory_limit)
    arguments = DistillationArguments(
        Model(STUDENT, input, linear_weight, linear_bias),
        Model(TEACHER, teacher_input, teacher_weight, teacher_bias),
        labels,
        row_weight,
        grad_weight_sum,
        temperatures,
    )
    check_tensor_arguments(_CALLER, arguments)
    placed = plain_arguments(_CALLER, arguments, group)
    arguments, shards = placed.arguments, placed.shards
    check_arguments(_CALLER, arguments, None if shards is None else shards.num_classes)
    recipe = replace(recipe, compute_dtype=checked_compute_dtype(_CALLER, arguments, compute_dtype))
    check_features_fit(_CALLER, arguments, recipe.compute_dtype)
    counted, wanted = Labels(ignore_index), Wanted("logprob" in names)
    operands = _operands(arguments)
    if shards is None:
        kept = Memory(memory_limit if recipe.is_mixed else None)
        keywords = FORWARD.keywords_from(recipe, counted, kept, wanted)
        results = DistillationResults(*DERIVATIVE.apply(False, *operands, **keywords))
    else:
        results = vocab_parallel_divergence(_CALLER, operands, recipe, counted, wanted, shards, placed.group)
    loss = results.divergence
    if temperature_squared:
        loss = loss * (number if operands.temperatures is None else operands.temperatures) ** 2
    counts = None if operands.labels is None else ~is_ignored(operands.labels, ignore_index)
    loss = reduced_divergence(loss, arguments.student.positions, counts, reduction)
    return _returned(loss, results, names, arguments.student.positions) if names else loss


class LinearDistillationLoss(nn.Module):
    """Distillation from hidden states as a module: :func:`~nkilib.torch.linear_distillation_loss` with its options
    kept; ``torch.nn`` has no such module.

    Example::

        criterion = LinearDistillationLoss(beta=0.5, temperature=0.9)
        loss = criterion(hidden, student.lm_head.weight, teacher_hidden, teacher.lm_head.weight.detach(), labels)

    Call the module with the tensors of the function: hidden states [..., Ds] and weight [V, Ds] of the student, those
    of the teacher, [..., Dt] and [V, Dt], labels [...], and by name biases, row weights and ``grad_weight_sum``. The
    loss is a float32 scalar tensor, or with ``"none"`` a tensor [...]. The module has no parameters: the output layers
    stay where they are.

    Args:
        direction: ``"forward"``, KL(teacher || student), or ``"reverse"``; has no effect with ``beta``.
        beta: from 0 to 1, the weight of the teacher in the mixture of the generalized Jensen-Shannon divergence; None:
            the divergence that ``direction`` names.
        temperature: T, from 1e-3 to 1e6, divides the logits of both models, after the caps. A number is a constant of
            the compiled kernel; a tensor is a buffer, which moves with the module but is not in the state dict.
        temperature_squared: multiply the loss by T^2.
        reduction: ``"mean"`` over the valid positions, ``"batchmean"`` (the sum divided by ``input.size(0)``),
            ``"sum"``, or ``"none"``: a loss for each position.
        ignore_index: the label of ignored positions, an int32.
        logit_scale, teacher_logit_scale: multiply the logits before the cap; from 1e-6 to 1e6.
        logit_softcap, teacher_logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c); None
            applies no cap.
        outputs: names of scores of the student to return too: ``"entropy"``, and with labels ``"logprob"``.
        compute_dtype: bfloat16, float16 or float32, the dtype of the products; None: autocast's dtype if autocast is
            on, else that of each model.
        memory_limit: the HBM bytes that kept logits of both models may use, for ``beta`` between 0 and 1; None: 2 GiB.
    """

    temperature: float | Tensor

    def __init__(
        self,
        *,
        direction: str = "forward",
        beta: float | None = None,
        temperature: float | Tensor = 1.0,
        temperature_squared: bool = False,
        reduction: str = "mean",
        ignore_index: int = -100,
        logit_scale: float = 1.0,
        logit_softcap: float | None = None,
        teacher_logit_scale: float = 1.0,
        teacher_logit_softcap: float | None = None,
        outputs: Iterable[str] = (),
        compute_dtype: torch.dtype | None = None,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__()
        self.direction = direction
        self.beta = beta
        keep_temperature(self, temperature)
        self.temperature_squared = temperature_squared
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.logit_scale = logit_scale
        self.logit_softcap = logit_softcap
        self.teacher_logit_scale = teacher_logit_scale
        self.teacher_logit_softcap = teacher_logit_softcap
        self.outputs = outputs if isinstance(outputs, str) or not isinstance(outputs, Iterable) else tuple(outputs)
        self.compute_dtype = compute_dtype
        self.memory_limit = memory_limit

    def forward(
        self,
        input: Tensor,
        linear_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        labels: Tensor | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        linear_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        row_weight: Tensor | None = None,
        grad_weight_sum: Tensor | None = None,
    ) -> Tensor | LinearDistillationOutputs:
        """Return :func:`linear_distillation_loss` of these tensors: the loss, or with the option ``outputs`` a named
        tuple of the loss and the student's scores.
        """
        return linear_distillation_loss(
            input,
            linear_weight,
            teacher_input,
            teacher_weight,
            labels,
            group,
            linear_bias=linear_bias,
            teacher_bias=teacher_bias,
            direction=self.direction,
            beta=self.beta,
            temperature=self.temperature,
            temperature_squared=self.temperature_squared,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            logit_scale=self.logit_scale,
            logit_softcap=self.logit_softcap,
            teacher_logit_scale=self.teacher_logit_scale,
            teacher_logit_softcap=self.teacher_logit_softcap,
            row_weight=row_weight,
            outputs=self.outputs,
            compute_dtype=self.compute_dtype,
            grad_weight_sum=grad_weight_sum,
            memory_limit=self.memory_limit,
        )
