"""Which classes each rank of a vocabulary-parallel output layer holds, without asking the other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.functions.cross_entropy.operators import Columns


class VocabularyShards(NamedTuple):
    """The classes in rank order, in blocks: rank r holds ``sizes[r]`` of them, after those of the ranks before it.

    Attributes:
        sizes: classes of every rank, 0 allowed.
        rank: this one.
    """

    sizes: tuple[int, ...]
    rank: int

    @property
    def held(self) -> int:
        """Columns of this rank that are classes; those after them are padding."""
        return self.sizes[self.rank]

    @property
    def num_classes(self) -> int:
        """V."""
        return sum(self.sizes)

    @property
    def columns(self) -> Columns:
        """Which classes the columns of this rank are, for the kernels."""
        return Columns(sum(self.sizes[: self.rank]), self.num_classes)


def shards_of_ranks(
    caller: Caller, width: int, ranks: int, rank: int, num_classes: int | None, shard_sizes: Sequence[int] | None
) -> VocabularyShards:
    """The shards as the arguments of this rank say.

    Args:
        caller: who is named in errors.
        width: columns of this rank's logits, padding included.
        ranks: of the group.
        rank: this one's.
        num_classes: V where all ranks have ``width`` columns and those from V on are padding; None: none are.
        shard_sizes: classes of each rank instead.

    Raises:
        TypeError: a number of classes is no integer.
        ValueError: they do not fit each other, the group or the width.
    """
    if num_classes is not None and shard_sizes is not None:
        raise ValueError(
            f"{caller}: num_classes is for shards of equal width and shard_sizes for others, got both; pass one of them"
        )
    if shard_sizes is not None:
        return VocabularyShards(_checked_sizes(caller, shard_sizes, width, ranks, rank), rank)
    total = ranks * width if num_classes is None else int(_checked_total(caller, num_classes, width, ranks))
    if total == 0:
        raise ValueError(f"{caller}: {caller.input} must have at least one class, got none; pass the logits")
    return VocabularyShards(tuple(min(max(total - each * width, 0), width) for each in range(ranks)), rank)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | Integral) and not isinstance(value, bool)


def _checked_total(caller: Caller, num_classes: int, width: int, ranks: int) -> int:
    if not _is_count(num_classes):
        raise TypeError(f"{caller}: argument 'num_classes' must be int, not {type(num_classes).__name__}")
    if not 0 < num_classes <= ranks * width:
        raise ValueError(
            f"{caller}: num_classes must be from 1 to {ranks * width}, the columns of {ranks} ranks of {width}, got "
            f"{num_classes}; pass shard_sizes where ranks have unlike numbers of columns"
        )
    return num_classes


def _checked_sizes(caller: Caller, given: Sequence[int], width: int, ranks: int, rank: int) -> tuple[int, ...]:
    if not isinstance(given, Iterable):
        raise TypeError(f"{caller}: argument 'shard_sizes' must be a list of int, not {type(given).__name__}")
    if not all(_is_count(size) for size in given):
        raise TypeError(f"{caller}: shard_sizes must be integers, got {list(given)}; pass them as a list of int")
    sizes = tuple(int(size) for size in given)
    if len(sizes) != ranks:
        raise ValueError(
            f"{caller}: shard_sizes must have one number for each of the {ranks} ranks of the group, got {list(sizes)}"
        )
    if min(sizes) < 0 or sum(sizes) == 0:
        raise ValueError(f"{caller}: shard_sizes must be 0 or more, and not all 0, got {list(sizes)}")
    if sizes[rank] > width:
        raise ValueError(
            f"{caller}: {caller.input} of rank {rank} must have at least the {sizes[rank]} columns that shard_sizes "
            f"gives it, got {width}; pass the sizes in rank order, and the logits of this rank"
        )
    return sizes
