# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy`` and ``CrossEntropyLoss``: PyTorch's arguments and results, and options for large vocabularies.

With ``return_outputs`` they return :class:`CrossEntropyOutputs`. Other functions of cross-entropy also use
:func:`loss_part`, which returns this rank's part of DTensor arguments, and :func:`returned_values`, which reduces
results with one number per position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function
from typing_extensions import Unpack

from nkilib.core.host.options import check_flags, refuse_unknown, shows, values_of
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, RecipeOptions
from nkilib.torch.dispatch.checks import Caller, check_tensors, is_lazy
from nkilib.torch.dispatch.dtensors import OF_PARTS, LocalPart, dtensor, local_part
from nkilib.torch.dispatch.layout import as_rows, row_length, rows_shape
from nkilib.torch.functions.cross_entropy.checks import (
    RECIPE,
    LossKeywords,
    check_arguments,
    check_class_dim,
    check_inplace_logits,
    check_known,
    check_outputs,
    check_weight,
    checked_options,
)
from nkilib.torch.functions.cross_entropy.operators import CROSS_ENTROPY, DERIVATIVE, FORWARD, ForwardResults, Wanted
from nkilib.torch.losses.indexed import is_ignored
from nkilib.torch.losses.outputs import in_shape_of_rows, reduced
from nkilib.torch.losses.temperatures import check_rows, keep_temperature, number_and_tensor, temperatures_of_rows

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class CrossEntropyOutputs(NamedTuple):
    """The loss and further results of the same pass over the logits.

    Results "per position" have the shape of targets that are class indices. "The logits" are the logits after scale,
    cap and temperature. At ignored positions, lse, argmax and entropy are computed too; all other results are 0.

    Attributes:
        loss: float32, reduced as requested; it includes ``z_loss``. Differentiable.
        lse: float32 per position, log-sum-exp of the logits, in nats. Differentiable.
        z_loss: float32, the part of the loss that ``lse_square_scale`` adds, reduced as the loss. Differentiable.
        logprob: float32 per position, log-probability of the target in nats, at most 0. Differentiable. None for class
            probabilities, which have no single target.
        argmax: int64 per position, the first class with the largest logit; V, which is no class, in a row that holds a
            NaN.
        entropy: float32 per position, the entropy of the softmax of the logits, in nats. Differentiable.
    """

    loss: Tensor
    lse: Tensor
    z_loss: Tensor
    logprob: Tensor | None
    argmax: Tensor
    entropy: Tensor


def _divisor_in_words(target: Tensor, weight: Tensor | None) -> str:
    if target.is_floating_point():
        return "the number of positions"
    return "the number of targets" if weight is None else "the sum of the class weights of the targets"


def loss_part(
    caller: Caller,
    logits: DTensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    normalizer: Tensor | None,
    class_dim: int,
    inplace: bool,
) -> LocalPart:
    """Return this rank's part of the arguments of a cross-entropy whose logits are a DTensor.

    Raises:
        TypeError, ValueError, RuntimeError, NotImplementedError: see :func:`local_part`.
        ValueError: a mean has no ``normalizer``, and other ranks have other positions.
    """
    others = {"weight": weight, "normalizer": normalizer}
    check_tensors(caller, {"target": target, **others}, optional=tuple(others))
    check_class_dim(caller, class_dim)
    part = local_part(caller, logits, target, others, class_dim, inplace)
    if reduction == "mean" and normalizer is None and not part.has_all_rows:
        raise ValueError(
            f"{caller}: {caller.input}, a DTensor of placements {list(logits.placements)}, has positions on other "
            f"ranks, and a mean divides by {_divisor_in_words(target, weight)} on all ranks; pass it as "
            f"a tensor, normalizer=, or reduction='sum'"
        )
    return part


class _Divisor(NamedTuple):
    """The divisor of a mean, and whether no position is valid, for :func:`~nkilib.torch.losses.outputs.reduced`."""

    value: Tensor | int | None = None
    is_empty: Tensor | None = None


def _divisor(results: ForwardResults, normalizer: Tensor | None, valid: Tensor | None) -> _Divisor:
    """Return the divisor of a mean, the same as in PyTorch.

    It is ``normalizer`` if given, else the sum of the targets' weights. For class probabilities, where ``valid`` is
    None, it is the number of positions.
    """
    if normalizer is not None:
        return _Divisor(normalizer.to(torch.float32))
    if valid is None:
        return _Divisor(results.loss.shape[0])
    weight = results.position_weight.sum()
    # PyTorch adds what smoothing spreads to a mean of 0 / 0.
    return _Divisor(torch.where(weight == 0.0, torch.nan, weight), ~valid.any())


def _z_loss(lse: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    if scale == 0.0:
        return torch.zeros_like(lse)
    return scale * (lse if valid is None else torch.where(valid, lse, 0.0)).square()


def returned_values(
    results: ForwardResults,
    target: Tensor,
    options: LossKeywords,
    reduction: str,
    normalizer: Tensor | None,
    shape: tuple[int, ...],
    return_outputs: bool,
) -> Tensor | CrossEntropyOutputs:
    """Return the value of a loss function: the loss, or with ``return_outputs`` all outputs.

    Args:
        results: the results with one number per position.
        target: the targets of the positions, class indices or probabilities.
        options: the options of the loss.
        reduction, normalizer, return_outputs: the caller's arguments.
        shape: the shape of the positions.
    """
    soft = target.is_floating_point()
    is_counted = reduction == "mean" and normalizer is None
    is_masked = return_outputs and options["lse_square_scale"] != 0.0
    valid = ~is_ignored(target, options["ignore_index"]) if not soft and (is_counted or is_masked) else None
    divisor = _divisor(results, normalizer, valid) if reduction == "mean" else _Divisor()
    loss = reduced(results.loss, reduction, shape, *divisor)
    if not return_outputs:
        return loss
    z_loss = _z_loss(results.lse, valid, options["lse_square_scale"])
    return CrossEntropyOutputs(
        loss=loss,
        lse=in_shape_of_rows(results.lse, shape),
        z_loss=reduced(z_loss, reduction, shape, *divisor),
        logprob=None if soft else in_shape_of_rows(results.logprob, shape),
        argmax=results.argmax.reshape(shape).to(torch.int64),
        entropy=in_shape_of_rows(results.entropy, shape),
    )


@overload
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    *,
    normalizer: Tensor | None = ...,
    inplace: bool = ...,
    return_outputs: Literal[False] = ...,
    class_dim: int = ...,
    **recipe: Unpack[RecipeOptions],
) -> Tensor: ...


@overload
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    *,
    normalizer: Tensor | None = ...,
    inplace: bool = ...,
    return_outputs: Literal[True],
    class_dim: int = ...,
    **recipe: Unpack[RecipeOptions],
) -> CrossEntropyOutputs: ...


@overload
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    *,
    normalizer: Tensor | None = ...,
    inplace: bool = ...,
    return_outputs: bool = ...,
    class_dim: int = ...,
    **recipe: Unpack[RecipeOptions],
) -> Tensor | CrossEntropyOutputs: ...


@shows(RecipeOptions, defaults=LossOptions)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    normalizer: Tensor | None = None,
    inplace: bool = False,
    return_outputs: bool = False,
    class_dim: int = 1,
    **recipe: Unpack[RecipeOptions],
) -> Tensor | CrossEntropyOutputs:
    """Compute the cross-entropy between logits and targets with the kernels of :mod:`nkilib.experimental.loss`.

    Let z = softcap(input) / temperature, where softcap is the cap that ``logit_softcap`` describes. Without
    ``lse_square_scale`` and ``normalizer``, and for ``class_dim=1``, the result equals::

        torch.nn.functional.cross_entropy(z.float(), target, weight, ignore_index=ignore_index, reduction=reduction,
                                          label_smoothing=label_smoothing)

    ``lse_square_scale`` adds ``lse_square_scale * torch.logsumexp(z, class_dim) ** 2`` at every position that is not
    ignored, before the reduction. Statistics and the loss are float32 whatever the type of the logits. The gradient has
    the dtype of the logits and is rounded once: float16 gradients below 3e-8 become 0, so scale the loss. Tensor values
    are never read, so the call does not wait for the device; only on the CPU are targets checked for their range.

    Args:
        input: logits, bfloat16, float16 or float32: [V], [batch, V], [batch, V, d1, ...], or with ``class_dim=-1``
            [..., V]. Logits whose classes are not adjacent in memory are copied first. A DTensor contributes this
            rank's part, and its mesh defines the ranks that hold the other classes (see
            docs/reference/torch.md#which-function-for-which-trainer).
        target: class indices of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without
            the classes; or class probabilities, floating, of the shape of ``input``. With probabilities, ``target`` and
            ``weight`` may require grad; PyTorch's operators compute their gradients, which takes several times the
            memory of the logits in float32.
        weight: [V] floating, a factor for each class, used in float32; None means 1.
        ignore_index: class index of ignored positions, which have loss 0 and gradient 0.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored (for class
            probabilities, by the number of positions), ``"sum"`` does not, ``"none"`` returns one loss per position.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes (arXiv 1512.00567).
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(input / c), except -inf; None applies no
            cap. Used in Gemma 2, arXiv 2408.00118.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss), used in PaLM, arXiv
            2204.02311.
        temperature: divides the logits after the cap; from 1e-6 to 1e6. A number is a constant of the compiled kernel:
            each new value compiles a new one. A floating tensor is an input, read in float32; it has one element or a
            shape that broadcasts to that of the positions (such as [batch, 1]), and gets no gradient. A value out of
            range in it raises an error on the CPU, and makes the results of its positions NaN on a device.
        exact_maximum: True computes the maximum of every row before its exponentials, False uses a shift known in
            advance, None chooses the one with the shorter modelled time
            (docs/explanation/cross_entropy_shift.md). Both forms have the same error bounds.
        normalizer: scalar tensor that replaces the divisor of the mean, for instance the number of targets in all
            micro-batches or on all ranks; with ``weight``, the sum of their weights.
        inplace: the backward writes the gradient over the memory of ``input``, which saves that much memory. A later
            backward that needs the logits raises an error, as after any in-place operation; under saved-tensor hooks
            the backward of PyTorch's operators does not (docs/reference/torch.md#in-place).
        return_outputs: return :class:`CrossEntropyOutputs`.
        class_dim: 1, as in PyTorch, or -1 for [batch, sequence, V], the layout of language models.

    Returns:
        The loss, float32: a scalar tensor; for ``"none"``, a tensor of the shape of class indices. If every position is
        ignored, the mean is NaN and the gradient 0, as in PyTorch.

    Raises:
        TypeError: an argument has the wrong Python type, or the logits are float64.
        ValueError: unknown ``reduction`` or ``class_dim``; batch sizes differ; ``ignore_index``, ``logit_softcap``,
            ``lse_square_scale`` or ``temperature`` out of range; ``normalizer`` without a mean; ``return_outputs`` with
            more than 2^24 classes; ``inplace`` where the logits would be copied; a mean without ``normalizer`` of a
            DTensor whose positions are spread over ranks.
        RuntimeError: incompatible shapes or devices, or ``label_smoothing`` out of range, as in PyTorch;
            ``temperature`` requires grad; ``weight`` requires grad with class indices; ``inplace`` with a leaf that
            requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        IndexError: on the CPU, a target out of range.
        AssertionError: ``exact_maximum=False`` where the kernels need the maximum.
        NotImplementedError: an unsupported device; a DTensor placement that is not supported; FSDP shards; integer
            logits; forward-mode differentiation.
    """
    caller, whole = CROSS_ENTROPY, dtensor(input)
    check_flags(caller, inplace=inplace, return_outputs=return_outputs)
    if is_lazy(input):
        lazy: Tensor | CrossEntropyOutputs = handle_torch_function(
            nkilib_cross_entropy,
            (input,),
            input,
            target,
            weight,
            ignore_index,
            reduction,
            label_smoothing,
            normalizer=normalizer,
            return_outputs=return_outputs,
            class_dim=class_dim,
            **recipe,
        )
        return lazy
    if whole is not None:
        part = loss_part(caller, whole, target, weight, reduction, normalizer, class_dim, inplace)
        check_rows(caller, recipe.get("temperature"), part.has_all_rows)
        outcome: Tensor | CrossEntropyOutputs = part.call(
            cross_entropy,
            OF_PARTS[caller.function],
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            inplace=inplace,
            return_outputs=return_outputs,
            class_dim=class_dim,
            **recipe,
        )
        return outcome
    temperature, tensor = number_and_tensor(recipe.get("temperature", 1.0))
    numbers = {**recipe, "temperature": temperature, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    options = checked_options(caller, cross_entropy, **numbers)
    check_arguments(caller, input, target, weight, options, reduction, normalizer, class_dim)
    shape = rows_shape(input, class_dim)
    temperatures = temperatures_of_rows(caller, tensor, shape, input.device)
    soft, classes = target.shape == input.shape, row_length(input, class_dim)
    check_weight(caller, weight, classes, soft)
    if soft and torch.is_grad_enabled() and (target.requires_grad or (weight is not None and weight.requires_grad)):
        check_known(caller, options, "where class probabilities or their weights require grad")
    if return_outputs:
        check_outputs(caller, classes)
    if inplace:
        check_inplace_logits(caller, input, class_dim, target=target, weight=weight, normalizer=normalizer)
    logits = as_rows(input, class_dim)
    rows_target = as_rows(target, class_dim) if soft else target.reshape(-1)
    class_weight = None if weight is None else weight.to(torch.float32)
    wanted = Wanted(with_logprob=return_outputs, with_argmax=return_outputs, with_entropy=return_outputs)
    keywords = FORWARD.taken({**options, **values_of(wanted)})
    results = ForwardResults(*DERIVATIVE.apply(inplace, logits, rows_target, class_weight, temperatures, **keywords))
    if soft and classes == 0 and reduction == "mean" and normalizer is None:
        normalizer = input.new_tensor(torch.nan)  # PyTorch divides by elements / classes, 0 / 0
    return returned_values(results, rows_target, options, reduction, normalizer, shape, return_outputs)


def nkilib_cross_entropy(*args: Any, **kwargs: Any) -> Tensor | CrossEntropyOutputs:
    """Return :func:`cross_entropy` of these arguments.

    Lazy logits (:class:`nkilib.torch.LazyLogits`) receive the call under this name, which no function of torch has.
    """
    result: Tensor | CrossEntropyOutputs = cross_entropy(*args, **kwargs)
    return result


class CrossEntropyLoss(nn.Module):
    """Cross-entropy as a module, in place of ``torch.nn.CrossEntropyLoss``: :func:`cross_entropy`, computed by the
    kernels.

    Example::

        criterion = CrossEntropyLoss(ignore_index=-100, class_dim=-1)
        loss = criterion(logits, target)  # [batch, sequence, V] and [batch, sequence]

    Call the module with ``(input, target, normalizer=None)``: logits [V], [batch, V], [batch, V, d1, ...], or with
    ``class_dim=-1`` [..., V], and class indices of that shape without V, or class probabilities of that shape. The loss
    is a float32 scalar tensor, or with ``"none"`` a tensor of the shape of class indices. The weight is a buffer: it
    moves with the module to a device or dtype, and is in the state dict. Further options are those of
    :func:`cross_entropy`: ``logit_softcap``, ``lse_square_scale`` and ``exact_maximum``.

    Args:
        weight: a factor for each class, [V], floating, used in float32; None means 1.
        ignore_index: the class index of positions that have loss 0 and gradient 0.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored (for class
            probabilities, by the number of positions), ``"sum"`` does not, ``"none"`` returns one loss per position.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes.
        normalizer: a scalar tensor that replaces the divisor of the mean: a buffer that moves with the module, but is
            not in the state dict. Prefer an integer: a floating tensor is rounded when the module is cast, as by
            ``model.to(torch.bfloat16)``. Pass a normalizer that changes from step to step to the call of the module
            instead.
        inplace: the backward writes the gradient over the memory of ``input``, which saves that much memory.
        return_outputs: return :class:`CrossEntropyOutputs`.
        class_dim: 1, as in PyTorch, or -1 for [batch, sequence, V], the layout of language models.
        temperature: divides the logits after the cap, from 1e-6 to 1e6. A number is a constant of the compiled kernel;
            a tensor is a buffer that is not in the state dict.
    """

    weight: Tensor | None
    normalizer: Tensor | None
    temperature: float | Tensor

    @shows(RecipeOptions, defaults=LossOptions)
    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        normalizer: Tensor | None = None,
        inplace: bool = False,
        return_outputs: bool = False,
        class_dim: int = 1,
        **recipe: Unpack[RecipeOptions],
    ) -> None:
        super().__init__()
        refuse_unknown(type(self), recipe, RECIPE)
        self.register_buffer("weight", weight)
        self.register_buffer("normalizer", normalizer, persistent=False)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.inplace = inplace
        self.return_outputs = return_outputs
        self.class_dim = class_dim
        keep_temperature(self, recipe.pop("temperature", 1.0))
        for name in RECIPE:
            if name != "temperature":
                setattr(self, name, recipe.get(name, getattr(LossOptions, name)))

    def forward(
        self, input: Tensor, target: Tensor, *, normalizer: Tensor | None = None
    ) -> Tensor | CrossEntropyOutputs:
        """Return the loss, or with ``return_outputs`` all outputs; a ``normalizer`` of the call replaces the
        module's.
        """
        return cross_entropy(
            input,
            target,
            self.weight,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
            normalizer=self.normalizer if normalizer is None else normalizer,
            inplace=self.inplace,
            return_outputs=self.return_outputs,
            class_dim=self.class_dim,
            **{name: getattr(self, name) for name in RECIPE},
        )
