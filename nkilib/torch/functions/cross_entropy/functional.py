# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``cross_entropy``: ``torch.nn.functional.cross_entropy`` computed by kernels, with options for large-vocabulary
training.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import shows
from nkilib.core.host.options import check_flags
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
    """Compute the cross-entropy between logits and targets with the kernels of :mod:`nkilib.experimental.loss`.

    For the arguments that PyTorch shares, the result equals, with z = softcap(input) / temperature, where softcap is
    the cap that ``logit_softcap`` describes::

        torch.nn.functional.cross_entropy(z.float(), target, weight, ignore_index=ignore_index, reduction=reduction,
                                          label_smoothing=label_smoothing)

    and ``lse_square_scale`` adds ``lse_square_scale * torch.logsumexp(z, class_dim) ** 2`` at every position that is
    not ignored, before the reduction. Statistics and the loss are float32 whatever the type of the logits, and the
    gradient has the dtype of the logits and is rounded once: float16 gradients below 3e-8 become 0, so scale the loss.
    Tensor values are never read, so the call does not wait for the device; only on the CPU are targets checked for
    their range.

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
        temperature: divides the logits after the cap; from 1e-6 to 1e6.
        exact_maximum: True computes the maximum of every row before its exponentials, False uses a shift known in
            advance, None chooses the one with the shorter modelled time (docs/explanation/cross_entropy.md). Both forms
            have the same error bounds.
        normalizer: scalar tensor that replaces the divisor of the mean, for instance the number of targets in all
            micro-batches or on all ranks; with ``weight``, the sum of their weights.
        inplace: the backward writes the gradient over the memory of ``input``, which saves that much memory. Later uses
            of the logits in a backward raise, as after any in-place operation, but not those of PyTorch's operators
            under saved-tensor hooks (docs/reference/torch.md#in-place).
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
        RuntimeError: incompatible shapes or devices, or ``label_smoothing`` out of range, as in PyTorch; ``inplace``
            with a leaf that requires grad, with another tensor that overlaps it in memory, or under torch.compile;
            ``weight`` requires grad with class indices.
        IndexError: on the CPU, a target out of range.
        AssertionError: ``exact_maximum=False`` where the kernels need the maximum.
        NotImplementedError: an unsupported device; a DTensor placement that is not supported; FSDP shards; integer
            logits; forward-mode differentiation.
    """
    caller, whole = CROSS_ENTROPY, dtensor(input)
    check_flags(caller, inplace=inplace, return_outputs=return_outputs)
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
        check_inplace(caller, input, class_dim, target=target, weight=weight, normalizer=normalizer)
    logits = as_rows(input, class_dim)
    rows_target = as_rows(target, class_dim) if soft else target.reshape(-1)
    class_weight = None if weight is None else weight.to(torch.float32)
    wanted = Wanted(with_logprob=return_outputs, with_argmax=return_outputs, with_entropy=return_outputs)
    keywords = FORWARD.keywords_from(options, wanted)
    results = ForwardResults(*DERIVATIVE.apply(inplace, logits, rows_target, class_weight, **keywords))
    if soft and classes == 0 and reduction == "mean" and normalizer is None:
        normalizer = input.new_tensor(torch.nan)  # PyTorch divides by elements / classes, 0 / 0
    shape = rows_shape(input, class_dim)
    return returned_values(results, rows_target, options, reduction, normalizer, shape, return_outputs)
