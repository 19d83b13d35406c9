"""``vocab_parallel_cross_entropy``: the loss of an output layer whose classes are spread over processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.torch.checks import Caller, check_arguments, check_inplace, check_weight
from nkilib.torch.functional import reduced
from nkilib.torch.launch import LossOptions
from nkilib.torch.layout import as_rows, num_classes, positions_shape
from nkilib.torch.vocab_autograd import VocabParallelCrossEntropy
from nkilib.torch.vocab_shards import shards_of_ranks

_CALLER: Final = Caller("vocab_parallel_cross_entropy", "logits_shard")
_columns = num_classes  # of a shard; below, num_classes is the argument


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
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    normalizer: Tensor | None = None,
    inplace: bool = False,
    class_dim: int = -1,
) -> Tensor:
    """Cross-entropy where each rank of ``group`` holds the logits of a part of the classes.

    It equals, on every rank, with the logits of all ranks put together in rank order and without their padding::

        nkilib.torch.cross_entropy(torch.cat(shards, class_dim), target, weight, ignore_index, reduction, ...)

    Rank r holds the classes that follow those of rank r - 1. By default all its columns are classes and all ranks have
    as many; ``num_classes`` or ``shard_sizes`` say otherwise. Values in padded columns never count, whatever they are,
    and their gradient is 0. Every rank passes the same ``target`` and options.

    The forward communicates twice, an all-reduce of maxima and one of sums, 3 to 5 float32 for each position in all.
    The backward does not: it gives the gradient of the rank's own logits. What comes before the output layer gets its
    gradient from all ranks, as with every column-parallel layer, and the layer sums it up.

    Args:
        logits_shard: logits of this rank's classes, bfloat16 or float32: [..., columns], or with ``class_dim=1``
            [batch, columns, ...]. A rank with padding copies its logits without it, forward and backward.
        target: class indices of any integer type, counted over all classes, each in [0, V) or ``ignore_index``, of the
            shape of ``logits_shard`` without the classes.
        group: the ranks that share the vocabulary, for instance ``device_mesh["tp"].get_group()``; None: all.
        weight: [V] floating, a factor for each class of all ranks, used in float32; None means 1.
        ignore_index: class index of positions that do not count. They have loss 0 and gradient 0.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as for ``cross_entropy``.
        label_smoothing: from 0 to 1, the share of the target that is spread over all V classes.
        num_classes: V where all ranks have equally many columns and those from V on, at the end of the last ranks, are
            padding, as where a vocabulary is padded to a multiple of the ranks.
        shard_sizes: classes of each rank in rank order, the same list on every rank, where ranks have unlike numbers
            of them; further columns of a rank are padding. A rank may have 0.
        logit_softcap: c > 0 makes c * tanh(logits / c) of the logits, but leaves -inf; None leaves all.
        lse_square_scale: 0 or more, the factor of the squared log-sum-exp (z-loss).
        normalizer: tensor without dimensions that replaces the divisor of the mean.
        inplace: the backward writes the gradient over the memory of ``logits_shard``.
        class_dim: -1, or 1 as in PyTorch.

    Returns:
        The loss, float32, the same on every rank: without dimensions, or for ``"none"`` of the shape of ``target``.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: as ``cross_entropy``, before anything is
            communicated; class probabilities as targets are not implemented.
        RuntimeError: ``torch.distributed`` is not initialized; ``torch.compile(fullgraph=True)``.
        ValueError: this process is not in ``group``; the shards do not fit the logits. On the CPU, on all ranks: they
            do not see the same shards (on other devices the loss is NaN then).
    """
    options = LossOptions(ignore_index, label_smoothing, logit_softcap, lse_square_scale)
    if isinstance(target, Tensor) and target.is_floating_point():
        raise NotImplementedError(
            f"{_CALLER}: targets must be class indices, got {target.dtype}; for class probabilities gather the logits "
            f"and use nkilib.torch.cross_entropy"
        )
    check_arguments(logits_shard, target, weight, options, reduction, normalizer, class_dim, _CALLER)
    ranks, rank = _ranks(group)
    shards = shards_of_ranks(_CALLER, _columns(logits_shard, class_dim), ranks, rank, num_classes, shard_sizes)
    check_weight(weight, shards.num_classes, soft=False, caller=_CALLER)
    if inplace:
        check_inplace(logits_shard, class_dim, _CALLER)
    losses, position_weight = _loss(
        as_rows(logits_shard, class_dim),
        target.reshape(-1),
        None if weight is None else weight.to(torch.float32),
        options,
        shards,
        group,
        inplace,
        _CALLER,
    )
    divisor = None
    if reduction == "mean":
        divisor = position_weight.sum() if normalizer is None else normalizer
    return reduced(losses, reduction, divisor, positions_shape(logits_shard, class_dim))


def _ranks(group: Any) -> tuple[int, int]:
    """How many ranks the group has, and which one this process is."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            f"{_CALLER}: torch.distributed must be initialized, and is not; start the script with torchrun and call "
            f"torch.distributed.init_process_group, or use nkilib.torch.cross_entropy for a whole vocabulary"
        )
    if group is not None and not isinstance(group, dist.ProcessGroup):
        # What new_group returns to a process outside of the group is no ProcessGroup either.
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(
                f"{_CALLER}: this process, rank {dist.get_rank()}, must be a member of group, and is not; call it on "
                f"the ranks of the group only"
            )
        raise TypeError(
            f"{_CALLER}: argument 'group' must be a ProcessGroup or None, not {type(group).__name__}; of a device mesh "
            f"pass get_group()"
        )
    return dist.get_world_size(group), dist.get_rank(group)


def _loss(*arguments: Any) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():  # with fullgraph=True an error, else this part runs outside of the graph
        raise RuntimeError(
            f"{_CALLER}: not supported within a graph of torch.compile, since it communicates in the forward of a "
            f"function of autograd; leave fullgraph off, or call it outside of what is compiled"
        )
    apply: Callable[..., tuple[Tensor, Tensor]] = VocabParallelCrossEntropy.apply
    return apply(*arguments)
