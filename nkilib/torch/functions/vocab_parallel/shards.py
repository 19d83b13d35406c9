# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The shards of a vocabulary that is spread over ranks: the classes of each rank, and statistics over all ranks.

- :class:`VocabularyShards`: the classes of each rank. :func:`shards_of_ranks` computes them from this process's
  :class:`GroupPlace` (:func:`group_place`), without communication;
- :func:`unpadded_sizes`, :func:`without_padding`: leave out padding, which are columns that are no classes;
- :func:`check_no_group`, :func:`check_whole`: reject arguments that a DTensor or a missing group excludes;
- :class:`VocabularyStatistics`: statistics over all classes. :func:`combined_statistics` all-reduces them:
  :func:`sums_of_ranks` adds sums, whose summands :func:`product_or_zero` computes, and :func:`greatest_of_ranks` takes
  maxima. The scores and the distillation use these functions too.

A *claim* is a number that must be equal on all ranks, such as an option; the ranks compare their claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.dtensors import LocalPart
from nkilib.torch.dispatch.layout import axis_of, row_length, unviewed
from nkilib.torch.functions.cross_entropy.checks import LossKeywords
from nkilib.torch.functions.cross_entropy.operators import Columns, ShardStatistics
from nkilib.torch.losses.indexed import is_ignored


class GroupPlace(NamedTuple):
    """The place of this process in a process group: the number of ranks, and the rank of this process."""

    ranks: int
    rank: int


class VocabularyShards(NamedTuple):
    """The classes in rank order, in blocks: rank r holds ``sizes[r]`` classes, after those of the ranks before it.

    Attributes:
        sizes: the number of classes of every rank, 0 allowed.
        rank: this process's rank.
        are_assumed: True if the caller did not state the sizes; every column then counts as a class.
    """

    sizes: tuple[int, ...]
    rank: int
    are_assumed: bool = False

    @property
    def own_size(self) -> int:
        """The number of classes of this rank; columns after them are padding."""
        return self.sizes[self.rank]

    @property
    def num_classes(self) -> int:
        """V, the number of classes of all ranks."""
        return sum(self.sizes)

    @property
    def columns(self) -> Columns:
        """The kernels' option that says which classes this rank's columns are."""
        return Columns(sum(self.sizes[: self.rank]), self.num_classes)

    def own(self, of_classes: Tensor | None) -> Tensor | None:
        """Return this rank's part of a tensor [V] with one number for each class, such as class weights; None for
        None.
        """
        return None if of_classes is None else self.own_part(of_classes)

    def own_part(self, of_classes: Tensor) -> Tensor:
        """Return this rank's part of a tensor [V, ...] whose first dimension runs over all classes."""
        first = self.columns.first_class
        return of_classes[first : first + self.own_size]


def _is_count(value: Any) -> bool:
    return isinstance(value, int | Integral) and not isinstance(value, bool)


def _checked_total(caller: Caller, num_classes: int, width: int, ranks: int) -> int:
    if not _is_count(num_classes):
        raise TypeError(f"{caller}: argument 'num_classes' must be int, not {type(num_classes).__name__}")
    if not 0 < num_classes <= ranks * width:
        raise ValueError(
            f"{caller}: num_classes must be from 1 to {ranks * width}, the classes of {ranks} ranks of {width}, got "
            f"{num_classes}; pass shard_sizes where ranks have unlike numbers of them"
        )
    return num_classes


def _checked_sizes(caller: Caller, numbers: Sequence[int], width: int, ranks: int, rank: int) -> tuple[int, ...]:
    if not isinstance(numbers, Iterable):
        raise TypeError(f"{caller}: argument 'shard_sizes' must be a list of int, not {type(numbers).__name__}")
    if not all(_is_count(size) for size in numbers):
        raise TypeError(f"{caller}: shard_sizes must be integers, got {list(numbers)}; pass them as a list of int")
    sizes = tuple(int(size) for size in numbers)
    if len(sizes) != ranks:
        raise ValueError(
            f"{caller}: shard_sizes must have one number for each of the {ranks} ranks of the group, got {list(sizes)}"
        )
    if min(sizes) < 0 or sum(sizes) == 0:
        raise ValueError(f"{caller}: shard_sizes must be 0 or more, and not all 0, got {list(sizes)}")
    if sizes[rank] > width:
        raise ValueError(
            f"{caller}: {caller.input} of rank {rank} must have at least the {sizes[rank]} classes that shard_sizes "
            f"gives it, got {width}; pass the sizes in rank order, and the {caller.noun} of this rank"
        )
    return sizes


def shards_of_ranks(
    caller: Caller, width: int, place: GroupPlace, num_classes: int | None, shard_sizes: Sequence[int] | None
) -> VocabularyShards:
    """Return the shards that this rank's arguments describe.

    Args:
        caller: the function that error messages name; its ``input`` and ``noun`` describe the tensor that is split.
        width: the number of columns of this rank, padding included.
        place: this rank's place in the group.
        num_classes: V, if all ranks have ``width`` columns and the columns from V on are padding; None: there is no
            padding.
        shard_sizes: the number of classes of each rank, instead of ``num_classes``.

    Raises:
        TypeError: a number of classes is not an integer.
        ValueError: the numbers do not match each other, the group or the width.
    """
    ranks, rank = place
    if num_classes is not None and shard_sizes is not None:
        raise ValueError(
            f"{caller}: num_classes is for shards of equal width and shard_sizes for others, got both; pass one of them"
        )
    if shard_sizes is not None:
        return VocabularyShards(_checked_sizes(caller, shard_sizes, width, ranks, rank), rank)
    total = ranks * width if num_classes is None else int(_checked_total(caller, num_classes, width, ranks))
    if total == 0:
        raise ValueError(f"{caller}: {caller.input} must have at least one class, got none; pass the {caller.noun}")
    sizes = tuple(min(max(total - number * width, 0), width) for number in range(ranks))
    return VocabularyShards(sizes, rank, are_assumed=num_classes is None)


def group_place(caller: Caller, group: Any) -> GroupPlace:
    """Return the place of this process in ``group``; None means all processes.

    Raises:
        RuntimeError: ``torch.distributed`` is not initialized.
        TypeError: ``group`` is not a process group.
        ValueError: this process is not in the group.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            f"{caller}: torch.distributed must be initialized, and is not; start the script with torchrun and call "
            f"torch.distributed.init_process_group, or use nkilib.torch.cross_entropy for a whole vocabulary"
        )
    if group is not None and not isinstance(group, dist.ProcessGroup):
        # What new_group returns to a process outside of the group is no ProcessGroup either.
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(
                f"{caller}: this process, rank {dist.get_rank()}, must be a member of group, and is not; call it on "
                f"the ranks of the group only"
            )
        raise TypeError(
            f"{caller}: argument 'group' must be a ProcessGroup or None, not {type(group).__name__}; of a device mesh "
            f"pass get_group()"
        )
    return GroupPlace(dist.get_world_size(group), dist.get_rank(group))


def check_no_group(caller: Caller, group: Any, shard_sizes: Sequence[int] | None) -> None:
    """Check that neither a group nor shard sizes are given beside a DTensor, which defines both itself.

    Raises:
        ValueError: one of them is given.
    """
    if group is not None or shard_sizes is not None:
        raise ValueError(
            f"{caller}: group and shard_sizes are for plain tensors, got a DTensor, whose mesh and placements say "
            f"both; leave them out, or pass {caller.input}.to_local()"
        )


def unpadded_sizes(caller: Caller, sizes: Sequence[int], num_classes: int | None) -> tuple[int, ...]:
    """Return the number of classes of each rank without the padding.

    Args:
        caller: the function that messages name.
        sizes: the columns of each rank.
        num_classes: the number of classes; all columns after these, counted over the ranks, are padding. None: there is
            no padding.

    Raises:
        TypeError: ``num_classes`` is not an integer.
        ValueError: ``num_classes`` is out of range.
    """
    if num_classes is None:
        return tuple(sizes)
    _checked_total(caller, num_classes, sum(sizes), 1)
    firsts = (sum(sizes[:rank]) for rank in range(len(sizes)))
    return tuple(min(max(num_classes - first, 0), size) for first, size in zip(firsts, sizes, strict=True))


def without_padding(
    caller: Caller,
    part: LocalPart,
    class_dim: int,
    group: Any,
    num_classes: int | None,
    shard_sizes: Sequence[int] | None,
) -> LocalPart:
    """Return this rank's part of a DTensor without the padding, which are the columns from ``num_classes`` on.

    Raises:
        TypeError: ``num_classes`` is not an integer.
        ValueError: ``num_classes`` is out of range; a group or sizes are given, which the DTensor defines itself.
    """
    check_no_group(caller, group, shard_sizes)
    if num_classes is None:
        return part
    if part.spread is None:
        width = _checked_total(caller, num_classes, row_length(part.input, class_dim), 1)
        axis, soft = axis_of(part.input, class_dim), part.target.shape == part.input.shape
        target = part.target.narrow(axis, 0, width) if soft else part.target
        return replace(part, input=part.input.narrow(axis, 0, width), target=target)
    return replace(part, spread=replace(part.spread, sizes=unpadded_sizes(caller, part.spread.sizes, num_classes)))


def check_whole(caller: Caller, num_classes: int | None, shard_sizes: Sequence[int] | None) -> None:
    """Check that a call without a group has neither ``num_classes`` nor ``shard_sizes``.

    Raises:
        ValueError: one of them is given.
    """
    if num_classes is not None or shard_sizes is not None:
        raise ValueError(
            f"{caller}: num_classes and shard_sizes say which classes the ranks of a group have, got no group; pass "
            f"group, or slice the {caller.noun}"
        )


# The distance of a row's log_sum from that of equal logits, log(columns), within which the row may be constant.
_OF_CONSTANT: Final = 1e-3


class VocabularyStatistics(NamedTuple):
    """The statistics over all classes, [N] float32 unless stated otherwise, the same on every rank.

    Attributes:
        maximum: the largest logit.
        log_sum: log of the sum of exp(logit - maximum), in nats; at least 0.
        sums: further sums over the ranks, by name. ``target_logit`` (not for class probabilities): the logit of the
            target, 0 at ignored positions; [N, K] for K target ids. ``position_weight`` (with class weights or
            probabilities): for class indices, the weight of the target, 0 at ignored positions; for class
            probabilities, the sum of the weighted and smoothed probabilities. ``distance_sum`` (if the shards have it):
            the sum over all classes of f * (maximum - logit), with f as in :class:`ShardStatistics`.
        argmax: int32, the first class with the largest logit; [0] if the shards have no argmax.
        entropy: the entropy of the softmax, in nats; [0] if the shards have no entropy.
    """

    maximum: Tensor
    log_sum: Tensor
    sums: dict[str, Tensor]
    argmax: Tensor
    entropy: Tensor

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of the logits over all classes, [N], in nats."""
        return self.maximum + self.log_sum


def _check_different(
    caller: Caller, own: ShardStatistics, shards: VocabularyShards, target: Tensor, ignore_index: int
) -> None:
    """Raise an error if every rank seems to hold the whole vocabulary. The caller knows that the logits of all ranks
    have the same statistics.

    Parts of a vocabulary may have the same statistics too: parts of one class each, parts of an output layer that is 0,
    and parts that every rank has initialised with the same seed. So an error is raised only if rows are not constant,
    and if every label is a class of the first rank, as all labels of a whole vocabulary are. These conditions have the
    same value on all ranks, so either all ranks raise an error or none does.
    """
    ranks, width = len(shards.sizes), shards.sizes[0]
    labels = target[~is_ignored(target, ignore_index)]
    are_constant = bool((own.log_sum > math.log(width) - _OF_CONSTANT).all())
    if ranks == 1 or are_constant or labels.numel() == 0 or bool((labels.to(torch.int64) >= width).any()):
        return
    raise ValueError(
        f"{caller}: each rank must have its own part of the vocabulary, but all {ranks} ranks have the same logits, "
        f"and every label is among the {width} classes of the first; pass a vocabulary that each rank has whole to "
        f"nkilib.torch.{caller.function.removeprefix('vocab_parallel_')} without a group, or "
        f"num_classes={shards.num_classes} if the parts are equal by chance"
    )


def _is_given(values: Tensor, maximum: Tensor) -> bool:
    return values.shape == maximum.shape


def _factor_sum(own: ShardStatistics, shards: VocabularyShards, class_weight: Tensor | None, soft: bool) -> Tensor:
    """Return the sum over the shard's classes of f, the factor in ``distance_sum`` (:class:`ShardStatistics`).

    It is [N] for class probabilities (``soft``), else one number: the sum of the class weights, or without them the
    number of classes.
    """
    if soft:
        return own.position_weight
    return own.maximum.new_tensor(float(shards.own_size)) if class_weight is None else class_weight.sum()


def product_or_zero(factor: Tensor, values: Tensor) -> Tensor:
    """Return ``factor * values``, but 0 where the factor is 0.

    At such elements ``values`` may be infinite or NaN, as for a shard without classes.
    """
    return torch.where(factor == 0.0, 0.0, factor * values)


def sums_of_ranks(summands: dict[str, Tensor], group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Return the sums over all ranks of each of ``summands``, by name, computed by one all-reduce."""
    values = torch.cat([summand.reshape(-1) for summand in summands.values()])
    dist.all_reduce(values, op=dist.ReduceOp.SUM, group=group)
    sums = torch.split(values, [summand.numel() for summand in summands.values()])
    named = zip(summands.items(), sums, strict=True)
    return {name: unviewed(sum.view(summand.shape)) for (name, summand), sum in named}


def _argmax(
    own: ShardStatistics,
    maximum: Tensor,
    log_sum: Tensor,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Return the first class with the largest logit of all shards: the smallest one among the shards that have the
    maximum.

    In a row with a NaN it is V, which is no class, as in the kernel.
    """
    beyond = shards.num_classes
    classes = torch.where(own.maximum == maximum, own.argmax, beyond)
    dist.all_reduce(classes, op=dist.ReduceOp.MIN, group=group)
    has_nan = log_sum.isnan() & ~maximum.isposinf()
    return torch.where(has_nan, beyond, classes)


def _may_read_values(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def greatest_of_ranks(
    caller: Caller,
    maximum: Tensor,
    claims: dict[str, float],
    group: dist.ProcessGroup | None,
    marks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum over all shards, whether all ranks make the same claims, and whether all have the same
    ``marks``.

    Marks are a few numbers that, unlike claims, may differ between ranks. Claims are compared as float32, so different
    integers above 2^24 that are close to each other pass as equal. One all-reduce takes the maximum of the claims and
    of their negatives, which gives the greatest and the least value of each claim.

    Raises:
        ValueError: the ranks do not make the same claims; on the CPU only, and not under torch.compile.
    """
    own = torch.tensor(list(claims.values()), dtype=torch.float32, device=maximum.device)
    compared = own if marks is None else torch.cat([own, marks])
    values = torch.cat([maximum, compared, -compared])
    dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)
    greatest, most, least = torch.split(values, [maximum.shape[0], compared.shape[0], compared.shape[0]])
    is_same = most == -least
    agreed = is_same[: len(claims)].all()
    if _may_read_values(values) and not bool(agreed):
        differing = ", ".join(
            f"{name} from {-low:g} to {high:g}, here {claims[name]:g}"
            for name, high, low in zip(claims, most.tolist(), least.tolist(), strict=False)  # then marks
            if high != -low
        )
        raise ValueError(
            f"{caller}: all ranks must see the same shards and options, but they have {differing}; pass the same "
            f"options everywhere, and the same shard_sizes where ranks have unlike widths"
        )
    return greatest, agreed, is_same[len(claims) :].all()


def combined_statistics(
    caller: Caller,
    own: ShardStatistics,
    shards: VocabularyShards,
    group: dist.ProcessGroup | None,
    class_weight: Tensor | None,
    options: LossKeywords,
    target: Tensor,
    claims: Mapping[str, float],
    further: Callable[[Tensor], Mapping[str, Tensor]] | None = None,
) -> VocabularyStatistics:
    """Return the statistics over all classes, computed from the shards' statistics with all-reduces.

    Every rank of the group has to make the call. ``docs/explanation/cross_entropy_extended.md`` has the formulas.

    Args:
        caller: the function that error messages name.
        own: the statistics of this rank's shard.
        shards: the shards of all ranks, as this rank sees them.
        group: the process group; None means all processes.
        class_weight: the weights of this rank's classes, or None.
        options: the options of the loss.
        target: class indices, or class probabilities of this rank's classes.
        claims: further values that must be equal on all ranks, by name.
        further: a function for further sums over the ranks. Its argument is the maxima over all ranks minus this
            rank's maxima, [N]. It returns this rank's summands, [N] each, by the name of the sum.

    Raises:
        ValueError: the ranks do not see the same shards or options, or seem to have the same whole vocabulary. It is
            raised on all ranks, and on the CPU only, since reading values would wait for a device. On a device,
            different options make the statistics NaN instead.
    """
    soft = target.is_floating_point()
    all_claims: dict[str, Any] = {
        **{f"classes of rank {rank}": size for rank, size in enumerate(shards.sizes)},
        **{name: 0.0 if value is None else value for name, value in options.items()},
        "weight": class_weight is not None,
        "class probabilities": soft,
        "outputs (none, entropy, all)": _is_given(own.entropy, own.maximum) + _is_given(own.argmax, own.maximum),
        **claims,
    }
    marks = torch.stack([own.maximum.sum(), own.log_sum.sum()]) if _may_read_values(own.maximum) else None
    maximum, agreed, are_alike = greatest_of_ranks(caller, own.maximum, all_claims, group, marks)
    # The shards' maxima are subtracted before anything is added to them, so that large logits cancel exactly.
    below = maximum - own.maximum
    share = torch.exp(own.log_sum - below)
    summands = {"share": share}
    if not soft:
        summands["target_logit"] = own.target_logit
    if soft or class_weight is not None:
        summands["position_weight"] = own.position_weight
    if _is_given(own.distance_sum, maximum):
        summands["distance_sum"] = own.distance_sum + product_or_zero(
            _factor_sum(own, shards, class_weight, soft), below
        )
    if _is_given(own.entropy, maximum):
        summands["entropy"] = product_or_zero(share, own.entropy + (below - own.log_sum))
    if further is not None:
        summands.update(further(below))
    sums = sums_of_ranks(summands, group)
    if marks is not None and shards.are_assumed and not soft and bool(are_alike & (sums["share"] > share).all()):
        _check_different(caller, own, shards, target, options["ignore_index"])
    log_sum = torch.where(agreed, sums["share"].log(), torch.nan)
    argmax, entropy = own.argmax, own.entropy
    if _is_given(own.argmax, maximum):
        argmax = _argmax(own, maximum, log_sum, shards, group)
    if _is_given(own.entropy, maximum):
        entropy = log_sum + sums["entropy"] / sums["share"]
    return VocabularyStatistics(maximum, log_sum, sums, argmax, entropy)
