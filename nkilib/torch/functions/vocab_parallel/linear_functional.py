# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``vocab_parallel_linear_cross_entropy``: output layer and loss together, with classes spread over processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import REDUCTIONS, NoKeywords, check_flags, hides_unknown, refuse_unknown
from nkilib.torch.dispatch.dtensors import dtensor
from nkilib.torch.functions.cross_entropy.checks import check_outputs, check_weight
from nkilib.torch.functions.cross_entropy.functional import CrossEntropyOutputs, returned_values
from nkilib.torch.functions.cross_entropy.operators import Wanted
from nkilib.torch.functions.linear_cross_entropy.checks import (
    LinearArguments,
    check_arguments,
    check_kernel_arguments,
    checked_product,
    checked_recipe,
    reason_for_reference,
)
from nkilib.torch.functions.linear_cross_entropy.operators import VOCAB_PARALLEL_LINEAR as _CALLER
from nkilib.torch.functions.vocab_parallel.linear_autograd import vocab_parallel_linear_results
from nkilib.torch.functions.vocab_parallel.linear_placement import local_layer, shard_operands
from nkilib.torch.functions.vocab_parallel.shards import (
    VocabularyShards,
    check_no_group,
    group_place,
    shards_of_ranks,
    unpadded_sizes,
)
from nkilib.torch.losses.temperatures import number_and_tensor

# The caller in errors about the weight, which is spread over the ranks.
_WEIGHT_CALLER: Final = _CALLER._replace(input="linear_weight", noun="weight")


def _check_kernels_take(arguments: LinearArguments, shards: VocabularyShards) -> None:
    """Check that a kernel computes the loss.

    PyTorch's operators can replace the kernels only for a whole weight: here they would lack the logits of the other
    ranks.
    """
    reason = reason_for_reference(arguments, shards.num_classes)
    if reason is not None:
        raise NotImplementedError(
            f"{_CALLER}: not supported where {reason}; pass the logits of torch.nn.functional.linear to "
            f"nkilib.torch.vocab_parallel_cross_entropy"
        )


@overload
def vocab_parallel_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = ...,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    num_classes: int | None = ...,
    shard_sizes: Sequence[int] | None = ...,
    logit_softcap: float | None = ...,
    temperature: float | Tensor = ...,
    logit_scale: float = ...,
    compute_dtype: torch.dtype | None = ...,
    lse_square_scale: float = ...,
    normalizer: Tensor | None = ...,
    return_outputs: Literal[False] = ...,
    grad_weight_sum: Tensor | None = ...,
) -> Tensor: ...


@overload
def vocab_parallel_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = ...,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    num_classes: int | None = ...,
    shard_sizes: Sequence[int] | None = ...,
    logit_softcap: float | None = ...,
    temperature: float | Tensor = ...,
    logit_scale: float = ...,
    compute_dtype: torch.dtype | None = ...,
    lse_square_scale: float = ...,
    normalizer: Tensor | None = ...,
    return_outputs: Literal[True],
    grad_weight_sum: Tensor | None = ...,
) -> CrossEntropyOutputs: ...


@overload
def vocab_parallel_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = ...,
    *,
    linear_bias: Tensor | None = ...,
    weight: Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    num_classes: int | None = ...,
    shard_sizes: Sequence[int] | None = ...,
    logit_softcap: float | None = ...,
    temperature: float | Tensor = ...,
    logit_scale: float = ...,
    compute_dtype: torch.dtype | None = ...,
    lse_square_scale: float = ...,
    normalizer: Tensor | None = ...,
    return_outputs: bool = ...,
    grad_weight_sum: Tensor | None = ...,
) -> Tensor | CrossEntropyOutputs: ...


@hides_unknown
def vocab_parallel_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    num_classes: int | None = None,
    shard_sizes: Sequence[int] | None = None,
    logit_softcap: float | None = None,
    temperature: float | Tensor = 1.0,
    logit_scale: float = 1.0,
    compute_dtype: torch.dtype | None = None,
    lse_square_scale: float = 0.0,
    normalizer: Tensor | None = None,
    return_outputs: bool = False,
    grad_weight_sum: Tensor | None = None,
    **unknown: Unpack[NoKeywords],
) -> Tensor | CrossEntropyOutputs:
    """Compute the cross-entropy of hidden states where each rank of ``group`` has a part of the output layer, without
    logits in memory.

    On every rank, the result equals that of the weights and biases of all ranks, concatenated in rank order without
    their padding::

        nkilib.torch.linear_cross_entropy(input, torch.cat(linear_weights), target, ..., linear_bias=torch.cat(biases))

    Rank r has the classes that follow those of rank r - 1. By default all its rows are classes and all ranks have
    equally many; ``num_classes`` or ``shard_sizes`` describe other cases. Rows of padding are ignored, whatever
    they hold, and their gradient is 0. Every rank passes the same options, ``input`` and ``target``, and all ranks run
    the backward if one does.

    The forward communicates twice, with an all-reduce of maxima and one of sums, 3 to 5 float32 values per position in
    total; ``return_outputs`` adds one value to the sums, and an all-reduce of an int32. The backward communicates once,
    if ``input`` requires grad: the gradient of ``input`` is the sum over all ranks, computed in float32 and rounded
    once, so that no earlier layer has to sum it again. The gradients of weight and bias are those of the rank's own
    classes.

    Args:
        input: [..., D], bfloat16, float32 or float16, the same on every rank.
        linear_weight: [rows, D] of this rank, of the same type. A DTensor must be sharded by rows on a mesh of one
            dimension; its placements define which classes a rank has, and its mesh which ranks share them.
        target: class indices of any integer type, counted over all classes, each in [0, V) or ``ignore_index``, of the
            shape of ``input`` without the features.
        group: the ranks that share the vocabulary, for instance ``device_mesh["tp"].get_group()``; None: all ranks. A
            DTensor uses the ranks of its mesh; then neither a group nor ``shard_sizes`` is accepted.
        linear_bias: [rows] of this rank, of the type of ``linear_weight`` or float32; used in float32, without
            rounding.
        weight: [V] floating, a factor for each class of all ranks, used in float32; None means 1.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, see ``linear_cross_entropy``.
        ignore_index: class index of ignored positions, which have loss 0 and gradient 0.
        label_smoothing: from 0 to 1, the share of the target that is spread over all V classes.
        num_classes: V, for a vocabulary that is padded to a multiple of the number of ranks. All ranks then have
            equally many rows, and the rows from V on, counted over the ranks in order, are padding.
        shard_sizes: the number of classes of each rank in rank order, the same list on every rank, if ranks have
            different numbers of classes; further rows of a rank are padding. A rank may have 0 classes.
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c), except -inf; None applies no
            cap.
        temperature: divides the logits after the cap; from 1e-6 to 1e6. Like ``logit_scale``, a number is a constant of
            the compiled kernel: each new value compiles a new kernel. A tensor, the same on every rank, has one for all
            positions or one for each: see ``cross_entropy``.
        logit_scale: multiplies the logits before the cap; from 1e-6 to 1e6.
        compute_dtype: see ``linear_cross_entropy``; the same on every rank.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss).
        normalizer: scalar tensor that replaces the divisor of the mean.
        return_outputs: return :class:`CrossEntropyOutputs`, which on every rank are those of all classes.
        grad_weight_sum: see ``linear_cross_entropy``; for this rank's rows.

    Returns:
        The loss, float32, the same on every rank: a scalar tensor; for ``"none"``, a tensor of the shape of ``target``.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError: see ``linear_cross_entropy``, before anything is communicated.
        RuntimeError: ``torch.distributed`` is not initialized.
        ValueError: this process is not in ``group``; the shards do not match the weight. On the CPU, raised on all
            ranks: the ranks do not see the same shards or options, or ``input`` requires grad on only some of them (on
            other devices, and under torch.compile, the loss is NaN instead).
        NotImplementedError: an unsupported device; an FSDP shard, or another DTensor placement; forward-mode
            differentiation, or a graph of the gradient (``create_graph=True``); class probabilities, and numbers of
            features, that the kernels do not take.
    """
    if unknown:
        refuse_unknown(vocab_parallel_linear_cross_entropy, unknown)
    check_flags(_CALLER, return_outputs=return_outputs)
    number, temperatures = number_and_tensor(temperature)
    arguments = LinearArguments(
        input, linear_weight, target, linear_bias, weight, reduction, normalizer, grad_weight_sum, temperatures
    )
    whole = dtensor(linear_weight)
    if whole is not None:
        check_no_group(_WEIGHT_CALLER, group, shard_sizes)
        layer = local_layer(_CALLER, _WEIGHT_CALLER, whole, arguments)
        arguments, group = layer.arguments, layer.spread.group
        shard_sizes, num_classes = unpadded_sizes(_WEIGHT_CALLER, layer.spread.sizes, num_classes), None
    options, product = checked_recipe(
        _CALLER,
        vocab_parallel_linear_cross_entropy,
        number,
        logit_scale,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        logit_softcap=logit_softcap,
        lse_square_scale=lse_square_scale,
    )
    check_arguments(_CALLER, arguments, None)
    place = group_place(_CALLER, group)
    shards = shards_of_ranks(_WEIGHT_CALLER, arguments.linear_weight.shape[0], place, num_classes, shard_sizes)
    _check_kernels_take(arguments, shards)
    check_weight(_CALLER, arguments.weight, shards.num_classes, soft=False)
    product = checked_product(_CALLER, arguments, product, compute_dtype)
    check_kernel_arguments(_CALLER, arguments, product)
    if return_outputs:
        check_outputs(_CALLER, shards.num_classes)
    operands = shard_operands(_CALLER, arguments, shards)
    results = vocab_parallel_linear_results(
        _CALLER,
        operands,
        None if arguments.weight is None else arguments.weight.to(torch.float32),
        options,
        product,
        shards,
        group,
        Wanted(with_logprob=return_outputs, with_argmax=return_outputs, with_entropy=return_outputs),
        {"reduction (of mean, sum, none)": REDUCTIONS.index(reduction), "normalizer": normalizer is not None},
    )
    shape = tuple(arguments.input.shape[:-1])
    return returned_values(results, operands.target, options, reduction, arguments.normalizer, shape, return_outputs)
