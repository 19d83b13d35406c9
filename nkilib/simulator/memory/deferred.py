# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Contents of tiles that are made when somebody reads them, if ever.

A simulation of a kernel over a large matrix spends its time on moving memory. Some of the moves are often not needed:

- A large load from HBM. Until the tile or what it came from changes, its elements can be read where they came from.
- The results of an instruction, element by element. Kernels sum exponentials that nobody reads afterwards, and store
  results to HBM, where they can be written at once. What is computed from them can be computed with them, a few rows
  after the other, which then stay in a cache.
- The sum of products in PSUM, to which the next matmul adds; see engines/tensor/sums.py.

Blocks of a storage are then what their :class:`Deferred` says. Whoever asks for their elements (``View.array``) has
them made first; an instruction that can do with less (:attr:`View.rows_to_read`, engines/results.py) reads the source,
and one that overwrites them leaves them unmade.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy.typing as npt

from ..terms.dtypes import DType
from ..terms.layout import Layout
from .rectangles import Rectangle

# Writes the elements of some rows and columns into an array of just those.
Writer = Callable[[npt.NDArray[Any], slice, slice], None]
Block = tuple[slice, slice]


class Deferred(NamedTuple):
    """What the elements of a view are, instead of what its memory holds. The view is a block of its storage, and is
    spoken of as a matrix: an index of its dimension 0 is a row.

    Attributes:
        layout, dtype: of the view.
        write: makes some of the elements.
        sources: memory in HBM from which they are made, matrices like this one; it must not change before.
        is_copy: whether they are those of the only source.
        operands: other storages from whose memory they are made; they are made before that changes.
        reads_itself: whether they are made from what the memory of the very view holds.
        may_grow: whether an instruction may add to them. Then they are made as soon as anything of the storage is read
            or overwritten, so that what is added up at a time does not depend on what else is deferred.
        depth: how many deferred contents one in the other they are made from.
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
    """What is left of a deferred content.

    Attributes:
        content: what was deferred.
        place: where in the storage that is.
        block: what of it nobody has made or overwritten.
        width: bytes of an element, as the storage holds it.
    """

    content: Deferred
    place: Rectangle
    block: Rectangle
    width: int

    def within(self, block: Rectangle) -> Block:
        """Rows and columns of the content that a block of its place is."""
        top, _, left, _ = self.place
        columns = slice((block.left - left) // self.width, (block.right - left) // self.width)
        return slice(block.top - top, block.bottom - top), columns

    def divides(self, block: Rectangle) -> bool:
        """Whether a block of its place begins and ends between elements."""
        return (block.left - self.place.left) % self.width == 0 and (block.right - self.place.left) % self.width == 0

    def sources_within(self, block: Rectangle) -> list[npt.NDArray[Any]]:
        """The memory in HBM from which a block of its place is made."""
        at = self.within(block)
        return [source[at] for source in self.content.sources]


def deferred_copy(layout: Layout, dtype: DType, source: npt.NDArray[Any]) -> Deferred:
    """The elements of ``source``, which has as many of them as ``layout``, dense for each index of dimension 0."""
    matrix = source.reshape(source.shape[0], -1)

    def write(elements: npt.NDArray[Any], rows: slice, columns: slice) -> None:
        elements[...] = matrix[rows, columns]

    return Deferred(layout, dtype, write, (matrix,), is_copy=True)
