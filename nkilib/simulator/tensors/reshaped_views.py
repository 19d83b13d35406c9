# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views of all elements of a tensor in another shape, order or type, and views by an access pattern (``ap``).

The classes :class:`ReshapedViews` and :class:`AccessPatterns` provide these methods of ``NkiTensor``.

Sources: docstrings of the methods of ``NkiTensor``; ``nki/deep-dives/nki-aps.rst`` for ``ap``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from operator import index as as_int
from typing import TYPE_CHECKING, Any

import numpy as np

from ..terms.argument_checks import as_integer, as_integers, division_remedy
from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError, OutOfRangeError
from ..terms.layout import Layout, extent, reshape_strides, row_major_strides
from .device_integers import DeviceInteger
from .indexed_views import IndexedViews, checked_scalar_index
from .view import Indirect, View

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from 3.11 on


def _groups(parameter: str, pattern: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return the items of a ``rearrange`` pattern as tuples of names.

    Raises:
        NkiValidationError: an item is neither a name nor a tuple of names, or a name is repeated.
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


def _completed(what: str, size: int, parts: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes ``parts``, whose product must be ``size``; a -1 (at most one) is replaced by the missing size.

    Raises:
        NkiValidationError: the product cannot be ``size``; the message begins with ``what``.
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


class _Rearrangement:
    """The splits, the permutation and the merges of dimensions that ``NkiTensor.rearrange`` makes.

    Attributes:
        splits: the dimensions to split, ascending, and the sizes into which they are split.
        order: the permutation of the dimensions after the splits.
        merges: the first and last dimension of each group to merge, ascending, numbered before any merge.

    Raises:
        NkiValidationError: the patterns do not fit each other, the shape or ``fixed_sizes``.
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
            sizes = _completed(f"dimension {dim}, {group}", size, [fixed_sizes.get(name, default) for name in group])
            if len(group) > 1:
                self.splits.append((dim, sizes))
        self.order = tuple(source_names.index(name) for name in target_names)
        self.merges: list[tuple[int, int]] = []
        first = 0
        for group in target_groups:
            if len(group) > 1:
                self.merges.append((first, first + len(group) - 1))
            first += len(group)


class ReshapedViews(View):
    """The methods of ``NkiTensor`` that return all elements of the tensor, in another shape, order or type."""

    __slots__ = ()

    def _reshape(self, shape: Sequence[int]) -> Self:
        new_shape = as_integers("NkiTensor.reshape: shape", shape)
        if min(new_shape, default=0) < 0:
            raise NkiValidationError(
                f"NkiTensor.reshape: sizes must not be negative, got {list(new_shape)} for {self}; reshape_dim takes "
                f"one -1, for what the other sizes leave"
            )
        if prod(new_shape) != self.size:
            raise NkiValidationError(
                f"NkiTensor.reshape: {self} has {self.size} elements, {list(new_shape)} has {prod(new_shape)}"
            )
        keeps_first = self._keeps_first_dimension()
        if keeps_first and new_shape[:1] != self.shape[:1]:
            raise NkiValidationError(
                f"NkiTensor.reshape: dimension 0 of {self} counts partitions and must stay {self.shape[0]}, "
                f"got {list(new_shape)}"
            )
        if self.is_on_chip() and len(new_shape) < 2:
            raise NkiValidationError(
                f"NkiTensor.reshape: an on-chip tensor has a partition and at least one free dimension, got "
                f"{list(new_shape)} for {self}"
            )
        first = 1 if keeps_first else 0
        strides = reshape_strides(self.shape[first:], self.strides[first:], new_shape[first:])
        if strides is None:
            raise NkiValidationError(
                f"NkiTensor.reshape: {self} with strides {self.strides} cannot become {list(new_shape)} without a copy"
            )
        return self._with(new_shape, (*self.strides[:first], *strides))

    def _permute(self, dims: Sequence[int]) -> Self:
        order = as_integers("NkiTensor.permute: dims", dims)
        if sorted(order) != list(range(self.ndim)):
            raise NkiValidationError(
                f"NkiTensor.permute: dims must be a permutation of 0..{self.ndim - 1}, got {order}"
            )
        if order[0] != 0 and self._keeps_first_dimension():
            raise NkiValidationError(f"NkiTensor.permute: dimension 0 of {self} must stay first, got {order}")
        return self._with([self.shape[dim] for dim in order], [self.strides[dim] for dim in order])

    def _broadcast(self, dim: int, size: int) -> Self:
        dim = self._check_dim("broadcast", dim)
        if self.indirect_access is not None and self.indirect_access.dim == dim:
            raise NkiValidationError(f"NkiTensor.broadcast: dimension {dim} of {self} is indirect")
        size = as_integer("NkiTensor.broadcast: size", size)
        if size < 1:
            raise NkiValidationError(f"NkiTensor.broadcast: size must be at least 1, got {size}")
        if self.shape[dim] != 1 or (dim == 0 and self.is_on_chip()):
            raise NkiValidationError(
                f"NkiTensor.broadcast: dimension {dim} of {self} must have size 1 and not be the partition dimension"
            )
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._with(shape, strides)

    def _expand_dim(self, dim: int) -> Self:
        if not isinstance(dim, int | np.integer) or not -self.ndim - 1 <= dim <= self.ndim:
            raise OutOfRangeError(f"NkiTensor.expand_dim: dim must be in [0, {self.ndim}] of {self}, got {dim!r}")
        at = int(dim) % (self.ndim + 1)
        self._check_not_first("expand_dim", at)
        # Any stride serves a dimension of size 1; this one keeps a dense view's strides descending.
        stride = self.shape[at] * self.strides[at] if at < self.ndim else 1
        return self._with((*self.shape[:at], 1, *self.shape[at:]), (*self.strides[:at], stride, *self.strides[at:]))

    def _squeeze_dim(self, dim: int) -> Self:
        dim = self._check_dim("squeeze_dim", dim)
        self._check_not_first("squeeze_dim", dim)
        if self.shape[dim] != 1:
            raise NkiValidationError(f"NkiTensor.squeeze_dim: dimension {dim} of {self} must have size 1")
        if self.ndim == (2 if self.is_on_chip() else 1):
            raise NkiValidationError(f"NkiTensor.squeeze_dim: {self} must keep a dimension besides its partitions")
        return self._with((*self.shape[:dim], *self.shape[dim + 1 :]), (*self.strides[:dim], *self.strides[dim + 1 :]))

    def _reshape_dim(self, dim: int, shape: Sequence[int]) -> Self:
        dim = self._check_dim("reshape_dim", dim)
        sizes = _completed(f"NkiTensor.reshape_dim of dimension {dim} of {self}", self.shape[dim], shape)
        if len(sizes) != 1 or not self.is_on_chip():
            self._check_not_first("reshape_dim", dim)
        strides = [stride * self.strides[dim] for stride in row_major_strides(sizes)]
        return self._with(
            (*self.shape[:dim], *sizes, *self.shape[dim + 1 :]),
            (*self.strides[:dim], *strides, *self.strides[dim + 1 :]),
        )

    def _flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        first, last = self._check_dim("flatten_dims", start_dim), self._check_dim("flatten_dims", end_dim)
        if first > last:
            raise NkiValidationError(
                f"NkiTensor.flatten_dims: start_dim must not come after end_dim, got {start_dim} and {end_dim} for "
                f"{self}"
            )
        self._check_not_first("flatten_dims", first)
        sizes = self.shape[first : last + 1]
        strides = reshape_strides(sizes, self.strides[first : last + 1], (prod(sizes),))
        if strides is None:
            raise NkiValidationError(
                f"NkiTensor.flatten_dims: dimensions {first} to {last} of {self} with strides {self.strides} are not "
                f"contiguous in memory"
            )
        return self._with(
            (*self.shape[:first], prod(sizes), *self.shape[last + 1 :]),
            (*self.strides[:first], *strides, *self.strides[last + 1 :]),
        )

    def _rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: dict[str, int] | None = None
    ) -> Self:
        try:
            plan = _Rearrangement(src_pattern, dst_pattern, fixed_sizes or {}, self.shape)
            view = self._with(self.shape, self.strides)
            # From the last dimension to the first, so that the numbers of those still to come do not change.
            for dim, sizes in reversed(plan.splits):
                view = view._reshape_dim(dim, sizes)
            view = view._permute(plan.order)
            for first, last in reversed(plan.merges):
                view = view._flatten_dims(first, last)
        except NkiValidationError as error:
            call = f"NkiTensor.rearrange({src_pattern!r}, {dst_pattern!r}, {fixed_sizes!r}) of {self}"
            raise NkiValidationError(f"{call}: {error}") from None
        return view

    def _check_not_first(self, method: str, dim: int) -> None:
        if dim == 0 and self._keeps_first_dimension():
            kind = "counts partitions" if self.is_on_chip() else "is indirect"
            raise NkiValidationError(f"NkiTensor.{method}: dimension 0 of {self} {kind} and must stay as it is")

    def _reinterpreted(self, dtype: DType, method: str) -> DType:
        if self.storage.is_widened and dtype != self.dtype:
            raise NkiValidationError(
                f"NkiTensor.{method}: {self} is held in float32 because NKI_PRECISE_FP=0; its bits cannot be read as "
                f"{dtype}"
            )
        if self.offset * self.dtype.itemsize % dtype.itemsize:
            raise NkiValidationError(
                f"NkiTensor.{method}: {self} starts at byte {self.offset * self.dtype.itemsize}, which is no multiple "
                f"of the {dtype.itemsize} bytes of {dtype}"
            )
        return dtype

    def _view(self, dtype: Any) -> Self:
        new = as_dtype(dtype)
        if self.indirect_access is not None:
            raise NkiValidationError(f"NkiTensor.view: {self} is indirect")
        old_width, new_width = self.dtype.itemsize, self._reinterpreted(new, "view").itemsize
        if old_width == new_width:
            return self._with(self.shape, self.strides, dtype=new)
        if self.ndim == 0 or (self.strides[-1] != 1 and self.shape[-1] != 1):
            raise NkiValidationError(
                f"NkiTensor.view: the last dimension of {self} must be dense, got strides {self.strides}"
            )
        last_bytes = self.shape[-1] * old_width
        outer = [stride * old_width for stride in self.strides[:-1]]
        if last_bytes % new_width or any(stride % new_width for stride in outer):
            raise NkiValidationError(
                f"NkiTensor.view: the {last_bytes} bytes of the last dimension of {self} and the strides before it "
                f"must be multiples of the {new_width} bytes of {new}"
            )
        shape = [*self.shape[:-1], last_bytes // new_width]
        strides = [*(stride // new_width for stride in outer), 1]
        return self._with(shape, strides, self.offset * old_width // new_width, new)


class AccessPatterns(IndexedViews, ReshapedViews):
    """The method ``ap`` of ``NkiTensor``: a view defined directly by an access pattern ``[[stride, count], ...]``.

    On the hardware every other view is an access pattern too.
    """

    __slots__ = ()

    def _ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: View | DeviceInteger | None = None,
        vector_offset: View | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> Self:
        self._refuse_second_indirection("ap")
        new_dtype = self.dtype if dtype is None else self._reinterpreted(as_dtype(dtype), "ap")
        added = 0 if offset is None else as_integer(f"NkiTensor.ap on {self}: offset", offset)
        strides, shape, added = self._checked_pattern(pattern, added, new_dtype)
        start = self.offset * self.dtype.itemsize // new_dtype.itemsize + added
        if vector_offset is None and scalar_offset is None:
            return self._static_pattern(shape, strides, start, new_dtype)
        if vector_offset is not None and scalar_offset is not None:
            raise NkiValidationError(f"NkiTensor.ap on {self}: give scalar_offset or vector_offset, not both")
        if vector_offset is not None:
            if indirect_dim != 0:
                raise NkiValidationError(
                    f"NkiTensor.ap on {self}: a vector offset needs indirect_dim=0, got {indirect_dim}"
                )
            return self._vector("ap", shape, strides, start, vector_offset, new_dtype)
        assert scalar_offset is not None
        return self._scalar_pattern(shape, strides, start, new_dtype, scalar_offset, indirect_dim)

    def _static_pattern(self, shape: list[int], strides: list[int], start: int, dtype: DType) -> Self:
        outside = self._what_is_outside(shape, strides, start, dtype)
        if not outside:
            return self._with(shape, strides, start, dtype)
        return self._outside(Layout(tuple(shape), tuple(strides), start), dtype, f"NkiTensor.ap on {self}: {outside}")

    @abstractmethod
    def _outside(self, layout: Layout, dtype: DType, message: str) -> Self:
        """Return a view for a pattern that leaves the tensor; using the view raises an error with ``message``."""

    def _what_is_outside(self, shape: list[int], strides: list[int], start: int, dtype: DType) -> str:
        """Return text that says how a static pattern leaves the storage or, on chip, a partition; empty if it stays
        inside.
        """
        low, high = extent(Layout(tuple(shape), tuple(strides), start))
        elements = self.storage.elements_of(dtype)
        if low < 0 or high >= elements:
            return (
                f"pattern {list(zip(strides, shape, strict=True))} at offset {start} touches elements {low} to {high} "
                f"of a storage of {elements}"
            )
        if not self.is_on_chip():
            return ""
        row = strides[0]
        low, high = extent(Layout(tuple(shape[1:]), tuple(strides[1:]), start % row))
        if low < 0 or high >= row:
            return (
                f"the free pattern {list(zip(strides[1:], shape[1:], strict=True))} at offset {start} leaves the {row} "
                f"elements of a partition"
            )
        return ""

    def _scalar_pattern(
        self,
        shape: list[int],
        strides: list[int],
        start: int,
        dtype: DType,
        index: View | DeviceInteger,
        indirect_dim: int,
    ) -> Self:
        index = checked_scalar_index("ap", self, index)
        dim = self._check_dim("ap", indirect_dim)
        if dim == 0 and self.is_on_chip():
            raise NkiValidationError(f"NkiTensor.ap: the partition dimension of {self} has no dynamic index")
        indirect = Indirect("scalar", index, self._step(dim, dtype), self.shape[dim], self, None)
        return self._with(shape, strides, start, dtype, indirect)

    def _checked_pattern(
        self, pattern: Sequence[Sequence[int]], offset: int, dtype: DType
    ) -> tuple[list[int], list[int], int]:
        """Check a pattern, and return its strides, counts and offset in elements of ``dtype`` over the storage.

        If the first stride and the offset of an on-chip pattern count partitions of a view, they are converted to
        partitions of the storage.
        """
        try:
            strides = [as_int(stride) for stride, _ in pattern]
            shape = [as_int(count) for _, count in pattern]
        except (TypeError, ValueError):
            raise NkiValidationError(
                f"NkiTensor.ap: pattern must be [[stride, count], ...], got {pattern!r}{division_remedy(pattern)}"
            ) from None
        if not shape or min(shape) < 0:
            raise NkiValidationError(f"NkiTensor.ap: pattern needs a dimension and counts >= 0, got {pattern!r}")
        if not self.is_on_chip():
            return strides, shape, offset
        row = prod(self.storage.shape[1:]) * self.storage.dtype.itemsize // dtype.itemsize
        if len(shape) < 2:
            raise NkiValidationError(
                f"NkiTensor.ap on {self}: an on-chip pattern starts with the partition dimension and has at least "
                f"one free dimension, got {pattern!r}"
            )
        if shape[0] > 1 and strides[0] != row:
            own_row = self.free_size * self.dtype.itemsize // dtype.itemsize
            if strides[0] != own_row or own_row == 0 or not self.is_contiguous():
                raise NkiValidationError(
                    f"NkiTensor.ap on {self}: the first stride must be the {row} elements of a partition, "
                    f"got {strides[0]}"
                )
            partitions, rest = divmod(offset, own_row)
            offset = partitions * row + rest
        strides[0] = row
        return strides, shape, offset
