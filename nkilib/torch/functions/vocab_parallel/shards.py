# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The classes that each rank of a vocabulary-parallel output layer holds, computed without asking the other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.dtensors import LocalPart
from nkilib.torch.dispatch.layout import axis_of, row_length
from nkilib.torch.functions.cross_entropy.operators import Columns


class GroupPlace(NamedTuple):
    """The number of ranks of a process group, and the rank of this process in it."""

    ranks: int
    rank: int


class VocabularyShards(NamedTuple):
    """The classes in rank order, in blocks: rank r holds ``sizes[r]`` classes, after those of the ranks before it.

    Attributes:
        sizes: the number of classes of every rank, 0 allowed.
        rank: this process's rank.
        are_assumed: whether the caller did not state the sizes, so that every column counts as a class of its own.
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
        """The classes that the columns of this rank stand for, as the kernels take them."""
        return Columns(sum(self.sizes[: self.rank]), self.num_classes)

    def own(self, of_classes: Tensor | None) -> Tensor | None:
        """Return this rank's part of a tensor [V] over all classes; None for None."""
        return None if of_classes is None else self.own_part(of_classes)

    def own_part(self, of_classes: Tensor) -> Tensor:
        """Return this rank's part of a tensor [V, ...] over all classes."""
        first = self.columns.first_class
        return of_classes[first : first + self.own_size]


def shards_of_ranks(
    caller: Caller, width: int, place: GroupPlace, num_classes: int | None, shard_sizes: Sequence[int] | None
) -> VocabularyShards:
    """Return the shards that this rank's arguments describe.

    Args:
        caller: the function that error messages name, with its name for the tensor that is split over the ranks.
        width: the number of columns of this rank, padding included.
        place: this rank's place in the group.
        num_classes: V, if all ranks have ``width`` columns and those from V on are padding; None: there is no padding.
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


def group_place(caller: Caller, group: Any) -> GroupPlace:
    """Return the place of this process in ``group``; None means all processes.

    Raises:
        RuntimeError: ``torch.distributed`` is not initialized.
        TypeError: it is not a process group.
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


def without_padding(
    caller: Caller,
    part: LocalPart,
    class_dim: int,
    group: Any,
    num_classes: int | None,
    shard_sizes: Sequence[int] | None,
) -> LocalPart:
    """Return this rank's part of a DTensor whose columns from ``num_classes`` on are padding.

    Raises:
        TypeError: ``num_classes`` is not an integer.
        ValueError: it is out of range; a group or sizes are given, which the DTensor defines itself.
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


def check_no_group(caller: Caller, group: Any, shard_sizes: Sequence[int] | None) -> None:
    """Reject a group or sizes, because the DTensor defines them itself.

    Raises:
        ValueError: a group or sizes are given.
    """
    if group is not None or shard_sizes is not None:
        raise ValueError(
            f"{caller}: group and shard_sizes are for plain tensors, got a DTensor, whose mesh and placements say "
            f"both; leave them out, or pass {caller.input}.to_local()"
        )


def check_whole(caller: Caller, num_classes: int | None, shard_sizes: Sequence[int] | None) -> None:
    """Reject ``num_classes`` and ``shard_sizes`` of a call without a group.

    Raises:
        ValueError: ``num_classes`` or ``shard_sizes`` is given.
    """
    if num_classes is not None or shard_sizes is not None:
        raise ValueError(
            f"{caller}: num_classes and shard_sizes say which classes the ranks of a group have, got no group; pass "
            f"group, or slice the {caller.noun}"
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
        ValueError: it is out of range.
    """
    if num_classes is None:
        return tuple(sizes)
    _checked_total(caller, num_classes, sum(sizes), 1)
    firsts = (sum(sizes[:rank]) for rank in range(len(sizes)))
    return tuple(min(max(num_classes - first, 0), size) for first, size in zip(firsts, sizes, strict=True))
