# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of torch that a kernel computes from hidden states and weights in place of logits: cross-entropy, NLL
loss of log-probabilities, ``gather``, ``logsumexp``, ``argmax``, sums over the classes, and Kullback-Leibler
divergence.

Each is registered in ``logits.CONSUMERS`` with the same arguments, and returns None for arguments that no kernel takes;
the logits are then computed. :func:`_results` runs a function of nkilib on the operands of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch
from torch import Tensor

from nkilib.experimental.loss.linear.launch import IDS_MAX
from nkilib.torch.dispatch.checks import autocast_dtype
from nkilib.torch.dispatch.dtensors import dtensor
from nkilib.torch.functions.cross_entropy.functional import CrossEntropyOutputs
from nkilib.torch.functions.linear_cross_entropy.functional import linear_cross_entropy
from nkilib.torch.functions.linear_distillation.functional import linear_distillation_loss
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.functions.output_layer import results_in_forward
from nkilib.torch.lazy_logits.form import Form, Kind
from nkilib.torch.lazy_logits.logits import CONSUMERS, LazyLogits, whole
from nkilib.torch.lazy_logits.transformations import registering
from nkilib.torch.losses.temperatures import number_and_tensor

_IGNORED: Final = -100
_consumes: Final = registering(CONSUMERS)

# A function of hidden states [..., D], targets, weight [V, D] and bias.
_OfOperands = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, ...]]


def _features_last(form: Form) -> Tensor:
    """Return the hidden states [..., D] of all terms, with their features beside each other."""
    parts = [term.hidden if term.factor == 1.0 else term.hidden * term.factor for term in form.terms]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=form.class_dim)).movedim(form.class_dim, -1)


def _sum_of_biases(form: Form) -> Tensor | None:
    total: Tensor | None = None
    for term in form.terms:
        if term.layer.bias is not None:
            part = term.factor * whole(term.layer.bias).float()
            total = part if total is None else total + part
    return total


def _kept_classes(form: Form, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the rows of the classes that were not cut off."""
    if weight.shape[0] == form.classes:
        return weight, bias
    return weight[: form.classes], None if bias is None else bias[: form.classes]


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast: its dtype is that of the call of the output layer, not of the loss."""
    return ExitStack() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def _results(logits: LazyLogits, target: Tensor, function: _OfOperands) -> tuple[Tensor, ...]:
    """Return the results of a function of the operands of the logits, without autocast, whose dtype of products is
    :func:`_compute_dtype`.
    """
    form, call = logits.form, logits.call
    call.check_unchanged()
    device = logits.device
    with ExitStack() as stack:
        stack.enter_context(_without_autocast(device))
        if form.is_detached or not call.mode.is_grad_enabled:
            stack.enter_context(torch.no_grad())
        hidden = _features_last(form)
        if len(form.terms) == 1:
            layer = form.terms[0].layer

            def of_head(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
                return function(
                    hidden, target, *_kept_classes(form, whole(weight), None if bias is None else whole(bias))
                )

            return results_in_forward(layer, hidden, target, of_head)
        weight = torch.cat([whole(term.layer.weight) for term in form.terms], dim=1)
        return function(hidden, target, *_kept_classes(form, weight, _sum_of_biases(form)))


def _compute_dtype(logits: LazyLogits) -> torch.dtype | None:
    return logits.call.mode.autocast


def _loss_dtype(logits: LazyLogits) -> torch.dtype:
    """Return the dtype that a loss of the logits has, which autocast takes to float32."""
    return logits.dtype if autocast_dtype(logits.device) is None else torch.float32


@dataclass(frozen=True)
class _Loss:
    """The options of a cross-entropy."""

    class_weight: Tensor | None
    ignore_index: int
    reduction: str
    label_smoothing: float = 0.0
    lse_square_scale: float = 0.0
    normalizer: Tensor | None = None
    temperature: Tensor | None = None


def _is_log_softmax(form: Form) -> bool:
    return form.kind is Kind.LOG_SOFTMAX and form.factor == 1.0


def _is_class_dim_of_losses(form: Form) -> bool:
    """Return whether the classes are where a loss of torch has them: the second dimension, or the only one."""
    return form.class_dim == min(1, form.ndim - 1)


def _are_indices(form: Form, target: object) -> bool:
    """Return whether a target is a class index for each position."""
    positions = [size for dim, size in enumerate(form.shape) if dim != form.class_dim]
    return isinstance(target, Tensor) and not target.is_floating_point() and list(target.shape) == positions


def _loss(logits: LazyLogits, form: Form, target: Tensor, loss: _Loss, return_outputs: bool) -> tuple[Tensor, ...]:
    """Return the cross-entropy of logits of a form, with all results that nkilib has if they are asked for."""
    options = logits.call.options
    smoothing, lse_square_scale = options.of_loss(loss.label_smoothing, logits.call.term.layer.training)

    def of_operands(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        result = linear_cross_entropy(
            hidden,
            weight,
            target,
            linear_bias=bias,
            weight=loss.class_weight,
            reduction=loss.reduction,
            ignore_index=loss.ignore_index,
            label_smoothing=smoothing,
            lse_square_scale=lse_square_scale + loss.lse_square_scale,
            compute_dtype=_compute_dtype(logits),
            memory_limit=None if loss.reduction == "none" or return_outputs else options.memory_limit,
            logit_scale=form.scale,
            logit_softcap=form.cap,
            temperature=1.0 if loss.temperature is None else loss.temperature,
            normalizer=loss.normalizer,
            return_outputs=return_outputs,
        )
        return (result,) if isinstance(result, Tensor) else tuple(cast(Iterable[Tensor], result))

    return _results(logits, target, of_operands)


def _loss_of_torch(logits: LazyLogits, target: Tensor, loss: _Loss) -> Tensor | None:
    """Return the cross-entropy; None for targets that are no class index of each position."""
    if not _is_class_dim_of_losses(logits.form) or not _are_indices(logits.form, target):
        return None
    (result,) = _loss(logits, logits.form, target, loss, False)
    return result.to(_loss_dtype(logits))


@_consumes("cross_entropy")
def _cross_entropy(
    input: LazyLogits,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = _IGNORED,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    if input.form.kind is not Kind.LOGITS or size_average is not None or reduce is not None:
        return None
    return _loss_of_torch(input, target, _Loss(weight, ignore_index, reduction, label_smoothing))


@_consumes("nll_loss", "nll_loss_nd")
def _nll_loss(
    input: LazyLogits,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = _IGNORED,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor | None:
    """The loss of the log-softmax, which is the cross-entropy of the logits."""
    if not _is_log_softmax(input.form) or size_average is not None or reduce is not None:
        return None
    return _loss_of_torch(input, target, _Loss(weight, ignore_index, reduction))


@_consumes("nkilib_cross_entropy")
def _own_cross_entropy(
    input: LazyLogits,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = _IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    normalizer: Tensor | None = None,
    return_outputs: bool = False,
    class_dim: int = 1,
    lse_square_scale: float = 0.0,
    logit_softcap: float | None = None,
    temperature: float | Tensor = 1.0,
) -> Tensor | CrossEntropyOutputs | None:
    """:func:`nkilib.torch.cross_entropy`, whose cap and temperature follow those that are recorded."""
    recorded = input.form
    is_known = recorded.kind is Kind.LOGITS and class_dim % recorded.ndim == recorded.class_dim
    if not is_known or not _are_indices(recorded, target) or None not in (recorded.cap, logit_softcap):
        return None
    capped = recorded if logit_softcap is None else replace(recorded, cap=logit_softcap)
    number, tensor = number_and_tensor(temperature)
    form = capped.scaled(1.0 / number)
    if form is None:
        return None
    loss = _Loss(weight, ignore_index, reduction, label_smoothing, lse_square_scale, normalizer, tensor)
    results = _loss(input, form, target, loss, return_outputs)
    return CrossEntropyOutputs(*results) if return_outputs else results[0]


# The index that is ignored where only scores of positions are asked for, and one that no gather can have.
_NO_CLASS: Final = -(2**31)


def _logprobs(logits: LazyLogits, ids: Tensor, name: str) -> Tensor:
    """Return the log-probabilities of given classes of each position, and keep a score of the same launch as known."""
    form = logits.form

    def scores(hidden: Tensor, ids: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        result = linear_token_scores(
            hidden,
            weight,
            ids,
            linear_bias=bias,
            ignore_index=_NO_CLASS,
            outputs=(name,),
            compute_dtype=_compute_dtype(logits),
            logit_scale=form.scale,
            logit_softcap=form.cap,
        )
        return result.logprob, getattr(result, name)

    logprob, logits.known[name] = _results(logits, ids, scores)
    return logprob


@_consumes("gather")
def _gather(input: LazyLogits, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor | None:
    """Log-probabilities, or logits, of given classes of each position."""
    form = input.form
    is_known = dim % form.ndim == form.class_dim and isinstance(index, Tensor) and index.dim() == form.ndim
    if not is_known:
        return None
    ids = index.movedim(form.class_dim, -1)
    positions = [size for at, size in enumerate(form.shape) if at != form.class_dim]
    if list(ids.shape[:-1]) != positions or not 1 <= ids.shape[-1] <= IDS_MAX:
        return None
    if form.kind not in (Kind.LOGITS, Kind.LOG_SOFTMAX, Kind.SOFTMAX):
        return None
    values = _logprobs(input, ids, "lse")
    if form.kind is Kind.LOGITS:
        values = values + input.known["lse"][..., None]
    elif form.kind is Kind.SOFTMAX:
        values = values.exp()
    values = values if form.factor == 1.0 else form.factor * values
    return values.movedim(-1, form.class_dim).to(form.dtype)


def _score(logits: LazyLogits, name: str) -> Tensor:
    """Return a score of each position that needs no class, from an earlier call if there was one."""
    known = logits.known.get(name)
    if known is not None and (known.requires_grad or not torch.is_grad_enabled() or not known.is_floating_point()):
        return known
    positions = [size for dim, size in enumerate(logits.shape) if dim != logits.form.class_dim]
    none = torch.full(positions, _NO_CLASS, dtype=torch.int64, device=logits.device)
    _logprobs(logits, none, name)
    return logits.known[name]


def _over_classes(form: Form, dim: Any) -> bool:
    """Return whether a reduction is over the classes, and nothing else."""
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        (dim,) = dim
    return isinstance(dim, int) and dim % form.ndim == form.class_dim


def _placed(form: Form, scores: Tensor, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    """Return scores of positions as a reduction over the classes does."""
    scores = scores.unsqueeze(form.class_dim) if keepdim else scores
    return scores if dtype is None else scores.to(dtype)


@_consumes("logsumexp")
def _logsumexp(input: LazyLogits, dim: Any = None, keepdim: bool = False) -> Tensor | None:
    form = input.form
    if not _over_classes(form, dim) or form.kind is not Kind.LOGITS:
        return None
    return _placed(form, _score(input, "lse"), keepdim, form.dtype)


@_consumes("argmax")
def _argmax(input: LazyLogits, dim: int | None = None, keepdim: bool = False) -> Tensor | None:
    form = input.form
    is_monotonic = form.kind in (Kind.LOGITS, Kind.LOG_SOFTMAX, Kind.SOFTMAX) and form.factor > 0
    if not _over_classes(form, dim) or not is_monotonic:
        return None
    with torch.no_grad():
        # A row that holds a NaN has no largest logit; a class that exists keeps what follows from failing elsewhere.
        argmax = _score(input, "argmax").clamp(max=form.classes - 1)
    return _placed(form, argmax, keepdim, None)


def _sum_of_logits(logits: LazyLogits) -> Tensor:
    """Return the sum of the logits of each position, which is a product with the summed weights of all classes."""

    def total(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
        summed = torch.mv(hidden.flatten(0, -2).float(), weight.float().sum(0)).view(hidden.shape[:-1])
        return (summed if bias is None else summed + bias.float().sum(),)

    (result,) = _results(logits, torch.zeros((), dtype=torch.int64, device=logits.device), total)
    return logits.form.scale * result


@_consumes("sum")
def _sum(
    input: LazyLogits, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    """Sums over the classes: of log-probabilities, as label smoothing takes them, and of what gives an entropy."""
    form = input.form
    if not _over_classes(form, dim):
        return None
    if form.kind is Kind.P_LOG_P:
        total = -_score(input, "entropy")
    elif form.kind is Kind.P_Z:
        total = _score(input, "lse") - _score(input, "entropy")
    elif form.kind is Kind.LOG_SOFTMAX and form.cap is None:
        total = _sum_of_logits(input) - form.classes * _score(input, "lse")
    else:
        return None
    return _placed(form, form.factor * total, keepdim, dtype or form.dtype)


@_consumes("kl_div")
def _kl_div(
    input: LazyLogits,
    target: LazyLogits | Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor | None:
    """The divergence of log-probabilities of a student from those of a teacher, both lazy."""
    if size_average is not None or reduce is not None or not log_target or not isinstance(target, LazyLogits):
        return None
    student, teacher = input.form, target.form
    is_known = _is_log_softmax(student) and _is_log_softmax(teacher) and student.shape == teacher.shape
    is_known = is_known and student.is_last and teacher.is_last and len(student.terms) == len(teacher.terms) == 1
    if not is_known or reduction not in ("mean", "sum", "batchmean") or target.requires_grad:
        return None
    layer = teacher.terms[0].layer
    weight, bias = (None if item is None else item.detach() for item in (layer.weight, layer.bias))
    if weight is None or dtensor(weight) is not None or _compute_dtype(input) != _compute_dtype(target):
        return None
    target.call.check_unchanged()

    def divergence(hidden: Tensor, ids: Tensor, own: Tensor, own_bias: Tensor | None) -> tuple[Tensor]:
        of_teacher = _kept_classes(teacher, weight, bias)
        result = linear_distillation_loss(
            hidden,
            own,
            teacher.hidden.detach(),
            of_teacher[0],
            linear_bias=own_bias,
            teacher_bias=of_teacher[1],
            reduction="sum",
            compute_dtype=_compute_dtype(input),
            logit_scale=student.scale,
            logit_softcap=student.cap,
            teacher_logit_scale=teacher.scale,
            teacher_logit_softcap=teacher.cap,
        )
        return (result,)

    (total,) = _results(input, torch.zeros((), dtype=torch.int64, device=input.device), divergence)
    divisor = {"sum": 1, "batchmean": student.shape[0], "mean": student.shape.numel()}[reduction]
    return (total / divisor).to(_loss_dtype(input))
