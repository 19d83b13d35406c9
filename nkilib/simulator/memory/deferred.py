"""Contents of tiles that are made when somebody reads them, if ever.

A simulation of a kernel over a large matrix spends its time on moving memory. Some of the moves are often not needed:

- A large load from HBM. Until the tile or what it came from changes, its elements can be read where they came from.
- The elements of an instruction that reduces them as well. Kernels sum exponentials that nobody reads afterwards.
- The sum of products in PSUM, to which the next matmul adds; see engines/tensor/sums.py.

The content of a storage is then what its :class:`Deferred` says. Whoever asks for the elements (``View.array``) has it
made first; an instruction that can do with less (:attr:`View.rows_to_read`) reads the source, and one that overwrites
all of it leaves it unmade.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import Any, NamedTuple

import numpy.typing as npt

from ..terms.dtypes import DType
from ..terms.layout import Layout

# Writes the elements of some rows and columns into an array of just those.
Writer = Callable[[npt.NDArray[Any], slice, slice], None]


class Deferred(NamedTuple):
    """What the elements of a view are, instead of what its memory holds. The view is dense for each index of dimension
    0, and is spoken of as a matrix: such an index is a row.

    Attributes:
        layout, dtype: of the view.
        source: the memory from which the elements are made, which must not change before; of a sum of products empty.
        is_copy: whether they are those of ``source``, an array (rows, columns).
        write: makes some of them.
        operands: the storages from whose elements they are made, which are made before these change.
    """

    layout: Layout
    dtype: DType
    source: npt.NDArray[Any]
    is_copy: bool
    write: Writer
    operands: Collection[object] = ()

    @property
    def matrix(self) -> Layout:
        """Rows and columns."""
        shape, strides, offset = self.layout
        return Layout((shape[0], prod(shape[1:])), (strides[0], 1), offset)

    @property
    def everything(self) -> tuple[slice, slice]:
        """The block that is all of it."""
        rows, columns = self.matrix.shape
        return slice(0, rows), slice(0, columns)

    def outside(self, other: Deferred) -> list[tuple[slice, slice]]:
        """The blocks of this one that ``other`` leaves as they are: nothing, or all, or what a smaller matrix with the
        same corner does not cover (the last chunk of a row may be narrower than the others)."""
        (rows, columns), strides, offset = self.matrix
        (other_rows, other_columns), other_strides, other_offset = other.matrix
        if (self.dtype, strides, offset) != (other.dtype, other_strides, other_offset):
            return [self.everything]
        below = slice(min(rows, other_rows), rows), slice(0, columns)
        beside = slice(0, min(rows, other_rows)), slice(min(columns, other_columns), columns)
        return [block for block in (below, beside) if all(side.stop > side.start for side in block)]


class Remainder(NamedTuple):
    """What a newer content has left of a deferred one.

    Attributes:
        content: the older one.
        block: the rows and columns of it that nobody has made.
    """

    content: Deferred
    block: tuple[slice, slice]

    def is_hidden_by(self, other: Deferred) -> bool:
        """Whether a newer content covers all of it: a matrix with the same corner."""
        (rows, columns), strides, offset = other.matrix
        _, own_strides, own_offset = self.content.matrix
        if (self.content.dtype, own_strides, own_offset) != (other.dtype, strides, offset):
            return False
        return self.block[0].stop <= rows and self.block[1].stop <= columns


def deferred_copy(layout: Layout, dtype: DType, source: npt.NDArray[Any]) -> Deferred:
    """The elements of ``source``, which has the shape of ``layout`` and is dense for each index of dimension 0."""
    matrix = source.reshape(source.shape[0], -1)

    def write(elements: npt.NDArray[Any], rows: slice, columns: slice) -> None:
        elements[...] = matrix[rows, columns]

    return Deferred(layout, dtype, matrix, True, write)
