# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Deferred contents of tiles: they are computed when they are read, if ever.

A simulation of a kernel over a large matrix spends its time on moving memory. Some of the moves are often not needed:

- A large load from HBM. Until the tile or its source changes, its elements can be read from the source.
- The elementwise results of an instruction. Kernels sum exponentials that are never read afterwards, and store
  results to HBM, where they can be written at once. Values computed from them can be computed together with them, a few
  rows at a time, which then stay in a cache.
- The sum of products in PSUM, to which the next matmul adds; see engines/tensor/sums.py.

The contents of blocks of a storage are then defined by their :class:`Deferred`. Reading their elements (``View.array``)
computes them first; an instruction that needs less (:attr:`View.rows_to_read`, engines/results.py) reads the source,
and one that overwrites them leaves them uncomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy.typing as npt

from ..terms.dtypes import DType
from ..terms.layout import Layout
from .rectangles import Rectangle

# Writes the elements of some rows and columns into an array of their shape.
Writer = Callable[[npt.NDArray[Any], slice, slice], None]
Block = tuple[slice, slice]


class Deferred(NamedTuple):
    """The contents of a view that its memory does not hold yet.

    The view is a block of its storage and is described as a matrix: an index of its dimension 0 is a row.

    Attributes:
        layout, dtype: the layout and the type of the view.
        write: a function that computes the elements of some rows and columns and writes them into an array.
        sources: the memory in HBM from which the contents are computed, as matrices like this one; it must not change
            before the contents are computed.
        is_copy: whether the contents are a copy of the only source.
        operands: other storages from whose elements the contents are computed; this happens before those elements
            change.
        reads_itself: whether the contents are computed from the memory of the view itself.
        may_grow: whether an instruction may add to the contents. They are then computed as soon as anything of the
            storage is read or overwritten, so that the grouping of the sum does not depend on other deferred contents.
        depth: the number of nested deferred contents from which these are computed.
    """

    layout: Layout
    dtype: DType
    write: Writer
    sources: tuple[npt.NDArray[Any], ...] = ()
    is_copy: bool = False
    operands: Collection[object] = ()
    reads_itself: bool = False
    may_grow: bool = False
    depth: int = 0


class Part(NamedTuple):
    """A block of a storage with a deferred content: the whole content, or what is left of it.

    Attributes:
        content: the deferred content.
        place: the block of the storage that the whole content takes.
        block: the part of ``place`` that is neither computed nor overwritten.
        width: the bytes of an element, as the storage holds it.
    """

    content: Deferred
    place: Rectangle
    block: Rectangle
    width: int

    def within(self, block: Rectangle) -> Block:
        """Return the rows and columns of the content, as a matrix, that a block inside ``place`` takes."""
        top, _, left, _ = self.place
        columns = slice((block.left - left) // self.width, (block.right - left) // self.width)
        return slice(block.top - top, block.bottom - top), columns

    def divides(self, block: Rectangle) -> bool:
        """Return whether the left and right edges of a block inside ``place`` lie between elements of the content."""
        return (block.left - self.place.left) % self.width == 0 and (block.right - self.place.left) % self.width == 0

    def sources_within(self, block: Rectangle) -> list[npt.NDArray[Any]]:
        """Return the part of each of the content's sources from which a block inside ``place`` is computed."""
        at = self.within(block)
        return [source[at] for source in self.content.sources]


def deferred_copy(layout: Layout, dtype: DType, source: npt.NDArray[Any]) -> Deferred:
    """Return a deferred copy of ``source``, which has as many elements as ``layout``.

    ``layout`` is dense for each index of dimension 0.
    """
    matrix = source.reshape(source.shape[0], -1)

    def write(elements: npt.NDArray[Any], rows: slice, columns: slice) -> None:
        elements[...] = matrix[rows, columns]

    return Deferred(layout, dtype, write, (matrix,), is_copy=True)
