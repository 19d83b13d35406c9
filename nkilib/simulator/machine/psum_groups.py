# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Accumulation groups in PSUM (groups of products that are summed): at most one unfinished group in a bank at a time.

:class:`PsumGroups` checks the groups of one core. It holds the state of each :class:`Bank`. For each tensor it holds
:class:`Pieces`; a *piece* is the elements of a view that an instruction has written.

A matmul that overwrites starts a group; matmuls that add to its elements continue the group. Observed on a device
(trn2, NKI 0.6, once): of groups that alternated in one bank, all except the group that started last lost their earlier
sums. So a matmul that starts a group is assumed to end all other groups in its bank, in the partitions that it writes;
the contents of these groups can be read, but not added to. docs/reference/simulator_readings_instructions.md lists the
evidence and the assumptions.

A tensor to which the kernel gives an address lies in the banks of this address; any other tensor has banks of its own.
A tensor larger than a bank begins at the start of a bank.
"""

from __future__ import annotations

from types import CodeType
from typing import NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt

from ..hardware.generations import PSUM_BANK_BYTES
from ..hardware.options import Level, refuse
from ..isa.definition import Definition
from ..memory.storage import Storage
from ..tensors.view import View, partition_elements
from ..terms.descriptions import describe_tensor
from ..terms.dtypes import DType
from ..terms.enums import Engine, MemoryRegion, nc_version
from ..terms.errors import PsumGroupError, kernel_frame, kernel_location
from ..terms.layout import Layout, extent, is_dense
from .core import Core
from .observer import Issued, Observer

Numbers = npt.NDArray[np.int64]
Key = tuple[Layout, DType]

_NUMBER = np.dtype(np.int64)
_FIRST = (0,)
# Members of an Enum are looked up by a Python function before 3.12; these are asked for in every call.
_PSUM, _TENSOR = MemoryRegion.psum, Engine.tensor

# The number of tensors that are kept before a search for those that the kernel has dropped.
_FEWEST_KEPT = 64


class Start(NamedTuple):
    """A matmul that started an accumulation group.

    Attributes:
        number: the number of the instruction.
        top, bottom: the partitions of PSUM that the matmul wrote; ``bottom`` is exclusive.
        label: the name of the instruction.
        code: the code object of the kernel that issued the matmul; None if it is unknown.
        line: the number of the line in it.
        piece: the elements that the matmul wrote.
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
        """The location of the matmul in the kernel as ``file:line``."""
        return "<unknown>" if self.code is None else f"{self.code.co_filename}:{self.line}"


class Bank:
    """One bank of PSUM.

    Attributes:
        number: the bank's number; for a tensor that a compiler places, counted from the tensor's first bank.
        latest: the number of the last matmul that started a group in the bank; 0 if there is none.
        starts: matmuls that started groups, the oldest first; a later one removes those whose partitions it covers.
    """

    __slots__ = ("latest", "number", "starts")

    def __init__(self, number: int) -> None:
        self.number = number
        self.latest = 0
        self.starts: list[Start] = []

    def begin(self, start: Start) -> None:
        """Record that the matmul ``start`` has started a group in the bank."""
        top, bottom = start.top, start.bottom
        kept = [earlier for earlier in self.starts if earlier.top < top or earlier.bottom > bottom]
        kept.append(start)
        self.starts = kept
        self.latest = start.number


def _bytes_of(inner: Layout, width: int) -> Numbers:
    """Return, for each element of a view within a partition, the byte at which it begins, counted from the partition's
    start.

    Args:
        inner: the layout of the view within a partition.
        width: the bytes of an element.
    """
    places = np.full(1, inner.offset, np.int64)
    for size, stride in zip(inner.shape, inner.strides, strict=True):
        places = (places[:, None] + np.arange(size) * stride).reshape(-1)
    return places * width


def _banks_of(inner: Layout, width: int, left: int, right: int) -> tuple[int, ...]:
    """Return the indices of the banks in which the elements of a view lie, counted from the tensor's first bank.

    Args:
        inner: the layout of the view within a partition.
        width: the bytes of an element.
        left, right: the range of bytes of a partition that holds the elements; ``right`` is exclusive.
    """
    first, last = left // PSUM_BANK_BYTES, (right - 1) // PSUM_BANK_BYTES
    if first == last or is_dense(inner.shape, inner.strides):
        return tuple(range(first, last + 1))
    return tuple(np.unique(_bytes_of(inner, width) // PSUM_BANK_BYTES).tolist())


class Piece:
    """The elements of a PSUM view, with the instruction that wrote all of them last.

    Attributes:
        layout, dtype: the layout and the type of the view.
        width: the bytes of an element on the device.
        top, bottom: the range of the tensor's partitions that holds the elements; ``bottom`` is exclusive.
        left, right: the range of bytes of a partition that holds the elements; ``right`` is exclusive.
        indices: the indices of the elements' banks, counted from the bank in which the tensor starts.
        banks: the banks at ``indices``.
        number: the number of the instruction that last wrote the whole view; 0 if there is none.
        is_result: whether that instruction was a matmul, to whose result a later matmul may add.
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
        """The number of the last matmul that started a group in one of the piece's banks."""
        banks = self.banks
        return banks[0].latest if len(banks) == 1 else max([bank.latest for bank in banks])

    def lies_in(self, index: int) -> bool | npt.NDArray[np.bool_]:
        """Return a mask of the piece's elements in one partition: True where an element lies in the bank ``index``.

        ``index`` is one of :attr:`indices`. If the piece has one bank, the result is the single value True.
        """
        if len(self.indices) == 1:
            return True
        return _bytes_of(self._inner, self.width) // PSUM_BANK_BYTES == index


def _elements(painted: Numbers, piece: Piece, unit: int) -> Numbers:
    """Return the entries of ``painted`` for the elements of a piece, with its shape and a last axis that counts units.

    ``painted`` has one entry for each unit of ``unit`` bytes of the tensor; an element has one or more units.
    """
    units = piece.width // unit
    shape, strides, offset = piece.layout
    steps = [*[stride * units * _NUMBER.itemsize for stride in strides], _NUMBER.itemsize]
    return np.ndarray((*shape, units), _NUMBER, painted, offset * units * _NUMBER.itemsize, steps)


class Pieces:
    """The pieces of one PSUM tensor.

    Kernels write the same views repeatedly; elements are examined one by one only where views overlap.

    Attributes:
        known: the pieces by layout and type.
        cleared: the number of the last instruction other than a matmul that wrote elements of the tensor.
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
        """Record that instruction ``number`` has written ``view``, whose elements are ``piece``.

        ``is_result`` tells whether the instruction was a matmul.
        """
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
        """Return False if it is certain that no element of ``piece`` has been written before, else True."""
        return (
            piece.top < self._bottom
            and self._top < piece.bottom
            and piece.left < self._right
            and self._left < piece.right
        )

    def numbers_of(self, piece: Piece) -> Numbers:
        """Return the number of the instruction that last wrote each element of ``piece``, shape (partitions, elements).

        The number is 0 for an unwritten element, and negative if the instruction was no matmul. If different
        instructions wrote the bytes of an element, the number is the lowest one.
        """
        painted = self._paint(piece.width)
        elements = _elements(painted, piece, self._unit)
        return np.asarray(elements.min(axis=-1)).reshape(piece.layout.shape[0], -1)

    def _paint(self, width: int) -> Numbers:
        """Update ``_painted`` and return it: the instruction that last wrote each unit of bytes, signed as in
        :meth:`numbers_of`.

        Units are split if ``width`` or a written element is narrower than a unit.
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


class _Tile:
    """The state of one PSUM tensor.

    Attributes:
        pieces: the pieces of the tensor.
        is_placed: whether the kernel sets the tensor's address; otherwise a compiler does.
        top: the partition in which a placed tensor starts; 0 for other tensors.
        first_bank: the bank in which a placed tensor starts; 0 for other tensors.
    """

    __slots__ = ("_banks", "first_bank", "is_placed", "pieces", "top")

    def __init__(self, storage: Storage, placed: dict[int, Bank]) -> None:
        self.pieces = Pieces(storage)
        self.top, byte = storage.address or (0, 0)
        self.first_bank = byte // PSUM_BANK_BYTES
        self.is_placed = storage.address is not None
        self._banks: dict[int, Bank] = placed if self.is_placed else {}

    def piece_of(self, view: View) -> Piece:
        """Return a new :class:`Piece`, with its banks, for a view that is written for the first time."""
        piece = Piece(view)
        first, banks = self.first_bank, self._banks
        for index in piece.indices:
            number = first + index
            if number not in banks:
                banks[number] = Bank(number)
        piece.banks = tuple([banks[first + index] for index in piece.indices])
        return piece


class _Roles(NamedTuple):
    """The positions of ``accumulate`` and ``is_transpose`` among the parameters of a matmul instruction."""

    accumulate: int
    is_transpose: int | None


def _described(piece: Piece, bank: Bank) -> str:
    """Return a description of a piece for messages: its shape and type, and the bytes of ``bank`` that it occupies."""
    first = piece.indices[piece.banks.index(bank)] * PSUM_BANK_BYTES
    left, right = max(piece.left - first, 0), min(piece.right - first, PSUM_BANK_BYTES)
    return f"{list(piece.layout.shape)} {piece.dtype}, bytes {left} to {right}"


class PsumGroups(Observer):
    """The observer of one core that reports a group that is continued after another group in its bank has started.

    Args:
        level: the reaction to such a group: an error, a warning or none.
        core: the observed core. Its hardware generation determines to which elements ``accumulate=None`` adds, and the
            meaning of ``is_transpose``.
    """

    def __init__(self, level: Level, core: Core) -> None:
        self._level = level
        # A weak reference: the core refers to its observers, and a cycle would live until the garbage collector runs.
        self._core_of = ref(core)
        self._adds_to_all = core.generation.version is nc_version.gen4
        self._moves_bits = core.generation.version is not nc_version.gen2
        self._tiles: dict[int, _Tile] = {}
        self._kept: dict[int, ref[Storage]] = {}
        self._most_kept = _FEWEST_KEPT
        self._placed: dict[int, Bank] = {}
        self._roles: dict[str, _Roles] = {}

    def issued(self, call: Issued) -> None:
        definition = call.definition
        if not definition.is_matmul:
            for rule, position in definition.outputs:
                view = call.values[position]
                if view is not None and view.buffer is _PSUM and not rule.may_leave:
                    self._overwritten(call, view)
            return
        dst, roles = call.values[0], self._roles.get(definition.name) or self._roles_of(definition)
        if call.indirect or dst.size == 0:  # where a scatter goes is read from a tensor
            return
        if roles.is_transpose is not None and self._moves_bits and call.values[roles.is_transpose]:
            self._overwritten(call, dst)
            return
        tile = self._tiles.get(dst.storage.number) or self._add(dst.storage)
        accumulate, pieces, number = call.values[roles.accumulate], tile.pieces, call.number
        piece = pieces.known.get((dst.layout, dst.dtype))
        if piece is None:
            piece = tile.piece_of(dst)
        elif accumulate is not False and piece.number > pieces.cleared and piece.number >= piece.latest_start:
            piece.number = number  # the usual case: it continues its group, and no other group has started since
            return
        if accumulate is False or not self._goes_on(call, tile, piece):
            self._begin(call, tile, piece)
        pieces.write(dst, piece, number, is_result=True)

    def _roles_of(self, definition: Definition) -> _Roles:
        names = definition.names
        transpose = names.index("is_transpose") if "is_transpose" in names else None
        roles = self._roles[definition.name] = _Roles(names.index("accumulate"), transpose)
        return roles

    def _add(self, storage: Storage) -> _Tile:
        """Return the new state of a tensor that is written for the first time, and drop the states of tensors that are
        gone.
        """
        if len(self._tiles) >= self._most_kept:
            for number in [number for number, kept in self._kept.items() if kept() is None]:
                del self._tiles[number], self._kept[number]
            self._most_kept = max(_FEWEST_KEPT, 2 * len(self._tiles))
        tile = self._tiles[storage.number] = _Tile(storage, self._placed)
        self._kept[storage.number] = ref(storage)
        return tile

    def _overwritten(self, call: Issued, view: View) -> None:
        """Record that an instruction has overwritten elements with something other than a matmul's result.

        Before trn3, no matmul can add to such contents.
        """
        is_transposed = call.engine is _TENSOR  # which the Tensor engine does by a matmul
        tile = self._tiles.get(view.storage.number)
        if tile is None:
            if not is_transposed and not self._adds_to_all:
                return
            tile = self._add(view.storage)
        if view.size == 0 or call.indirect:
            return
        piece = tile.pieces.known.get((view.layout, view.dtype)) or tile.piece_of(view)
        if is_transposed:
            self._begin(call, tile, piece)
        tile.pieces.write(view, piece, call.number, is_result=False)

    def _begin(self, call: Issued, tile: _Tile, piece: Piece) -> None:
        frame = kernel_frame()
        code, line = (None, 0) if frame is None else (frame.f_code, frame.f_lineno)
        start = Start(
            call.number, tile.top + piece.top, tile.top + piece.bottom, call.definition.label, code, line, piece
        )
        for bank in piece.banks:
            bank.begin(start)

    def _goes_on(self, call: Issued, tile: _Tile, piece: Piece) -> bool:
        """Return whether a matmul that may add to ``piece`` adds to at least one element; report an addition to an
        ended group.

        Raises:
            PsumGroupError: the group has ended, at the level ``"error"``.
        """
        if not tile.pieces.may_meet(piece):
            return False
        numbers = tile.pieces.numbers_of(piece)
        if not ((numbers != 0) if self._adds_to_all else (numbers > 0)).any():
            return False
        for index, bank in zip(piece.indices, piece.banks, strict=True):
            for start in bank.starts:
                above, below = start.top - tile.top - piece.top, start.bottom - tile.top - piece.top
                sums = numbers[max(above, 0) : max(below, 0)]
                if ((sums > 0) & (sums < start.number) & piece.lies_in(index)).any():
                    self._refuse(call, tile, piece, bank, start)
                    return True
        return True

    def _refuse(self, call: Issued, tile: _Tile, piece: Piece, bank: Bank, start: Start) -> None:
        """Report that ``call`` adds to a group that ended when ``start`` began another group in the same bank.

        Raises:
            PsumGroupError: at the level ``"error"``.
        """
        storage, here = call.values[0].storage, kernel_location()
        name = f" (name={call.values[-1]!r})" if call.values[-1] else ""
        watched = self._core_of()
        assert watched is not None  # it has issued the call
        core = f" on {watched.name}" if watched.name else ""
        tensor = describe_tensor(storage.name, storage.shape, storage.dtype, storage.region)
        of_tensor = "" if tile.is_placed else f" of {tensor}"
        error = PsumGroupError(
            f"{here}: {call.definition.label}{name}{core}: goes on with the group of products in "
            f"{_described(piece, bank)} of PSUM bank {bank.number}{of_tensor}, after {start.label} at {start.place} "
            f"has started another group in this bank, in {_described(start.piece, bank)}: a bank ({PSUM_BANK_BYTES} "
            f"bytes of each partition) holds at most one unfinished group, and on hardware what the first one had "
            f"summed is lost; give each group a PSUM tile of its own, or finish one before the next one starts; "
            f"using(psum_groups='ignore') or NKILIB_PSUM_GROUPS=ignore runs the kernel"
        )
        error.place = here
        watched.unrepeatable = "accumulation groups alternate in a bank of PSUM"
        refuse(self._level, error, here, start.place)
