# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Accumulation groups in PSUM (groups of products that are summed): at most one unfinished group in a bank at a time.

A matmul that overwrites starts a group; matmuls that add to its elements continue it. Observed on a device (trn2,
NKI 0.6, once): of groups that alternated in one bank, all but the one that started last lost their earlier sums. So a
matmul that starts a group is assumed to end all others in its bank, in the partitions that it writes; their contents
can be read, but not added to. docs/reference/simulator_readings.md lists the evidence and the assumptions.

Banks: a tensor that the kernel places lies in the banks of its address, a tensor that it does not place in banks of its
own, and a tensor larger than a bank begins with one.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from ..hardware.limits import PSUM_BANK_BYTES
from ..hardware.options import Level
from ..isa.definition import Definition
from ..memory.storage import Storage
from ..tensors.view import View
from ..terms.description import describe
from ..terms.enums import Engine, nc_version
from ..terms.errors import PsumGroupError, kernel_frame, kernel_location
from ..terms.regions import MemoryRegion
from .core import Core
from .levels import refuse
from .observer import Issued, Observer
from .psum_pieces import Bank, Piece, Pieces, Start

# Members of an Enum are looked up by a Python function before 3.12; these are asked for in every call.
_PSUM, _TENSOR = MemoryRegion.psum, Engine.tensor

# The number of tensors that are kept before a search for those that the kernel has dropped.
_FEWEST_KEPT = 64


class _Tile:
    """The known state of one PSUM tensor.

    Attributes:
        pieces: the views of it that were written.
        is_placed: whether the kernel sets its address; else a compiler does.
        top, first_bank: the partition and the bank in which it starts, or 0.
    """

    __slots__ = ("_banks", "first_bank", "is_placed", "pieces", "top")

    def __init__(self, storage: Storage, placed: dict[int, Bank]) -> None:
        self.pieces = Pieces(storage)
        self.top, byte = storage.address or (0, 0)
        self.first_bank = byte // PSUM_BANK_BYTES
        self.is_placed = storage.address is not None
        self._banks: dict[int, Bank] = placed if self.is_placed else {}

    def piece_of(self, view: View) -> Piece:
        """Return the :class:`Piece` of a view that is about to be written for the first time."""
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


class PsumGroups(Observer):
    """The accumulation groups of one core.

    Args:
        level: the reaction to a group that is continued after another one has started.
        core: the observed core. Its generation determines to which elements ``accumulate=None`` adds and the meaning of
            ``is_transpose``.
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
        """Add the state of a tensor that is written for the first time; forget tensors that the kernel has dropped."""
        if len(self._tiles) >= self._most_kept:
            for number in [number for number, kept in self._kept.items() if kept() is None]:
                del self._tiles[number], self._kept[number]
            self._most_kept = max(_FEWEST_KEPT, 2 * len(self._tiles))
        tile = self._tiles[storage.number] = _Tile(storage, self._placed)
        self._kept[storage.number] = ref(storage)
        return tile

    def _overwritten(self, call: Issued, view: View) -> None:
        """Record that an instruction has overwritten elements with something other than a matmul's result.

        No matmul can add to such contents, except on trn3, where a matmul can add to any.
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
        """Return whether a matmul that may add does add to an element of ``piece``; report groups that had ended.

        Raises:
            PsumGroupError: at the level ``"error"``.
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
        """Report that ``call`` adds to elements of a group that ``start`` has ended.

        Raises:
            PsumGroupError: at the level ``"error"``.
        """
        storage, here = call.values[0].storage, kernel_location()
        name = f" (name={call.values[-1]!r})" if call.values[-1] else ""
        watched = self._core_of()
        assert watched is not None  # it has issued the call
        core = f" on {watched.name}" if watched.name else ""
        tensor = describe(storage.name, storage.shape, storage.dtype, storage.region)
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


def _described(piece: Piece, bank: Bank) -> str:
    """Describe a written piece in a message: its shape and type, and which bytes of a bank it occupies."""
    first = piece.indices[piece.banks.index(bank)] * PSUM_BANK_BYTES
    left, right = max(piece.left - first, 0), min(piece.right - first, PSUM_BANK_BYTES)
    return f"{list(piece.layout.shape)} {piece.dtype}, bytes {left} to {right}"
