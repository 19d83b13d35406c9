# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``NkiTensor.ap``: a view defined directly by an access pattern ``[[stride, count], ...]``.

Sources: docstring of ``ap`` and ``nki/deep-dives/nki-aps.rst``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from operator import index as as_int
from typing import TYPE_CHECKING, Any

from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError
from ..terms.integers import as_integer
from ..terms.layout import Layout, extent
from .indexed_views import IndexedViews
from .indirect import checked_scalar_index
from .reshaped_views import ReshapedViews
from .scalars import DeviceInteger
from .view import Indirect, View

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from 3.11 on


class AccessPatterns(IndexedViews, ReshapedViews):
    """The method ``ap`` of ``NkiTensor``; on the hardware all other views are access patterns too."""

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
        """See :meth:`NkiTensor.ap`."""
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
        """Return a view that leaves the tensor: it may be made, but every use raises an error with ``message``."""

    def _what_is_outside(self, shape: list[int], strides: list[int], start: int, dtype: DType) -> str:
        """Describe how a static pattern leaves the storage or, on chip, a partition; an empty string if it does not."""
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
        """Return the strides, counts and offset of a pattern after checks, in elements of ``dtype`` over the storage.

        An on-chip pattern whose first stride and offset count partitions of a view is converted to those of the
        storage.
        """
        try:
            strides = [as_int(stride) for stride, _ in pattern]
            shape = [as_int(count) for _, count in pattern]
        except (TypeError, ValueError):
            raise NkiValidationError(f"NkiTensor.ap: pattern must be [[stride, count], ...], got {pattern!r}") from None
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
