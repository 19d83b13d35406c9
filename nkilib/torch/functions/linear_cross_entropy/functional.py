# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy`` of ``torch.nn.functional``, by kernels that never have all logits in memory.

There are three ways to compute the loss:

- one launch in the forward and one in the backward;
- with ``memory_limit``, a single launch for loss and gradients, which needs three matrix products instead of four, if
  :func:`takes_one_launch` and :func:`granted_scratch` allow it;
- PyTorch's own operators, with a warning, for a loss that no kernel computes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final, Literal, overload

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, check_flags, hides_unknown, refuse_unknown, values_of
from nkilib.experimental.loss.linear.launch import SCRATCH_BYTES
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.layout import as_rows, unviewed
from nkilib.torch.functions.cross_entropy.checks import LossKeywords, check_outputs, check_weight
from nkilib.torch.functions.cross_entropy.functional import CrossEntropyOutputs, returned_values
from nkilib.torch.functions.cross_entropy.operators import ForwardResults, Wanted
from nkilib.torch.functions.linear_cross_entropy.checks import (
    LinearArguments,
    check_arguments,
    check_kernel_arguments,
    check_memory_limit,
    checked_product,
    checked_recipe,
    reason_for_reference,
)
from nkilib.torch.functions.linear_cross_entropy.operators import (
    DERIVATIVE,
    FORWARD,
    LINEAR,
    WITH_GRADIENTS,
    Product,
    Scratch,
    WantedGradients,
    wanted_gradients,
)
from nkilib.torch.losses.indexed import INDEX_DTYPES, is_ignored, kernel_target
from nkilib.torch.losses.temperatures import number_and_tensor

_PLAIN: Final = Product()
# The meaning of ``ignore_index=None`` for class indices.
_IGNORED: Final = -100
# The least number of positions whose logits the kernel keeps at a time, or all positions if there are fewer.
_TILE: Final = 128


def _check_unused(caller: Caller, reason: str, is_used: Mapping[str, bool]) -> None:
    """Check that a call whose loss PyTorch's operators compute uses no argument that only nkilib has.

    Args:
        caller: the function that error messages name.
        reason: a clause that says why no kernel computes the loss.
        is_used: for each argument, whether its value differs from its default.

    Raises:
        NotImplementedError: such an argument is used.
    """
    for name, used in is_used.items():
        if used:
            raise NotImplementedError(
                f"{caller}: {name} is not supported where {reason}; leave it out, or pass the logits of "
                f"torch.nn.functional.linear to nkilib.torch.cross_entropy"
            )


def _warn(message: str) -> None:
    if torch.compiler.is_compiling():
        from nkilib.torch.dispatch import uncompiled  # which imports the compiler

        uncompiled.warn(message)
    else:
        warnings.warn(message, UserWarning, stacklevel=4)


def _reference_loss(caller: Caller, arguments: LinearArguments, reason: str, options: LossKeywords) -> Tensor:
    """Return PyTorch's ``cross_entropy`` of PyTorch's ``linear``, with a warning.

    Args:
        caller: the function that the warning names.
        arguments: the checked arguments of the call.
        reason: a clause that says why no kernel computes the loss.
        options: the options of the loss; only PyTorch's own are used.
    """
    _warn(f"{caller}: {reason}; computed by linear and cross_entropy of torch.nn.functional, with all logits in memory")
    weight, bias, positions = arguments.linear_weight, arguments.linear_bias, arguments.input.shape[:-1]
    is_deep = len(positions) > 1
    rows = arguments.input.flatten(0, -2) if is_deep else arguments.input
    products = linear(rows, weight.flatten(0, -2), None if bias is None else bias.flatten())
    target = arguments.target.long() if arguments.target.dtype in INDEX_DTYPES else arguments.target
    loss = cross_entropy(
        products.reshape(*rows.shape[:-1], *weight.shape[:-1]),
        target.flatten(0, len(positions) - 1) if is_deep else target,
        arguments.weight,
        ignore_index=options["ignore_index"],
        reduction=arguments.reduction,
        label_smoothing=options["label_smoothing"],
    )
    return unviewed(loss.reshape(positions)) if arguments.reduction == "none" and is_deep else loss


def takes_one_launch(
    arguments: LinearArguments, wanted: WantedGradients, return_outputs: bool, product: Product = _PLAIN
) -> bool:
    """Return whether a single launch can compute the loss and its gradients, which the backward multiplies by one
    number.

    It cannot compute float16 gradients, which would lack range before the backward multiplies them by the scale of the
    loss, nor unrounded gradients for ``grad_weight_sum``.
    """
    normalizer = arguments.normalizer
    return (
        arguments.reduction != "none"
        and not return_outputs
        and torch.float16 not in (arguments.input.dtype, arguments.linear_weight.dtype)
        and product.compute_dtype != "float16"
        and arguments.input.numel() > 0
        and not (arguments.grad_weight_sum is not None and wanted.grad_weight_wanted)
        and not (normalizer is not None and normalizer.requires_grad)
    )


def _rounded_bytes(arguments: LinearArguments, product: Product) -> int:
    """Return the bytes of the kernel's copy of ``input`` in the compute dtype; 0 if ``input`` has this dtype
    already.
    """
    if product.compute_dtype is None:
        return 0
    dtype: torch.dtype = getattr(torch, product.compute_dtype)
    return 0 if arguments.input.dtype == dtype else dtype.itemsize * arguments.input.numel()


def granted_scratch(
    arguments: LinearArguments, wanted: WantedGradients, memory_limit: int, product: Product = _PLAIN
) -> int | None:
    """Return the bytes of scratch memory that a single launch may use for logits within ``memory_limit``; None if the
    limit is too small.

    A launch uses memory for logits, for float32 sums, and for the gradients, which exist from the forward on. The
    result is at most the larger of two sizes: the kernel's default, and the bytes of the logits of 128 positions (or of
    all, if there are fewer).
    """
    from nkilib.experimental.loss.linear_cross_entropy.host.tiling import one_launch_bytes  # loading it takes long

    weight = arguments.linear_weight
    classes, features = weight.shape
    positions = arguments.input.numel() // features
    kept = features * (
        wanted.grad_input_wanted * positions * arguments.input.itemsize
        + wanted.grad_weight_wanted * classes * weight.itemsize
    )
    kept += _rounded_bytes(arguments, product)
    least = min(positions, _TILE) * classes * torch.float32.itemsize
    scratch = max(SCRATCH_BYTES, least)
    while kept + one_launch_bytes(positions, features, classes, scratch) > memory_limit:
        if scratch == least:
            return None
        scratch = max(scratch // 2, least)
    return scratch


def _divisor(target: Tensor, class_weight: Tensor | None, options: LossKeywords) -> Tensor:
    """Return the divisor of a mean of cross-entropies: the summed weights of the valid targets.

    If the sum is 0, the divisor is NaN, so that the mean is NaN as in PyTorch.
    """
    counts = ~is_ignored(target, options["ignore_index"])
    if class_weight is None:
        total = counts.sum().to(torch.float32)
    else:
        classes, _ = kernel_target(target, options["ignore_index"], len(class_weight))
        weights = class_weight[classes.clamp(0, len(class_weight) - 1)]
        total = torch.where(counts, weights, 0.0).sum()
    return torch.where(total == 0.0, torch.nan, total)


def _loss_with_gradients(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    class_weight: Tensor | None,
    temperatures: Tensor | None,
    options: LossKeywords,
    product: Product,
    reduction: str,
    normalizer: Tensor | None,
    wanted: WantedGradients,
    scratch_bytes: int,
) -> Tensor:
    """Return the loss, a scalar whose gradients are already computed.

    Args:
        input: the hidden states [N, D].
        linear_weight: the weight [V, D].
        target: the class indices [N].
        linear_bias, class_weight: [V] float32, or None.
        temperatures: [N] or [1] float32, or None.
        options: the options of the loss.
        product: the scale and the compute dtype of the matrix product.
        reduction: ``"mean"`` or ``"sum"``.
        normalizer: the divisor of the mean; None means the summed weights of the valid targets.
        wanted: the requested gradients.
        scratch_bytes: the bytes of scratch memory for logits, see :func:`granted_scratch`.
    """
    scale = input.new_ones((), dtype=torch.float32)
    if reduction == "mean":
        scale = scale / (_divisor(target, class_weight, options) if normalizer is None else normalizer.to(scale))
    keywords = WITH_GRADIENTS.taken({**options, **values_of(Scratch(scratch_bytes), product, wanted)})
    operator = WITH_GRADIENTS.op(input.device)
    total, *_ = operator(
        input, linear_weight, target, scale.detach(), linear_bias, class_weight, temperatures, **keywords
    )
    loss: Tensor = total
    return loss


def _kernel_loss(
    arguments: LinearArguments, recipe: LossKeywords, product: Product, return_outputs: bool, memory_limit: int | None
) -> Tensor | CrossEntropyOutputs:
    rows, linear_weight, target = as_rows(arguments.input, -1), arguments.linear_weight, arguments.target.reshape(-1)
    bias = None if arguments.linear_bias is None else arguments.linear_bias.to(torch.float32)
    class_weight = None if arguments.weight is None else arguments.weight.to(torch.float32)
    temperatures = arguments.temperatures(LINEAR)
    wanted = wanted_gradients(rows, linear_weight, bias)
    if memory_limit is not None and wanted is not None and takes_one_launch(arguments, wanted, return_outputs, product):
        scratch = granted_scratch(arguments, wanted, memory_limit, product)
        if scratch is not None:
            operands = (rows, linear_weight, target, bias, class_weight, temperatures)
            return _loss_with_gradients(
                *operands, recipe, product, arguments.reduction, arguments.normalizer, wanted, scratch
            )
    summed = arguments.grad_weight_sum if wanted is not None and wanted.grad_weight_wanted else None
    outputs = Wanted(with_logprob=return_outputs, with_argmax=return_outputs, with_entropy=return_outputs)
    keywords = FORWARD.taken({**recipe, **values_of(product, outputs)})
    tensors = (rows, linear_weight, target, bias, class_weight, summed, temperatures)
    results = ForwardResults(*DERIVATIVE.apply(False, *tensors, **keywords))
    shape = tuple(arguments.input.shape[:-1])
    return returned_values(results, target, recipe, arguments.reduction, arguments.normalizer, shape, return_outputs)


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
    temperature: float | Tensor = ...,
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
    temperature: float | Tensor = ...,
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
    temperature: float | Tensor = ...,
    logit_scale: float = ...,
    compute_dtype: torch.dtype | None = ...,
    lse_square_scale: float = ...,
    normalizer: Tensor | None = ...,
    return_outputs: bool = ...,
    grad_weight_sum: Tensor | None = ...,
    memory_limit: int | None = ...,
) -> Tensor | CrossEntropyOutputs: ...


@hides_unknown
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
    temperature: float | Tensor = 1.0,
    logit_scale: float = 1.0,
    compute_dtype: torch.dtype | None = None,
    lse_square_scale: float = 0.0,
    normalizer: Tensor | None = None,
    return_outputs: bool = False,
    grad_weight_sum: Tensor | None = None,
    memory_limit: int | None = None,
    **unknown: Unpack[NoKeywords],
) -> Tensor | CrossEntropyOutputs:
    """Compute the cross-entropy between an output layer's logits and targets, without a tensor of logits in memory.

    Let z = softcap(logit_scale * linear(input, linear_weight, linear_bias)) / temperature, computed in float32, where
    softcap is the cap that ``logit_softcap`` describes. Without ``lse_square_scale`` and ``normalizer`` the result
    equals, like that of ``torch.nn.functional.linear_cross_entropy`` in PyTorch 2.13::

        torch.nn.functional.cross_entropy(z.float(), target, weight, ignore_index=ignore_index, reduction=reduction,
                                          label_smoothing=label_smoothing)

    ``lse_square_scale`` adds ``lse_square_scale * torch.logsumexp(z, -1) ** 2`` at every position that is not ignored,
    before the reduction. The gradients have the dtypes of their tensors and are rounded once; gradients of float32
    tensors are unrounded. A gradient that is not needed is not computed. Tensor values are never read, so the call does
    not wait for the device; only on the CPU are targets checked for their range. Under autocast the kernels round input
    and weight to autocast's dtype for the products, without a copy of the weight; the bias is added in float32, without
    rounding. With float16, one power of two, which depends on the largest upstream gradient, scales the gradients of
    all positions: if the upstream gradient of any position is infinite or NaN, all gradients are NaN.

    PyTorch's own operators compute the loss, with a warning and with all logits in memory, for class probabilities, for
    a ``linear_weight`` of more than two dimensions, for numbers of features outside of 16 to 16,384, and for more than
    2^24 classes. The loss then has PyTorch's dtype.

    Args:
        input: [..., D], bfloat16, float32 or float16; more than one leading dimension is an extension.
        linear_weight: [V, D], of the same type unless a compute dtype is set. A transposed view of [D, V] is copied.
        target: class indices of any integer type, each in [0, V) or ``ignore_index``, of the shape of ``input`` without
            the features; or class probabilities, floating, of the shape of the logits.
        linear_bias: [V], of the type of ``linear_weight`` or float32; used in float32, without rounding.
        weight: [V] floating, a factor for each class, used in float32; None means 1.
        reduction: ``"mean"`` divides the sum by the summed weights of the targets that are not ignored, ``"sum"`` does
            not, ``"none"`` returns one loss per position.
        ignore_index: class index of ignored positions, which have loss 0 and gradient 0; None means -100.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes (arXiv 1512.00567).
        options: PyTorch's ``LinearCrossEntropyOptions``, which has no effect here.
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c), except -inf; None applies no
            cap. Used in Gemma 2, arXiv 2408.00118.
        temperature: divides the logits after the cap; from 1e-6 to 1e6. A number is a constant of the compiled kernel,
            like ``logit_scale``: each new value compiles a new kernel. A tensor has one temperature for all positions
            or one per position, and other values need no compilation: see :func:`nkilib.torch.cross_entropy`.
        logit_scale: multiplies the logits before the cap, as in the Cohere models; from 1e-6 to 1e6. Neither it nor the
            temperature is multiplied into an operand of the product, so they add no rounding.
        compute_dtype: bfloat16, float16 or float32. ``input`` and ``linear_weight`` are rounded to it for the product,
            and may have different dtypes. None: autocast's dtype if autocast is on, else that of both tensors.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss), used in PaLM, arXiv
            2204.02311.
        normalizer: scalar tensor that replaces the divisor of the mean, for instance the number of targets in all
            micro-batches or on all ranks; with ``weight``, the sum of their weights.
        return_outputs: return :class:`CrossEntropyOutputs`.
        grad_weight_sum: [V, D] float32, contiguous, such as Megatron's ``main_grad``: the backward adds the gradient of
            ``linear_weight`` to it, unrounded, and returns no gradient for ``linear_weight``, whose ``.grad`` stays
            unchanged. Nothing is added if ``linear_weight`` does not require grad. It disables the single launch of
            ``memory_limit``.
        memory_limit: the bytes that a single launch for loss and gradients may use beside its inputs: for the logits of
            a block of positions, for float32 sums and rounded operands, and for the gradients, which then exist from
            the forward on. If the bytes suffice, the dtype is bfloat16 or float32, ``reduction`` is not ``"none"`` and
            ``return_outputs`` is False, the forward computes the gradients too, in one launch with three matrix
            products instead of four. The backward then only multiplies them by the upstream gradient, and a second
            backward is an error. None: gradients are computed in the backward.

    Returns:
        The loss, float32: a scalar tensor; for ``"none"``, a tensor of the shape of the class indices. If every
        position is ignored, the mean is NaN and the gradient 0, as in PyTorch.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; batch sizes differ; 2^31 positions or more; ``ignore_index``,
            ``logit_softcap``, ``lse_square_scale``, ``temperature`` or ``logit_scale`` out of range; ``normalizer``
            without a mean; ``return_outputs`` with more than 2^24 classes; ``compute_dtype`` is another dtype;
            ``grad_weight_sum`` or ``memory_limit`` cannot be used.
        RuntimeError: incompatible shapes, dtypes or devices, or ``label_smoothing`` out of range, as in PyTorch;
            ``weight`` requires grad with class indices.
        IndexError: on the CPU, a target out of range.
        NotImplementedError: an unsupported device; a DTensor or an FSDP shard; integers to multiply; forward-mode or
            second-order differentiation; an argument that only nkilib has, where PyTorch's own operators compute the
            loss.
    """
    if unknown:
        refuse_unknown(linear_cross_entropy, unknown)
    caller = LINEAR
    check_flags(caller, return_outputs=return_outputs)
    number, temperatures = number_and_tensor(temperature)
    recipe, product = checked_recipe(
        caller,
        linear_cross_entropy,
        number,
        logit_scale,
        ignore_index=_IGNORED if ignore_index is None else ignore_index,
        label_smoothing=label_smoothing,
        logit_softcap=logit_softcap,
        lse_square_scale=lse_square_scale,
    )
    check_memory_limit(caller, memory_limit)
    arguments = LinearArguments(
        input, linear_weight, target, linear_bias, weight, reduction, normalizer, grad_weight_sum, temperatures
    )
    check_arguments(caller, arguments, ignore_index)
    check_weight(caller, weight, linear_weight.shape[0], arguments.has_probabilities)
    reason = reason_for_reference(arguments)
    if reason is not None:
        is_used = {
            "logit_softcap": logit_softcap is not None,
            "lse_square_scale": lse_square_scale != 0.0,
            "temperature": recipe["temperature"] != 1.0 or temperatures is not None,
            "logit_scale": product != Product(),
            "compute_dtype": compute_dtype is not None,
            "normalizer": normalizer is not None,
            "return_outputs": return_outputs,
            "grad_weight_sum": grad_weight_sum is not None,
            "memory_limit": memory_limit is not None,
        }
        _check_unused(caller, reason, is_used)
        return _reference_loss(caller, arguments, reason, recipe)
    product = checked_product(caller, arguments, product, compute_dtype)
    check_kernel_arguments(caller, arguments, product)
    if return_outputs:
        check_outputs(caller, linear_weight.shape[0])
    return _kernel_loss(arguments, recipe, product, return_outputs, memory_limit)
