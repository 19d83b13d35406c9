# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``vocab_parallel_cross_entropy``: the loss of logits whose classes are spread over processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import REDUCTIONS, check_flags, shows
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, RecipeOptions
from nkilib.torch.dispatch.dtensors import OF_PARTS, dtensor
from nkilib.torch.dispatch.layout import as_rows, row_length, rows_shape
from nkilib.torch.functions.cross_entropy.checks import (
    check_arguments,
    check_inplace_logits,
    check_known,
    check_outputs,
    check_weight,
    checked_options,
)
from nkilib.torch.functions.cross_entropy.functional import (
    CrossEntropyOutputs,
    cross_entropy,
    loss_part,
    returned_values,
)
from nkilib.torch.functions.cross_entropy.operators import CROSS_ENTROPY, Wanted
from nkilib.torch.functions.cross_entropy.operators import VOCAB_PARALLEL as _CALLER
from nkilib.torch.functions.vocab_parallel.autograd import vocab_parallel_results
from nkilib.torch.functions.vocab_parallel.shards import group_place, shards_of_ranks, without_padding
from nkilib.torch.losses.temperatures import check_rows, number_and_tensor, temperatures_of_rows


def _check_inplace(logits_shard: Tensor, class_dim: int, **others: Tensor | None) -> None:
    """Check for ``inplace=True`` that every rank's shard can be overwritten; all ranks come to the same answer.

    With ``class_dim=1``, a shard of one column could be overwritten, but the wider shards of other ranks could not.
    """
    if class_dim == 1 and logits_shard.dim() > 2:
        raise ValueError(
            f"{_CALLER}: inplace=True requires the classes last, got class_dim=1 and logits_shard of shape "
            f"{tuple(logits_shard.shape)}; keep the classes last and pass class_dim=-1"
        )
    check_inplace_logits(_CALLER, logits_shard, class_dim, **others)


@overload
def vocab_parallel_cross_entropy(
    logits_shard: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = ...,
    *,
    weight: Tensor | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    num_classes: int | None = ...,
    shard_sizes: Sequence[int] | None = ...,
    normalizer: Tensor | None = ...,
    inplace: bool = ...,
    return_outputs: Literal[False] = ...,
    class_dim: int = ...,
    **recipe: Unpack[RecipeOptions],
) -> Tensor: ...


@overload
def vocab_parallel_cross_entropy(
    logits_shard: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = ...,
    *,
    weight: Tensor | None = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
    num_classes: int | None = ...,
    shard_sizes: Sequence[int] | None = ...,
    normalizer: Tensor | None = ...,
    inplace: bool = ...,
    return_outputs: Literal[True],
    class_dim: int = ...,
    **recipe: Unpack[RecipeOptions],
) -> CrossEntropyOutputs: ...


@shows(RecipeOptions, defaults=LossOptions)
def vocab_parallel_cross_entropy(
    logits_shard: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    num_classes: int | None = None,
    shard_sizes: Sequence[int] | None = None,
    normalizer: Tensor | None = None,
    inplace: bool = False,
    return_outputs: bool = False,
    class_dim: int = -1,
    **recipe: Unpack[RecipeOptions],
) -> Tensor | CrossEntropyOutputs:
    """Compute the cross-entropy where each rank of ``group`` holds the logits of a part of the classes.

    On every rank, the result equals that of the logits of all ranks, concatenated in rank order without their padding::

        nkilib.torch.cross_entropy(torch.cat(shards, class_dim), target, weight, ..., class_dim=class_dim)

    with class probabilities concatenated in the same way. The scheme is that of Megatron-LM, arXiv 1909.08053.

    Rank r holds the classes that follow those of rank r - 1. By default all its columns are classes and all ranks have
    equally many; ``num_classes`` or ``shard_sizes`` describe other cases. Values in padded columns are ignored,
    whatever they are, and their gradient is 0. Every rank passes the same options, and the same ``target`` of class
    indices.

    The forward communicates twice, with an all-reduce of maxima and one of sums, 3 to 5 float32 values per position in
    total; ``return_outputs`` adds one value to the sums, and an all-reduce of an int32. The backward does not
    communicate: it computes the gradient of the rank's own logits. As with every column-parallel layer, the gradient of
    the hidden states is a sum over all ranks, which the output layer computes.

    Args:
        logits_shard: logits of this rank's classes, bfloat16, float16 or float32: [..., columns], or with
            ``class_dim=1`` [batch, columns, ...]. Logits with padding are copied without the padding, in the forward
            and in the backward. A DTensor's placements define which classes a rank has, and its mesh defines which
            ranks share them (docs/reference/torch.md#which-function-for-which-trainer).
        target: class indices of any integer type, counted over all classes, each in [0, V) or ``ignore_index``, of the
            shape of ``logits_shard`` without the classes; or class probabilities, floating, of the shape of
            ``logits_shard``: those of this rank's classes.
        group: the ranks that share the vocabulary, for instance ``device_mesh["tp"].get_group()``; None: all ranks. A
            DTensor uses the ranks of its mesh; then neither a group nor ``shard_sizes`` is accepted.
        weight: [V] floating, a factor for each class of all ranks, used in float32; None means 1.
        ignore_index: class index of ignored positions, which have loss 0 and gradient 0.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, see ``cross_entropy``.
        label_smoothing: from 0 to 1, the share of the target that is spread over all V classes.
        num_classes: V, for a vocabulary that is padded to a multiple of the number of ranks. All ranks then have
            equally many columns, and the columns from V on, counted over the ranks in order, are padding.
        shard_sizes: the number of classes of each rank in rank order, the same list on every rank, if ranks have
            different numbers of classes; further columns of a rank are padding. A rank may have 0 classes.
        logit_softcap: c, from 1e-30 to 1e30: replaces the logits by c * tanh(logits / c), except -inf; None applies no
            cap.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss).
        temperature: divides the logits after the cap; from 1e-6 to 1e6. A tensor, the same on every rank, has one for
            all positions or one for each: see ``cross_entropy``.
        normalizer: scalar tensor that replaces the divisor of the mean.
        inplace: the backward writes the gradient over the memory of ``logits_shard``.
        return_outputs: return :class:`CrossEntropyOutputs`, which on every rank are those of the whole vocabulary. If a
            cap makes the largest logits of several ranks equal, argmax is that of the first of these ranks.
        class_dim: the dimension of the classes: -1, or 1 as in PyTorch.

    Returns:
        The loss, float32, the same on every rank: a scalar tensor; for ``"none"``, a tensor of the shape of ``target``.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see ``cross_entropy``, before anything is
            communicated.
        RuntimeError: ``torch.distributed`` is not initialized.
        ValueError: this process is not in ``group``; the shards do not match the logits. On the CPU, raised on all
            ranks: the ranks do not see the same shards or options (on other devices, and under torch.compile, the loss
            is NaN instead), or seem to have the whole vocabulary each (docs/how_to/tensor_parallel.md).
    """
    check_flags(_CALLER, inplace=inplace, return_outputs=return_outputs)
    whole = dtensor(logits_shard)
    if whole is not None:
        part = loss_part(_CALLER, whole, target, weight, reduction, normalizer, class_dim, inplace)
        check_rows(_CALLER, recipe.get("temperature"), part.has_all_rows)
        outcome: Tensor | CrossEntropyOutputs = without_padding(
            _CALLER, part, class_dim, group, num_classes, shard_sizes
        ).call(
            cross_entropy,
            vocab_parallel_cross_entropy,
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
    options = checked_options(
        _CALLER,
        vocab_parallel_cross_entropy,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        **{**recipe, "temperature": temperature},
    )
    check_arguments(_CALLER, logits_shard, target, weight, options, reduction, normalizer, class_dim)
    check_known(_CALLER, options, "for a vocabulary in shards")
    shape = rows_shape(logits_shard, class_dim)
    temperatures = temperatures_of_rows(_CALLER, tensor, shape, logits_shard.device)
    place = group_place(_CALLER, group)
    shards = shards_of_ranks(_CALLER, row_length(logits_shard, class_dim), place, num_classes, shard_sizes)
    soft = target.shape == logits_shard.shape
    check_weight(_CALLER, weight, shards.num_classes, soft)
    if return_outputs:
        check_outputs(_CALLER, shards.num_classes)
    if inplace:
        _check_inplace(logits_shard, class_dim, target=target, weight=weight, normalizer=normalizer)
    rows_target = as_rows(target, class_dim)[:, : shards.own_size] if soft else target.reshape(-1)
    results = vocab_parallel_results(
        _CALLER,
        as_rows(logits_shard, class_dim),
        rows_target,
        None if weight is None else weight.to(torch.float32),
        temperatures,
        options,
        shards,
        group,
        inplace,
        Wanted(with_logprob=return_outputs, with_argmax=return_outputs, with_entropy=return_outputs),
        {"reduction (of mean, sum, none)": REDUCTIONS.index(reduction), "normalizer": normalizer is not None},
    )
    return returned_values(results, rows_target, options, reduction, normalizer, shape, return_outputs)


OF_PARTS[CROSS_ENTROPY.function] = vocab_parallel_cross_entropy
