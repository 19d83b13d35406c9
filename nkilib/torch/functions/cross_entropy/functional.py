# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy``: ``torch.nn.functional.cross_entropy`` on the kernels, and what large-vocabulary training adds."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import shows
from nkilib.experimental.loss.cross_entropy.options import LossOptions, RecipeOptions
from nkilib.torch.dispatch.dtensors import OF_PARTS, dtensor
from nkilib.torch.dispatch.layout import as_rows, row_length, rows_shape
from nkilib.torch.functions.cross_entropy.autograd import DERIVATIVE
from nkilib.torch.functions.cross_entropy.checks import (
    check_arguments,
    check_inplace,
    check_known,
    check_outputs,
    check_weight,
    checked_options,
)
from nkilib.torch.functions.cross_entropy.operators import CROSS_ENTROPY, FORWARD, Wanted
from nkilib.torch.functions.cross_entropy.outputs import CrossEntropyOutputs, returned_values
from nkilib.torch.functions.cross_entropy.parts import loss_part
from nkilib.torch.functions.cross_entropy.results import ForwardResults


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
    """Cross-entropy between logits and targets, on the kernels of :mod:`nkilib.experimental.loss`.

    With the arguments that PyTorch has too it equals, with z = softcap(input) / temperature::

        torch.nn.functional.cross_entropy(z.float(), target, weight, ignore_index=ignore_index, reduction=reduction,
                                          label_smoothing=label_smoothing)

    and ``lse_square_scale`` adds ``lse_square_scale * torch.logsumexp(z, class_dim) ** 2`` at every position that is
    not ignored, before the reduction. Statistics and the loss are float32 whatever the type of the logits, and the
    gradient has the type of the logits, rounded once: of float16 to 0 below 3e-8, so scale the loss. No value is looked
    at, so nothing waits for the device; on the CPU alone targets are checked for their range.

    Args:
        input: logits, bfloat16, float16 or float32: [V], [batch, V], [batch, V, d1, ...], or with
            ``class_dim=-1`` [..., V]. Classes that do not lie next to each other in memory are copied so that they do.
            A DTensor stands for what this rank has of it, and its mesh for the ranks that hold the other classes
            (docs/trainers.md).
        target: class indices of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without
            the classes; or class probabilities, floating, of the shape of ``input``. For probabilities, ``target`` and
            ``weight`` may require grad; those gradients take PyTorch's operators, and their memory.
        weight: [V] floating, a factor for each class, used in float32; None means 1.
        ignore_index: class index of positions that do not count. They have loss 0 and gradient 0.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that count (by the number of
            positions for class probabilities), ``"sum"`` does not, ``"none"`` keeps the positions apart.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes (arXiv 1512.00567).
        logit_softcap: c from 1e-30 to 1e30 makes c * tanh(input / c) of the logits, but leaves -inf; None leaves all.
            As in Gemma 2, arXiv 2408.00118.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss), as in PaLM, arXiv 2204.02311.
        temperature: from 1e-6 to 1e6, divides the logits, after the cap.
        exact_maximum: True takes the maximum of every row before its exponentials, False does without, None chooses by
            the modelled time (docs/kernels.md). Either form has the same bounds of errors.
        normalizer: tensor without dimensions that replaces the divisor of the mean, for instance the number of targets
            in all micro-batches or on all ranks.
        inplace: the backward writes the gradient over the memory of ``input``, which saves as much as that. Later uses
            of the logits in a backward raise, as after any operation in place.
        return_outputs: return :class:`CrossEntropyOutputs`.
        class_dim: 1, as in PyTorch, or -1 for [batch, sequence, V] as language models have it.

    Returns:
        The loss, float32: without dimensions, or for ``"none"`` of the shape of class indices. If every position is
        ignored the mean is NaN and the gradient 0, as in PyTorch.

    Raises:
        TypeError: an argument has the wrong Python type; or logits of float64.
        ValueError: unknown ``reduction`` or ``class_dim``; batch sizes differ; ``ignore_index``, ``logit_softcap``,
            ``lse_square_scale`` or ``temperature`` out of range; ``normalizer`` without a mean; ``return_outputs`` with
            more than 2^24 classes; ``inplace`` where the logits would be copied; of a DTensor whose positions are
            spread over ranks, a mean without ``normalizer``.
        RuntimeError: shapes or devices do not fit, or ``label_smoothing`` is out of range, as PyTorch says; ``inplace``
            for a leaf or under torch.compile; ``weight`` requires grad with class indices.
        IndexError: on the CPU, a target out of range.
        AssertionError: ``exact_maximum=False`` where the kernels need the maximum.
        NotImplementedError: another device; a DTensor of a placement without a rule; FSDP shards; integer logits; a
            derivative in forward mode.
    """
    caller, whole = CROSS_ENTROPY, dtensor(input)
    if whole is not None:
        part = loss_part(caller, whole, target, weight, reduction, normalizer, class_dim, inplace)
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
    options = checked_options(
        caller, cross_entropy, ignore_index=ignore_index, label_smoothing=label_smoothing, **recipe
    )
    check_arguments(caller, input, target, weight, options, reduction, normalizer, class_dim)
    soft, classes = target.shape == input.shape, row_length(input, class_dim)
    check_weight(caller, weight, classes, soft)
    if soft and torch.is_grad_enabled() and (target.requires_grad or (weight is not None and weight.requires_grad)):
        check_known(caller, options, "where class probabilities or their weights require grad")
    if return_outputs:
        check_outputs(caller, classes)
    if inplace:
        check_inplace(caller, input, class_dim)
    logits = as_rows(input, class_dim)
    rows_target = as_rows(target, class_dim) if soft else target.reshape(-1)
    class_weight = None if weight is None else weight.to(torch.float32)
    wanted = Wanted(with_logprob=return_outputs, with_argmax=return_outputs, with_entropy=return_outputs)
    keywords = FORWARD.keywords_from(options, wanted)
    results = ForwardResults(*DERIVATIVE.apply(inplace, logits, rows_target, class_weight, **keywords))
    shape = rows_shape(input, class_dim)
    return returned_values(results, rows_target, options, reduction, normalizer, shape, return_outputs)
