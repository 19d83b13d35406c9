# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory of a plan: its own, and the arrays of the launch for which it runs.

An *arena* is a block of memory for the tiles of one core, which all plans share (:class:`Arenas`); :func:`placed`
divides it among the tiles of a plan. :class:`Memory` returns the arrays on which steps work; a :class:`Slot` stands for
an array that exists only while a launch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from ..terms.layout import Layout
from .stream import Bytes, PlaceholderStorage
from .work import Elementwise, Ref, Work

_FLOAT32 = np.dtype(np.float32)
# About the size of SBUF and PSUM of a core, plus the elements that the simulator keeps in a wider type than the device.
# The operating system provides the memory page by page as plans use it.
_ARENA_BYTES = 64 << 20
# Tiles and buffers begin at multiples of this number of bytes, a cache line.
_ALIGNMENT = 64


class Arenas:
    """The arena of each core, by the number of the core.

    All plans share the arenas, because only one plan runs at a time: a launch holds the lock while it uses the arenas.
    """

    def __init__(self) -> None:
        self._arenas: dict[int, Bytes] = {}
        self._lock = Lock()

    def of(self, core: int) -> Bytes:
        """Return the arena of core number ``core``."""
        arena = self._arenas.get(core)
        if arena is None:
            arena = self._arenas[core] = np.empty(_ARENA_BYTES, np.uint8)
        return arena

    def take(self, *, waits: bool) -> bool:
        """Lock the arenas for a launch that is about to be replayed, and return whether they are locked.

        Args:
            waits: whether to wait while a launch in another thread uses the arenas.
        """
        return self._lock.acquire(blocking=waits)

    def give_back(self) -> None:
        """Unlock the arenas after a replayed launch."""
        self._lock.release()


ARENAS = Arenas()


class _Piece:
    """The part of a core's arena that one plan uses, and further memory if the arena is too small.

    Attributes:
        own_bytes: the bytes that the plan allocated besides the arena.
    """

    def __init__(self, core: int) -> None:
        self._arena = ARENAS.of(core)
        self._top = 0
        self.own_bytes = 0

    def take(self, nbytes: int) -> Bytes:
        # The memory has arbitrary content; no other part of the plan uses it.
        start = -(-self._top // _ALIGNMENT) * _ALIGNMENT
        if start + nbytes > self._arena.nbytes:
            self.own_bytes += nbytes
            return np.empty(nbytes, np.uint8)
        self._top = start + nbytes
        return self._arena[start : self._top]


@dataclass(eq=False)
class _Life:
    """The lifetime of a tile: the numbers of the first and last group (:func:`.passes.grouped`) that accesses it."""

    storage: PlaceholderStorage
    first: int
    last: int


@dataclass(frozen=True)
class Placed:
    """The positions of a core's tiles in one block of memory.

    Attributes:
        offsets: the offset of each tile, in bytes.
        nbytes: the size of the block.
    """

    offsets: dict[PlaceholderStorage, int]
    nbytes: int


def _touched(work: Work) -> list[PlaceholderStorage]:
    # A result that is not stored does not count.
    is_dead = isinstance(work, Elementwise) and work.is_dst_dead
    writes = work.writes[1:] if is_dead else work.writes
    return [ref.storage for ref in (*work.reads, *writes)]


def _lives(groups: Sequence[Sequence[Work]], is_own: Callable[[PlaceholderStorage], bool]) -> list[_Life]:
    lives: dict[int, _Life] = {}
    for number, group in enumerate(groups):
        for work in group:
            for storage in _touched(work):
                life = lives.get(storage.number)
                if life is not None:
                    life.last = number
                elif is_own(storage):
                    lives[storage.number] = _Life(storage, number, number)
    return list(lives.values())


def placed(groups: Sequence[Sequence[Work]], is_own: Callable[[PlaceholderStorage], bool]) -> Placed:
    """Return positions for the tiles of a core in one block of memory; tiles with separate lifetimes may overlap.

    Args:
        groups: the groups of work of the core, in their order.
        is_own: a function that says whether a storage is a tile of this core.
    """
    offsets: dict[PlaceholderStorage, int] = {}
    alive: list[tuple[int, int, int]] = []  # last group, offset, end
    nbytes = 0
    for life in sorted(_lives(groups, is_own), key=lambda life: life.first):
        alive = [span for span in alive if span[0] >= life.first]
        size = -(-max(1, life.storage.nbytes) // _ALIGNMENT) * _ALIGNMENT
        offset = 0
        for _, start, end in sorted(alive, key=lambda span: span[1]):
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[life.storage] = offset
        alive.append((life.last, offset, offset + size))
        nbytes = max(nbytes, offset + size)
    return Placed(offsets, nbytes)


@dataclass(eq=False)
class Slot:
    """A stand-in, in a step, for an array that exists only while a launch runs: a view of an argument or of a result.

    Attributes:
        source: the number of the launch's array of which it is a view.
        shape: the shape of the view.
        numpy_type: the type of the view.
        offset: the offset of the view in the array, in bytes.
        strides: the strides of the view, in bytes.
        array: the view, while a launch runs; else None.
    """

    source: int
    shape: tuple[int, ...]
    numpy_type: np.dtype[Any]
    offset: int
    strides: tuple[int, ...]
    array: Any = None

    def bind(self, arrays: list[npt.NDArray[Any]]) -> None:
        """Set :attr:`array` to a view of one of ``arrays``, the arrays of a launch that begins."""
        self.array = np.ndarray(self.shape, self.numpy_type, arrays[self.source], self.offset, self.strides)


# An operand of a step: an array, or the slot that will have it.
Operand = Any


class Memory:
    """The memory of a plan.

    Args:
        sources: for each argument and result, by the number of its storage: the number of its array among the
            launch's arrays.
        cores: the number of cores.

    Attributes:
        slots: a slot for each view of the launch's arrays that the steps need.
    """

    def __init__(self, sources: dict[int, int], cores: int) -> None:
        self._sources = sources
        self._pieces = [_Piece(core) for core in range(cores)]
        self._places: dict[int, Bytes] = {}
        self._own: dict[int, Bytes] = {}
        self._by_view: dict[tuple[Any, ...], Slot] = {}
        self._scratch: dict[tuple[int, str], Bytes] = {}
        self.slots: list[Slot] = []

    @property
    def nbytes(self) -> int:
        """The bytes of memory that this plan alone uses, without the arenas."""
        own = sum(part.nbytes for part in self._own.values())
        return own + sum(piece.own_bytes for piece in self._pieces)

    def source_of(self, storage: PlaceholderStorage) -> int | None:
        """Return the number of the launch's array that holds a storage; None if the plan's own memory holds it."""
        return self._sources.get(storage.number)

    def place(self, core: int, placed: Placed) -> None:
        """Give each tile in ``placed`` its memory in the arena of core number ``core``."""
        memory = self._pieces[core].take(placed.nbytes)
        for storage, offset in placed.offsets.items():
            self._places[storage.number] = memory[offset : offset + storage.nbytes]

    def keep(self, storage: PlaceholderStorage, content: Bytes) -> None:
        """Use ``content``, which no launch changes, as the memory of ``storage``."""
        self._own[storage.number] = content

    def bytes_of(self, storage: PlaceholderStorage) -> Bytes:
        """Return the memory of a storage that is not an argument or a result; the first call may allocate it."""
        memory = self._places.get(storage.number)
        if memory is not None:
            return memory
        memory = self._own.get(storage.number)
        if memory is None:
            memory = self._own[storage.number] = np.empty(storage.nbytes, np.uint8)
        return memory

    def take(self, core: int, nbytes: int) -> Bytes:
        """Return ``nbytes`` bytes of memory for a core, with arbitrary content, that nothing else in the plan uses."""
        return self._pieces[core].take(nbytes)

    def array(self, ref: Ref, rows: slice | None = None, layout: Layout | None = None) -> Operand:
        """Return the elements of ``ref`` in the rows ``rows``.

        Args:
            ref: the elements.
            rows: the rows (indices of dimension 0); None for all.
            layout: another layout of the same elements; None for the layout of ``ref``.

        Returns:
            An array, or a :class:`Slot` if the elements are in an array of the launch.
        """
        shape, strides, offset = layout or ref.layout
        if rows is not None and shape:
            offset += rows.start * strides[0]
            shape = (rows.stop - rows.start, *shape[1:])
        width = ref.numpy_type.itemsize
        steps = tuple(stride * width for stride in strides)
        source = self.source_of(ref.storage)
        if 0 in shape:
            return np.empty(shape, ref.numpy_type)
        if source is None:
            return np.ndarray(shape, ref.numpy_type, self.bytes_of(ref.storage), offset * width, steps)
        key = source, shape, steps, offset * width, ref.numpy_type
        slot = self._by_view.get(key)
        if slot is None:
            slot = self._by_view[key] = Slot(source, shape, ref.numpy_type, offset * width, steps)
            self.slots.append(slot)
        return slot

    def scratch(self, core: int, role: str, shape: tuple[int, ...], numpy_type: np.dtype[Any] = _FLOAT32) -> Any:
        """Return a buffer for intermediate values; steps of a core with the same ``role`` share it."""
        needed = prod(shape) * numpy_type.itemsize
        buffer = self._scratch.get((core, role))
        if buffer is None or buffer.nbytes < needed:
            buffer = self._scratch[core, role] = self.take(core, needed)
        return buffer[:needed].view(numpy_type).reshape(shape)
