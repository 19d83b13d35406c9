# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy``: ``torch.nn.functional.linear_cross_entropy`` on kernels that keep no logits."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.layout import as_rows
from nkilib.torch.functions.cross_entropy.checks import check_outputs, check_weight
from nkilib.torch.functions.cross_entropy.operators import Wanted
from nkilib.torch.functions.cross_entropy.outputs import CrossEntropyOutputs, returned_values
from nkilib.torch.functions.cross_entropy.results import ForwardResults
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.autograd import DERIVATIVE
from nkilib.torch.functions.linear_cross_entropy.checks import (
    check_arguments,
    check_kernel_arguments,
    check_memory_limit,
    checked_product,
    checked_recipe,
)
from nkilib.torch.functions.linear_cross_entropy.one_launch import (
    granted_scratch,
    loss_with_gradients,
    takes_one_launch,
    wanted_gradients,
)
from nkilib.torch.functions.linear_cross_entropy.operators import FORWARD, LINEAR, Product
from nkilib.torch.functions.linear_cross_entropy.reference import check_unused, reason_for_reference, reference_loss

# What ``ignore_index=None`` means for class indices.
_IGNORED = -100


@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int | None = ...,
    label_smoothing: float = ...,
    options: object = ...,
    logit_softcap: float | None = ...,
    temperature: float = ...,
    logit_scale: float = ...,
    compute_dtype: torch.dtype | None = ...,
    lse_square_scale: float = ...,
    normalizer: Tensor | None = ...,
    return_outputs: Literal[False] = ...,
    grad_weight_sum: Tensor | None = ...,
    memory_limit: int | None = ...,
) -> Tensor: ...


@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int | None = ...,
    label_smoothing: float = ...,
    options: object = ...,
    logit_softcap: float | None = ...,
    temperature: float = ...,
    logit_scale: float = ...,
    compute_dtype: torch.dtype | None = ...,
    lse_square_scale: float = ...,
    normalizer: Tensor | None = ...,
    return_outputs: Literal[True],
    grad_weight_sum: Tensor | None = ...,
    memory_limit: int | None = ...,
) -> CrossEntropyOutputs: ...


@overload
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int | None = ...,
    label_smoothing: float = ...,
    options: object = ...,
    logit_softcap: float | None = ...,
    temperature: float = ...,
    logit_scale: float = ...,
    compute_dtype: torch.dtype | None = ...,
    lse_square_scale: float = ...,
    normalizer: Tensor | None = ...,
    return_outputs: bool = ...,
    grad_weight_sum: Tensor | None = ...,
    memory_limit: int | None = ...,
) -> Tensor | CrossEntropyOutputs: ...


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: object = None,
    logit_softcap: float | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    compute_dtype: torch.dtype | None = None,
    lse_square_scale: float = 0.0,
    normalizer: Tensor | None = None,
    return_outputs: bool = False,
    grad_weight_sum: Tensor | None = None,
    memory_limit: int | None = None,
) -> Tensor | CrossEntropyOutputs:
    """Cross-entropy between an output layer's logits and targets, without a tensor of logits in memory.

    With the arguments that PyTorch has too it equals, with
    z = softcap(logit_scale * linear(input, linear_weight, linear_bias)) / temperature, products and all that follows in
    float32::

        torch.nn.functional.cross_entropy(z.float(), target, weight, ignore_index=ignore_index, reduction=reduction,
                                          label_smoothing=label_smoothing)

    as ``torch.nn.functional.linear_cross_entropy`` of PyTorch 2.13 does, and ``lse_square_scale`` adds
    ``lse_square_scale * torch.logsumexp(z, -1) ** 2`` at every position that is not ignored, before the reduction. The
    gradients have the types of their tensors, rounded once; one that nobody asks for is not computed. No value is
    looked at, so nothing waits for the device; on the CPU alone targets are checked for their range. Under autocast
    the kernels round input, weight and bias to its type for the products, with no copy of the weight, and gradients
    of float32 tensors are unrounded. Of float16 all gradients are NaN where
    an upstream gradient of one position is infinite or NaN: the largest one sets a power of two for all.

    Class probabilities, a ``linear_weight`` of more than two dimensions, and features other than 16 to 16,384 go to
    PyTorch's own operators, with a warning, and all logits in memory; the loss then has PyTorch's type.

    Args:
        input: [..., D], bfloat16, float32 or float16; more than one leading dimension is an extension.
        linear_weight: [V, D], of the same type unless there is one to compute in. A transposed view of [D, V]
            is copied.
        target: class indices of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without
            the features; or class probabilities, floating, of the shape of the logits.
        linear_bias: [V], of the type of ``linear_weight`` or float32; used in float32.
        weight: [V] floating, a factor for each class, used in float32; None means 1.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that count, ``"sum"`` does not,
            ``"none"`` keeps the positions apart.
        ignore_index: class index of positions that do not count; None means -100. They have loss 0 and gradient 0.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes (arXiv 1512.00567).
        options: PyTorch's ``LinearCrossEntropyOptions``, without effect here.
        logit_softcap: c from 1e-30 to 1e30 makes c * tanh(logits / c) of the logits, but leaves -inf; None leaves all.
            As in Gemma 2, arXiv 2408.00118.
        temperature: from 1e-6 to 1e6, divides the logits, after the cap. A constant of the compiled kernel, as
            ``logit_scale``: each new value compiles anew.
        logit_scale: from 1e-6 to 1e6, multiplies the logits, before the cap, as the models of Cohere have it. Neither
            is multiplied into an operand of the product, so nothing is rounded for them.
        compute_dtype: bfloat16, float16 or float32: operands of another type, which need not be alike then, are rounded
            to it for the products, and so is the bias. None: that of autocast if it is on, else that of the operands.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss), as in PaLM, arXiv 2204.02311.
        normalizer: tensor without dimensions that replaces the divisor of the mean, for instance the number of targets
            in all micro-batches or on all ranks.
        return_outputs: return :class:`CrossEntropyOutputs`.
        grad_weight_sum: [V, D] float32, contiguous, such as Megatron's ``main_grad``: the backward adds the gradient of
            ``linear_weight`` to it, unrounded, and hands none on: ``linear_weight.grad`` stays as it is. Nothing is
            added where ``linear_weight`` does not require grad. It means the first form, whatever ``memory_limit`` is.
        memory_limit: bytes that loss and gradients may take beside inputs and outputs, and for gradients from the
            forward on. Where it is enough, and for a mean or a sum of bfloat16 or float32 without ``return_outputs``,
            the forward computes the gradients too, with three matrix products instead of four, and the backward
            multiplies them. A second backward through it is an error then. None: the first form.

    Returns:
        The loss, float32: without dimensions, or for ``"none"`` of the shape of the class indices. If every position is
        ignored the mean is NaN and the gradient 0, as in PyTorch.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; batch sizes differ; 2^31 positions or more; ``ignore_index``,
            ``logit_softcap``, ``lse_square_scale``, ``temperature`` or ``logit_scale`` out of range; ``normalizer``
            without a mean; ``return_outputs`` with more than 2^24 classes; ``compute_dtype`` is another type;
            ``grad_weight_sum`` or ``memory_limit`` does not fit.
        RuntimeError: shapes, types or devices do not fit, or ``label_smoothing`` is out of range, as PyTorch says;
            ``weight`` requires grad with class indices.
        IndexError: on the CPU, a target out of range.
        NotImplementedError: another device; a DTensor or an FSDP shard; integers to multiply; a derivative in forward
            mode, or a second one; an argument of ours where PyTorch's own operators compute the loss.
    """
    caller = LINEAR
    recipe, product = checked_recipe(
        caller,
        linear_cross_entropy,
        temperature,
        logit_scale,
        ignore_index=_IGNORED if ignore_index is None else ignore_index,
        label_smoothing=label_smoothing,
        logit_softcap=logit_softcap,
        lse_square_scale=lse_square_scale,
    )
    check_memory_limit(caller, memory_limit)
    given = LinearArguments(input, linear_weight, target, linear_bias, weight, reduction, normalizer, grad_weight_sum)
    check_arguments(caller, given, ignore_index)
    check_weight(caller, weight, linear_weight.shape[0], given.has_probabilities)
    reason = reason_for_reference(given)
    if reason is not None:
        is_used = {
            "logit_softcap": logit_softcap is not None,
            "lse_square_scale": lse_square_scale != 0.0,
            "temperature": recipe.temperature != 1.0,
            "logit_scale": product != Product(),
            "compute_dtype": compute_dtype is not None,
            "normalizer": normalizer is not None,
            "return_outputs": return_outputs,
            "grad_weight_sum": grad_weight_sum is not None,
            "memory_limit": memory_limit is not None,
        }
        check_unused(caller, reason, is_used)
        return reference_loss(caller, given, reason, recipe)
    product = checked_product(caller, given, product, compute_dtype)
    check_kernel_arguments(caller, given, product)
    if return_outputs:
        check_outputs(caller, linear_weight.shape[0])
    return _kernel_loss(given, recipe, product, return_outputs, memory_limit)


def _kernel_loss(
    given: LinearArguments, recipe: LossOptions, product: Product, return_outputs: bool, memory_limit: int | None
) -> Tensor | CrossEntropyOutputs:
    rows, linear_weight, target = as_rows(given.input, -1), given.linear_weight, given.target.reshape(-1)
    bias = None if given.linear_bias is None else given.linear_bias.to(torch.float32)
    class_weight = None if given.weight is None else given.weight.to(torch.float32)
    wanted = wanted_gradients(rows, linear_weight, bias)
    if memory_limit is not None and wanted is not None and takes_one_launch(given, wanted, return_outputs, product):
        scratch = granted_scratch(given, wanted, memory_limit, product)
        if scratch is not None:
            operands = (rows, linear_weight, target, bias, class_weight)
            return loss_with_gradients(*operands, recipe, product, given.reduction, given.normalizer, wanted, scratch)
    summed = given.grad_weight_sum if wanted is not None and wanted.grad_weight_wanted else None
    outputs = Wanted(with_logprob=return_outputs, with_argmax=return_outputs, with_entropy=return_outputs)
    keywords = FORWARD.keywords_from(recipe, product, outputs)
    tensors = (rows, linear_weight, target, bias, class_weight, summed)
    results = ForwardResults(*DERIVATIVE.apply(False, *tensors, **keywords))
    shape = tuple(given.input.shape[:-1])
    return returned_values(results, target, recipe, given.reduction, given.normalizer, shape, return_outputs)
