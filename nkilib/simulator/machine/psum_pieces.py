# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A record of which instruction last wrote each element of a PSUM tensor, and in which banks the elements lie.

A matmul returns to the same elements again and again, so this keeps the views that were written, each with the
number of the last instruction that wrote it. Elements are examined one by one only where views overlap.
"""

from __future__ import annotations

from types import CodeType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..hardware.limits import PSUM_BANK_BYTES
from ..memory.storage import Storage
from ..tensors.partitions import partition_elements
from ..tensors.view import View
from ..terms.dtypes import DType
from ..terms.layout import Layout, extent, is_dense

Numbers = npt.NDArray[np.int64]
Key = tuple[Layout, DType]

_NUMBER = np.dtype(np.int64)
_FIRST = (0,)


class Start(NamedTuple):
    """A matmul that started an accumulation group.

    Attributes:
        number: the number of the instruction.
        top, bottom: the partitions of PSUM that it wrote; ``bottom`` is exclusive.
        label: the name of the instruction.
        code, line: the kernel's code, if that is known, and the line in it.
        piece: the elements that it wrote.
    """

    number: int
    top: int
    bottom: int
    label: str
    code: CodeType | None
    line: int
    piece: Piece

    @property
    def place(self) -> str:
        """The location in the kernel as ``file:line``."""
        return "<unknown>" if self.code is None else f"{self.code.co_filename}:{self.line}"


class Bank:
    """One bank of PSUM.

    Attributes:
        number: the bank's number; for a tensor that a compiler places, counted from the tensor's first bank.
        latest: the number of the last matmul that started a group there; 0 if none did.
        starts: the last start in each partition, and possibly older ones that several later ones cover together.
    """

    __slots__ = ("latest", "number", "starts")

    def __init__(self, number: int) -> None:
        self.number = number
        self.latest = 0
        self.starts: list[Start] = []

    def begin(self, start: Start) -> None:
        """Record that a group starts."""
        top, bottom = start.top, start.bottom
        kept = [earlier for earlier in self.starts if earlier.top < top or earlier.bottom > bottom]
        kept.append(start)
        self.starts = kept
        self.latest = start.number


class Piece:
    """The elements of a PSUM view that instructions write.

    Attributes:
        layout, dtype: the layout and the type of the view.
        width: the bytes of an element on the device.
        top, bottom: the range of the tensor's partitions that holds them; ``bottom`` is exclusive.
        left, right: the range of bytes of a partition that holds them; ``right`` is exclusive.
        indices: the indices of their banks, counted from the bank in which the tensor starts.
        banks: these banks.
        number: the number of the instruction that last wrote the whole view; 0 if none has.
        is_result: whether that instruction was a matmul, to whose result a later one may add.
    """

    __slots__ = (
        "_inner",
        "banks",
        "bottom",
        "dtype",
        "indices",
        "is_result",
        "layout",
        "left",
        "number",
        "right",
        "top",
        "width",
    )

    def __init__(self, view: View) -> None:
        row, self.width = partition_elements(view), view.dtype.itemsize
        self.layout, self.dtype = view.layout, view.dtype
        shape, strides, offset = view.layout  # its partitions are consecutive: an engine writes no others
        self.top, start = divmod(offset, row)
        self.bottom = self.top + shape[0]
        self._inner = Layout(shape[1:], strides[1:], start)
        first, last = extent(self._inner)
        self.left, self.right = first * self.width, (last + 1) * self.width
        within = self.right <= PSUM_BANK_BYTES  # most are
        self.indices = _FIRST if within else _banks_of(self._inner, self.width, self.left, self.right)
        self.banks: tuple[Bank, ...] = ()
        self.number = 0
        self.is_result = True

    @property
    def latest_start(self) -> int:
        """The number of the last matmul that started a group in one of its banks."""
        banks = self.banks
        return banks[0].latest if len(banks) == 1 else max([bank.latest for bank in banks])

    def lies_in(self, index: int) -> bool | npt.NDArray[np.bool_]:
        """Return a mask of the elements of a partition that lie in one of the banks, counted as in ``indices``."""
        if len(self.indices) == 1:
            return True
        return _bytes_of(self._inner, self.width) // PSUM_BANK_BYTES == index


def _banks_of(inner: Layout, width: int, left: int, right: int) -> tuple[int, ...]:
    """Return the banks in which the elements of a partition lie."""
    first, last = left // PSUM_BANK_BYTES, (right - 1) // PSUM_BANK_BYTES
    if first == last or is_dense(inner.shape, inner.strides):
        return tuple(range(first, last + 1))
    return tuple(np.unique(_bytes_of(inner, width) // PSUM_BANK_BYTES).tolist())


def _bytes_of(inner: Layout, width: int) -> Numbers:
    """Return the first byte of each element of a partition, in the order of the elements."""
    places = np.full(1, inner.offset, np.int64)
    for size, stride in zip(inner.shape, inner.strides, strict=True):
        places = (places[:, None] + np.arange(size) * stride).reshape(-1)
    return places * width


class Pieces:
    """The views of one PSUM tensor that have been written.

    Attributes:
        known: the pieces by layout and type.
        cleared: the number of the last instruction other than a matmul that wrote a part of the tensor.
    """

    __slots__ = (
        "_bottom",
        "_left",
        "_nbytes",
        "_painted",
        "_painted_to",
        "_right",
        "_top",
        "_unit",
        "cleared",
        "known",
    )

    def __init__(self, storage: Storage) -> None:
        self._nbytes = storage.shape[0] * storage.partition_elements * storage.dtype.itemsize
        self._unit = storage.dtype.itemsize
        self.known: dict[Key, Piece] = {}
        self.cleared = 0
        self._forget()

    def _forget(self) -> None:
        self.known.clear()
        self._top = self._bottom = self._left = self._right = 0
        # For each unit of bytes the number of the instruction that wrote it last, below 0 if that was no matmul; and
        # the last instruction that is included. None until views overlap.
        self._painted: Numbers | None = None
        self._painted_to = 0

    def write(self, view: View, piece: Piece, number: int, *, is_result: bool) -> None:
        """Record that instruction ``number`` has written ``view``, whose elements are ``piece``."""
        if view.is_whole and len(self.known) > 1:
            self._forget()
        if not self.known:
            self._top, self._bottom, self._left, self._right = piece.top, piece.bottom, piece.left, piece.right
            self.known[view.layout, view.dtype] = piece
        elif not piece.number:
            self._top, self._bottom = min(self._top, piece.top), max(self._bottom, piece.bottom)
            self._left, self._right = min(self._left, piece.left), max(self._right, piece.right)
            self.known[view.layout, view.dtype] = piece
        piece.number, piece.is_result = number, is_result
        if not is_result:
            self.cleared = number

    def may_meet(self, piece: Piece) -> bool:
        """Return whether some element of a piece may have been written."""
        return (
            piece.top < self._bottom
            and self._top < piece.bottom
            and piece.left < self._right
            and self._left < piece.right
        )

    def numbers_of(self, piece: Piece) -> Numbers:
        """Return the number of the instruction that last wrote each element, as (partitions, elements of a partition).

        The number is 0 if none did, and negative if it was no matmul. If instructions wrote parts of an element, it is
        the lowest of their numbers.
        """
        painted = self._paint(piece.width)
        elements = _elements(painted, piece, self._unit)
        return np.asarray(elements.min(axis=-1)).reshape(piece.layout.shape[0], -1)

    def _paint(self, width: int) -> Numbers:
        """Return the number of the last writing instruction, as in :meth:`numbers_of`, for each unit of the tensor.

        A unit has at most ``width`` bytes, and becomes smaller when an instruction writes narrower elements.
        """
        new = [piece for piece in self.known.values() if piece.number > self._painted_to]
        unit = min([self._unit, width, *[piece.width for piece in new]])
        if self._painted is None:
            self._painted = np.zeros(self._nbytes // unit, np.int64)
        elif unit < self._unit:
            self._painted = np.repeat(self._painted, self._unit // unit)
        self._unit = unit
        for piece in sorted(new, key=lambda piece: piece.number):
            _elements(self._painted, piece, unit)[...] = piece.number if piece.is_result else -piece.number
            self._painted_to = piece.number
        return self._painted


def _elements(painted: Numbers, piece: Piece, unit: int) -> Numbers:
    """Return a view of ``painted`` with the units that belong to each element of a piece, along the last axis."""
    units = piece.width // unit
    shape, strides, offset = piece.layout
    steps = [*[stride * units * _NUMBER.itemsize for stride in strides], _NUMBER.itemsize]
    return np.ndarray((*shape, units), _NUMBER, painted, offset * units * _NUMBER.itemsize, steps)
