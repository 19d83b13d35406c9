# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Deferred contents of tiles: they are computed when they are read, or never.

A simulation of a kernel over a large matrix spends its time on moving memory. Some of the moves are often not needed:

- A large load from HBM. Until the tile or its source changes, the elements can be read from the source.
- The elementwise results of an instruction. Some are never read, such as exponentials that are only summed; others are
  only stored to HBM, and can be computed there. Values computed from deferred results can be computed together with
  them, a few rows at a time, which then stay in a cache.
- The sum of products in PSUM, to which the next matmul adds; see engines/tensor/accumulation.py.

A :class:`Deferred` defines the contents of a block of a storage. Reading the elements (``View.array``) computes them
first. An instruction that needs only some rows (:attr:`View.rows_to_read`, engines/rowwise.py) reads the source. An
instruction that overwrites the elements leaves them uncomputed.

A block is a :class:`Rectangle`; the elements of a content that are still deferred are a :class:`Part`. As matrices,
blocks have a row for each index of dimension 0. :class:`Derived` holds what was made from the elements of a storage
until they change: float32 copies, and deferred contents of other storages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ..terms.dtypes import DType
from ..terms.layout import Layout, is_dense

# Writes the elements of some rows and columns into an array of their shape.
_Writer = Callable[[npt.NDArray[Any], slice, slice], None]
Block = tuple[slice, slice]
_Float32s = npt.NDArray[np.float32]

# float32 copies may take so many times the bytes of their tile, which has views that overlap.
_MOST_COPIES = 4


class Rectangle(NamedTuple):
    """A block of an on-chip storage: bytes ``left`` to ``right`` of the partitions ``top`` to ``bottom``.

    The ends are exclusive.
    """

    top: int
    bottom: int
    left: int
    right: int

    def meets(self, other: Rectangle) -> bool:
        """Return whether both blocks have a byte in common."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def common(self, other: Rectangle) -> Rectangle:
        """Return the intersection of two blocks that have a byte in common."""
        return Rectangle(
            max(self.top, other.top),
            min(self.bottom, other.bottom),
            max(self.left, other.left),
            min(self.right, other.right),
        )

    def contains(self, other: Rectangle) -> bool:
        return (
            self.top <= other.top
            and other.bottom <= self.bottom
            and self.left <= other.left
            and other.right <= self.right
        )

    def outside(self, other: Rectangle) -> list[Rectangle]:
        """Return the rest of this block outside ``other`` as at most four blocks that do not overlap."""
        if not self.meets(other):
            return [self]
        top, bottom, left, right = self.common(other)
        parts = (
            Rectangle(self.top, top, self.left, self.right),
            Rectangle(bottom, self.bottom, self.left, self.right),
            Rectangle(top, bottom, self.left, left),
            Rectangle(top, bottom, right, self.right),
        )
        return [part for part in parts if part.top < part.bottom and part.left < part.right]


def rectangle_of(layout: Layout, itemsize: int, partition_bytes: int) -> Rectangle | None:
    """Return the block that a view covers; None for a view without elements or with gaps.

    Args:
        layout: the layout of the view.
        itemsize: the bytes of an element.
        partition_bytes: the bytes of a partition of the storage.
    """
    shape, strides, offset = layout
    if 0 in shape or not is_dense(shape[1:], strides[1:]):
        return None
    if shape[0] > 1 and strides[0] * itemsize != partition_bytes:
        return None
    top, left = divmod(offset * itemsize, partition_bytes)
    right = left + prod(shape[1:]) * itemsize
    return None if right > partition_bytes else Rectangle(top, top + shape[0], left, right)


class Deferred(NamedTuple):
    """The contents of a view that its memory does not hold yet. The view is a block of its storage.

    Attributes:
        layout, dtype: the layout and the type of the view.
        write: a function that computes the elements of some rows and columns and writes them into an array.
        sources: the memory in HBM from which the contents are computed, as matrices of the same shape; it must not
            change before the contents are computed.
        is_copy: whether the contents are a copy of the only source.
        operands: other storages that the contents are computed from. Before one changes, the contents are computed.
        reads_itself: whether the contents are computed from the memory of the view itself.
        may_grow: whether an instruction may add to the contents. They are then computed as soon as any element of the
            storage is read or overwritten: which terms are summed together must not depend on other contents.
        depth: 0 for a copy or a sum of products; for other contents, 1 more than the highest depth of an input.
    """

    layout: Layout
    dtype: DType
    write: _Writer
    sources: tuple[npt.NDArray[Any], ...] = ()
    is_copy: bool = False
    operands: Collection[object] = ()
    reads_itself: bool = False
    may_grow: bool = False
    depth: int = 0


class Part(NamedTuple):
    """The elements of a :class:`Deferred` that are neither computed nor overwritten yet.

    Attributes:
        content: the deferred content.
        place: the block of the storage for the whole content.
        block: the block of the elements that are neither computed nor overwritten.
        width: the bytes of an element in the storage.
    """

    content: Deferred
    place: Rectangle
    block: Rectangle
    width: int

    def within(self, block: Rectangle) -> Block:
        """Return the rows and columns of the content that lie in ``block``, which is inside ``place``."""
        top, _, left, _ = self.place
        columns = slice((block.left - left) // self.width, (block.right - left) // self.width)
        return slice(block.top - top, block.bottom - top), columns

    def divides(self, block: Rectangle) -> bool:
        """Return whether ``block``, which lies inside ``place``, cuts no element of the content at its left or right
        edge.
        """
        return (block.left - self.place.left) % self.width == 0 and (block.right - self.place.left) % self.width == 0

    def sources_within(self, block: Rectangle) -> list[npt.NDArray[Any]]:
        """Return, for each source of the content, the elements from which a block inside ``place`` is computed."""
        at = self.within(block)
        return [source[at] for source in self.content.sources]


def deferred_copy(layout: Layout, dtype: DType, source: npt.NDArray[Any]) -> Deferred:
    """Return a deferred copy of ``source``, which has as many elements as ``layout``; each row of ``layout`` is
    dense.
    """
    matrix = source.reshape(source.shape[0], -1)

    def write(elements: npt.NDArray[Any], rows: slice, columns: slice) -> None:
        elements[...] = matrix[rows, columns]

    return Deferred(layout, dtype, write, (matrix,), is_copy=True)


class Reader(Protocol):
    """A storage with deferred contents, as :class:`Derived` sees it."""

    def waits_for(self, operand: object, /) -> bool:
        """Return whether a deferred content of this storage is computed from the elements of the storage
        ``operand``.
        """

    def settle(self) -> None:
        """Compute the deferred contents of this storage."""


class Derived:
    """The values derived from a storage's elements: float32 copies, and deferred contents of other storages.

    The storage drops this object when its elements change.

    Args:
        nbytes: the size of the storage in bytes.

    Attributes:
        readers: storages whose deferred contents may be computed from these elements.
    """

    __slots__ = ("_copies", "_most", "_room", "readers")

    def __init__(self, nbytes: int) -> None:
        self._most = self._room = _MOST_COPIES * nbytes
        self._copies: dict[tuple[Layout, DType], _Float32s] = {}
        self.readers: WeakSet[Reader] = WeakSet()

    def copy_of(self, layout: Layout, dtype: DType, make: Callable[[], _Float32s]) -> _Float32s:
        """Return the float32 copy of a view of the storage with this layout and type.

        Args:
            layout, dtype: the layout and type of the view.
            make: a function that makes the copy; called if no copy is kept.
        """
        copy = self._copies.get((layout, dtype))
        if copy is None:
            copy = make()
            if copy.nbytes > self._room:
                self._copies.clear()
                self._room = self._most
            self._copies[layout, dtype] = copy
            self._room -= copy.nbytes
        return copy
