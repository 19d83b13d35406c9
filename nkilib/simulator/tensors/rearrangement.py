# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The patterns of ``NkiTensor.rearrange``: which dimensions are split, in which order they come, which are merged."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..terms.errors import NkiValidationError
from ..terms.integers import as_integers


class Rearrangement:
    """The splits, permutation and merges by which ``NkiTensor.rearrange`` gets from one pattern to the other.

    Attributes:
        splits: the dimensions to split, ascending, and the sizes into which they are split.
        order: the permutation of the dimensions after the splits.
        merges: the first and last dimension of each group to merge, ascending, numbered before any merge.

    Raises:
        NkiValidationError: if the patterns do not fit each other, the shape or ``fixed_sizes``.
    """

    def __init__(
        self, source: Sequence[Any], target: Sequence[Any], fixed_sizes: dict[str, int], shape: Sequence[int]
    ) -> None:
        source_groups, target_groups = _groups("src_pattern", source), _groups("dst_pattern", target)
        source_names = [name for group in source_groups for name in group]
        target_names = [name for group in target_groups for name in group]
        if sorted(source_names) != sorted(target_names):
            raise NkiValidationError("both patterns must have the same names")
        if len(source_groups) != len(shape):
            raise NkiValidationError(f"src_pattern must have {len(shape)} items, one for each dimension")
        if not isinstance(fixed_sizes, dict):
            raise NkiValidationError(f"fixed_sizes must be a dictionary of names and sizes, got {fixed_sizes!r}")
        unknown = [name for name in fixed_sizes if name not in source_names]
        if unknown:
            raise NkiValidationError(f"fixed_sizes names {unknown[0]!r}, which the patterns do not have")
        self.splits: list[tuple[int, tuple[int, ...]]] = []
        for dim, (group, size) in enumerate(zip(source_groups, shape, strict=True)):
            default = size if len(group) == 1 else -1
            sizes = completed(f"dimension {dim}, {group}", size, [fixed_sizes.get(name, default) for name in group])
            if len(group) > 1:
                self.splits.append((dim, sizes))
        self.order = tuple(source_names.index(name) for name in target_names)
        self.merges: list[tuple[int, int]] = []
        first = 0
        for group in target_groups:
            if len(group) > 1:
                self.merges.append((first, first + len(group) - 1))
            first += len(group)


def _groups(parameter: str, pattern: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return every item of a pattern as a tuple of names.

    Raises:
        NkiValidationError: if an item is neither a name nor a tuple of names, or a name is repeated.
    """
    if not isinstance(pattern, tuple | list):
        raise NkiValidationError(f"{parameter} must be a tuple of names and tuples of names, got {pattern!r}")
    groups = [tuple(item) if isinstance(item, tuple | list) else (item,) for item in pattern]
    names = [name for group in groups for name in group]
    if not all(group and all(isinstance(name, str) for name in group) for group in groups):
        raise NkiValidationError(f"{parameter} must be a tuple of names and tuples of names")
    if len(set(names)) != len(names):
        raise NkiValidationError(f"{parameter} must have every name once")
    return groups


def completed(what: str, size: int, parts: Sequence[int]) -> tuple[int, ...]:
    """Return ``parts``, whose product is ``size``, with a -1 (at most one) replaced by the remaining size.

    Raises:
        NkiValidationError: if they cannot multiply to ``size``; the message names ``what``.
    """
    sizes = list(as_integers(f"{what}: sizes", parts))
    stated = list(sizes)
    if not sizes or min(sizes) < -1 or sizes.count(-1) > 1:
        raise NkiValidationError(f"{what}: sizes must not be negative, except for one -1, got {stated}")
    known = prod(part for part in sizes if part != -1)
    if -1 in sizes and known and size % known == 0:
        sizes[sizes.index(-1)] = size // known
    if -1 in sizes or prod(sizes) != size:
        raise NkiValidationError(f"{what}: sizes {stated} do not make up {size}")
    return tuple(sizes)
