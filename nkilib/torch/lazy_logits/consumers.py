# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of torch that a kernel computes from hidden states and weights in place of logits.

They are cross-entropy, NLL loss of log-probabilities, ``gather``, ``logsumexp``, ``argmax``, sums over the classes, and
Kullback-Leibler divergence. ``logits.CONSUMERS`` has a substitute for each function, with the same arguments. A
substitute returns None for arguments that no kernel takes; the logits are then computed. :func:`_results` calls a
function of nkilib with hidden states, weight and bias.

A *form* (:class:`Form`) describes lazy logits: z = the sum of products of hidden states and weights (*terms*), after
scale, cap and temperatures, or a function of z and p = softmax(z) over the classes.
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
from nkilib.torch.functions.linear_token_scores.functional import LinearTokenScores, linear_token_scores
from nkilib.torch.functions.output_layer import results_in_forward
from nkilib.torch.functions.token_scores import TokenScores
from nkilib.torch.functions.vocab_parallel.linear_functional import vocab_parallel_linear_cross_entropy
from nkilib.torch.lazy_logits.form import Form, Kind
from nkilib.torch.lazy_logits.logits import CONSUMERS, OWN_LOSS, LazyLogits, replicated, whole
from nkilib.torch.lazy_logits.transformations import divided_by_tensor, registering

_IGNORED: Final = -100
_consumes: Final = registering(CONSUMERS)
# A function of hidden states [..., D], targets, weight [V, D] and bias.
_OfOperands = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, ...]]


def _features_last(form: Form) -> Tensor:
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
    if weight.shape[0] == form.classes:
        return weight, bias
    return weight[: form.classes], None if bias is None else bias[: form.classes]


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off on a device.

    The dtype of the products was fixed when the output layer was called, so autocast around the loss must not change
    it.
    """
    return ExitStack() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def _results(logits: LazyLogits, target: Tensor, function: _OfOperands) -> tuple[Tensor, ...]:
    """Return the result of ``function`` for the hidden states, the target, the weight and the bias of lazy logits.

    ``function`` runs without autocast, since the dtype of its products is :func:`_compute_dtype`, and records a graph
    only if the call of the output layer did.
    """
    form, call = logits.form, logits.call
    call.check_unchanged()
    is_recorded = torch.is_grad_enabled() and call.mode.is_grad_enabled and not form.is_detached
    # torch.compile knows both contexts in a statement of their own, and not in a stack of contexts.
    with _without_autocast(logits.device), torch.set_grad_enabled(is_recorded):
        hidden = _features_last(form)
        if form.mesh is not None:
            layer = form.terms[0].layer
            return function(replicated(hidden, form.mesh), target, layer.weight, layer.bias)
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
    return logits.dtype if autocast_dtype(logits.device) is None else torch.float32


@dataclass(frozen=True)
class _Loss:
    """The options of one cross-entropy, named as the arguments of torch; ``class_weight`` is torch's argument
    ``weight``.
    """

    class_weight: Tensor | None
    ignore_index: int
    reduction: str
    label_smoothing: float = 0.0
    lse_square_scale: float = 0.0
    normalizer: Tensor | None = None


def _is_log_softmax(form: Form) -> bool:
    return form.kind is Kind.LOG_SOFTMAX and form.factor == 1.0


def _is_class_dim_of_losses(form: Form) -> bool:
    # torch's losses expect the classes in the second dimension, or in the only one.
    return form.class_dim == min(1, form.ndim - 1)


def _are_indices(form: Form, target: object) -> bool:
    positions = [size for dim, size in enumerate(form.shape) if dim != form.class_dim]
    return isinstance(target, Tensor) and not target.is_floating_point() and list(target.shape) == positions


def _loss(logits: LazyLogits, form: Form, target: Tensor, loss: _Loss, return_outputs: bool) -> tuple[Tensor, ...]:
    """Return the cross-entropy of lazy logits as a tuple of one tensor; with ``return_outputs``, all results of
    nkilib's function.

    Args:
        logits: the lazy logits. ``logits.call.options`` may add label smoothing and z-loss.
        form: the form to use in place of the logits' own; it may have a further cap or temperature.
        target: the class indices.
        loss: the options of the loss.
        return_outputs: whether to return everything that :func:`nkilib.torch.linear_cross_entropy` can return.
    """
    options = logits.call.options
    smoothing, lse_square_scale = options.of_loss(loss.label_smoothing, logits.call.term.layer.training)

    has_one_launch = form.mesh is None and loss.reduction != "none" and not return_outputs
    limit = {"memory_limit": options.memory_limit} if has_one_launch else {}
    function: Callable[..., Any] = linear_cross_entropy if form.mesh is None else vocab_parallel_linear_cross_entropy

    def of_operands(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        result = function(
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
            logit_scale=form.scale,
            logit_softcap=form.cap,
            temperature=form.temperature_of_positions(),
            normalizer=loss.normalizer,
            return_outputs=return_outputs,
            **limit,
        )
        return (result,) if isinstance(result, Tensor) else tuple(cast(Iterable[Tensor], result))

    return _results(logits, target, of_operands)


def _loss_of_torch(logits: LazyLogits, target: Tensor, loss: _Loss) -> Tensor | None:
    """Return the cross-entropy of lazy logits as torch's function returns it; None if the classes are not in the
    dimension that torch expects, or if the target does not have one class index for each position.
    """
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
    """Return torch's ``nll_loss`` of lazy log-probabilities, computed as the cross-entropy of the logits.

    The result is None if the input is not a log-softmax or the target has no class indices.
    """
    if not _is_log_softmax(input.form) or size_average is not None or reduce is not None:
        return None
    return _loss_of_torch(input, target, _Loss(weight, ignore_index, reduction))


def _divided(form: Form, temperature: Tensor) -> Form | None:
    """Return the form of logits that are divided by a tensor of temperatures.

    The tensor has one element, or a shape that broadcasts to the positions; for another shape the result is None.
    """
    if temperature.numel() == 1:
        return divided_by_tensor(form, temperature.reshape(()))
    missing = form.ndim - 1 - temperature.dim()
    if missing < 0:
        return None
    return divided_by_tensor(form, temperature.reshape((1,) * missing + temperature.shape).unsqueeze(form.class_dim))


@_consumes(OWN_LOSS)
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
    """Return :func:`nkilib.torch.cross_entropy` of lazy logits; None if no kernel takes its arguments.

    The cap and the temperature of the call apply after those of the logits' form.
    """
    recorded = input.form
    is_known = class_dim % recorded.ndim == recorded.class_dim and _are_indices(recorded, target)
    form = _capped(recorded, logit_softcap, temperature) if is_known else None
    if form is None:
        return None
    loss = _Loss(weight, ignore_index, reduction, label_smoothing, lse_square_scale, normalizer)
    results = _loss(input, form, target, loss, return_outputs)
    return CrossEntropyOutputs(*results) if return_outputs else results[0]


def _capped(form: Form, logit_softcap: float | None, temperature: float | Tensor) -> Form | None:
    """Return the form of logits to which a cap and then a temperature are applied.

    The result is None if no form describes these logits. In particular, logits that already have a cap or temperatures
    cannot get a cap.
    """
    is_capped = form.cap is not None or form.temperatures is not None
    if form.kind is not Kind.LOGITS or (is_capped and logit_softcap is not None):
        return None
    capped = form if logit_softcap is None else replace(form, cap=logit_softcap)
    return _divided(capped, temperature) if isinstance(temperature, Tensor) else capped.scaled(1.0 / temperature)


# The index that is ignored where only scores of positions are asked for, and one that no gather can have.
_NO_CLASS: Final = -(2**31)


def _logprobs(logits: LazyLogits, ids: Tensor, name: str) -> Tensor:
    """Return the log-probabilities of the classes ``ids`` of each position.

    The same launch computes the score ``name``, such as ``"lse"``, which is stored in ``logits.known`` for later calls.
    """
    logprob, logits.known[name] = _scores(logits, logits.form, ids, _NO_CLASS, (name,))
    return logprob


def _scores(
    logits: LazyLogits, form: Form, ids: Tensor, ignore_index: int, outputs: tuple[str, ...]
) -> tuple[Tensor, ...]:
    """Return a tuple of the log-probabilities of the classes ``ids`` of each position, and the scores named in
    ``outputs``.

    Args:
        logits: the lazy logits.
        form: the form to use in place of the logits' own.
        ids: the class indices, one or several for each position.
        ignore_index: the index for which no log-probability is computed.
        outputs: the names of further results of :func:`nkilib.torch.linear_token_scores`.
    """

    def scores(hidden: Tensor, ids: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        result: LinearTokenScores = linear_token_scores(
            hidden,
            weight,
            ids,
            linear_bias=bias,
            ignore_index=ignore_index,
            outputs=outputs,
            compute_dtype=_compute_dtype(logits),
            logit_scale=form.scale,
            logit_softcap=form.cap,
            temperature=form.temperature_of_positions(),
        )
        return (result.logprob, *(getattr(result, name) for name in outputs))

    return _results(logits, ids, scores)


@_consumes("token_scores")
def _token_scores(
    logits: LazyLogits,
    target: Tensor,
    group: Any = None,
    *,
    ignore_index: int = _IGNORED,
    logit_softcap: float | None = None,
    temperature: float | Tensor = 1.0,
    entropy: bool = True,
    exact_maximum: bool | None = None,
    **shards: Any,
) -> TokenScores | None:
    """Return :func:`nkilib.torch.token_scores` of lazy logits with all classes; None for other arguments.

    ``exact_maximum`` has no effect: the kernel for hidden states always uses the exact maximum.
    """
    is_whole = group is None and all(value is None for value in shards.values())
    is_known = is_whole and logits.form.is_last and _are_indices(logits.form, target)
    form = _capped(logits.form, logit_softcap, temperature) if is_known else None
    if form is None:
        return None
    logprob, *others = _scores(logits, form, target, ignore_index, ("entropy",) if entropy else ())
    return TokenScores(logprob, others[0] if entropy else logprob.new_empty(0))


@_consumes("gather")
def _gather(input: LazyLogits, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor | None:
    """Return torch's ``gather`` from lazy logits, log-probabilities or probabilities along the classes.

    The result is None if ``dim`` is not the dimension of the classes, if ``index`` does not have all positions, or if
    ``index`` has too many classes for each position.
    """
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
    """Return the score ``name``, such as ``"lse"``, of each position.

    A score does not depend on a target, so it is taken from ``logits.known`` if an earlier call has computed it.
    """
    known = logits.known.get(name)
    if known is not None and (known.requires_grad or not torch.is_grad_enabled() or not known.is_floating_point()):
        return known
    positions = [size for dim, size in enumerate(logits.shape) if dim != logits.form.class_dim]
    none = torch.full(positions, _NO_CLASS, dtype=torch.int64, device=logits.device)
    _logprobs(logits, none, name)
    return logits.known[name]


def _over_classes(form: Form, dim: Any) -> bool:
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        (dim,) = dim
    return isinstance(dim, int) and dim % form.ndim == form.class_dim


def _placed(form: Form, scores: Tensor, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    """Return scores [positions] as a reduction over the classes returns them: with a dimension of 1 if ``keepdim``, in
    ``dtype`` unless it is None.
    """
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


@_consumes("max")
def _max(input: LazyLogits, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return torch's ``max`` along the classes: the largest value of each position and its class, by two launches; None
    for other arguments.
    """
    indices = _argmax(input, dim, keepdim=True) if isinstance(dim, int) else None
    values = None if indices is None else _gather(input, input.form.class_dim, indices)
    if indices is None or values is None:
        return None
    pair = (values, indices) if keepdim else (item.squeeze(input.form.class_dim) for item in (values, indices))
    return torch.return_types.max(tuple(pair))


def _sum_of_logits(logits: LazyLogits) -> Tensor:
    """Return the sum of the logits z of each position over the classes; z must have no cap.

    The sum is computed as scale / temperature * (hidden @ weight.sum(0) + bias.sum()).
    """

    def total(hidden: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
        rows = hidden.reshape(-1, hidden.shape[-1])
        summed = torch.mv(rows.float(), weight.float().sum(0)).view(hidden.shape[:-1])
        return (summed if bias is None else summed + bias.float().sum(),)

    (result,) = _results(logits, torch.zeros((), dtype=torch.int64, device=logits.device), total)
    return logits.form.scale * result / logits.form.temperature_of_positions()


@_consumes("sum")
def _sum(
    input: LazyLogits, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    return _reduced(input, dim, keepdim, dtype, 1)


@_consumes("mean")
def _mean(
    input: LazyLogits, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    return _reduced(input, dim, keepdim, dtype, input.numel() if dim is None else input.form.classes)


def _reduced(input: LazyLogits, dim: Any, keepdim: bool, dtype: torch.dtype | None, divisor: int) -> Tensor | None:
    form = input.form
    is_of_all = dim is None and not keepdim
    total = _total(input) if is_of_all or _over_classes(form, dim) else None
    if total is None:
        return None
    total = form.factor * total / divisor
    return total.sum().to(dtype or form.dtype) if is_of_all else _placed(form, total, keepdim, dtype or form.dtype)


def _total(logits: LazyLogits) -> Tensor | None:
    """Return the sum over the classes, for each position, of the values that the form describes, without its factor.

    The result is None if the sum needs the logits. It does not need them for p log p and p z (for an entropy), and for
    logits and log-probabilities (for label smoothing) if there is no cap and this rank has all classes.
    """
    form = logits.form
    if form.kind is Kind.P_LOG_P:
        return -_score(logits, "entropy")
    if form.kind is Kind.P_Z:
        return _score(logits, "lse") - _score(logits, "entropy")
    if form.cap is not None or form.kind is Kind.SOFTMAX or form.mesh is not None:
        return None
    total = _sum_of_logits(logits)
    return total if form.kind is Kind.LOGITS else total - form.classes * _score(logits, "lse")


@_consumes("kl_div")
def _kl_div(
    input: LazyLogits,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor | None:
    """Return torch's ``kl_div`` of the lazy log-probabilities of a student (``input``) and a teacher (``target``).

    The result is None for other arguments, such as ``log_target=False`` or the reduction ``"none"``.
    """
    if size_average is not None or reduce is not None or not log_target or not isinstance(target, LazyLogits):
        return None
    student, teacher = input.form, target.form
    is_known = _is_log_softmax(student) and _is_log_softmax(teacher)
    if not is_known or reduction not in ("mean", "sum", "batchmean"):
        return None
    total = _divergence(input, target, {"reduction": "sum"})
    if total is None:
        return None
    divisor = {"sum": 1, "batchmean": student.shape[0], "mean": student.shape.numel()}[reduction]
    return (total / divisor).to(_loss_dtype(input))


@_consumes("distillation_loss")
def _distillation_loss(student_logits: LazyLogits, teacher_logits: Any, **options: Any) -> Tensor | None:
    """Return :func:`nkilib.torch.distillation_loss` of a student's and a teacher's lazy logits.

    The result is None if the teacher's logits are not lazy, or no kernel computes the divergence.
    """
    if not isinstance(teacher_logits, LazyLogits):
        return None
    is_known = all(item.form.kind is Kind.LOGITS for item in (student_logits, teacher_logits))
    return _divergence(student_logits, teacher_logits, options) if is_known else None


def _divergence(student: LazyLogits, teacher: LazyLogits, options: dict[str, Any]) -> Tensor | None:
    """Return ``linear_distillation_loss`` of two lazy logits; None if that function cannot compute it.

    The function cannot compute it in these cases: the shapes differ; the classes are not the last dimension; a model
    has a tensor of temperatures, or logits that are a sum of several products; the student's weight is spread over
    ranks; the teacher requires grad; the teacher's weight is missing or a DTensor; the products of the models have
    different dtypes.

    Args:
        student, teacher: logits, or their log-softmax.
        options: the keyword arguments of ``linear_distillation_loss`` beside the tensors of both models.
    """
    mine, theirs = student.form, teacher.form
    is_known = mine.shape == theirs.shape and mine.is_last and theirs.is_last and mine.mesh is None
    is_known = is_known and mine.temperatures is None is theirs.temperatures
    if not is_known or not len(mine.terms) == len(theirs.terms) == 1 or teacher.requires_grad:
        return None
    layer = theirs.terms[0].layer
    weight, bias = (None if item is None else item.detach() for item in (layer.weight, layer.bias))
    if weight is None or dtensor(weight) is not None or _compute_dtype(student) != _compute_dtype(teacher):
        return None
    teacher.call.check_unchanged()

    def divergence(hidden: Tensor, ids: Tensor, own: Tensor, own_bias: Tensor | None) -> tuple[Tensor]:
        of_teacher = _kept_classes(theirs, weight, bias)
        result = linear_distillation_loss(
            hidden,
            own,
            theirs.hidden.detach(),
            of_teacher[0],
            linear_bias=own_bias,
            teacher_bias=of_teacher[1],
            compute_dtype=_compute_dtype(student),
            logit_scale=mine.scale,
            logit_softcap=mine.cap,
            teacher_logit_scale=theirs.scale,
            teacher_logit_softcap=theirs.cap,
            **options,
        )
        return (result,)

    (result,) = _results(student, torch.zeros((), dtype=torch.int64, device=student.device), divergence)
    return result
