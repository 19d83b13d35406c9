# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Storage``: the memory behind tensors. Tensors are views of it and never copy.

An element that was never written reads as :func:`sentinel`. Large on-chip storages take their memory from a
:class:`BytePool`, so that not every launch allocates new pages. :class:`DeferredLoads` is the set of a core's storages
with deferred contents from HBM; :func:`may_share` tells which of these contents must be computed before memory in HBM
is overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ..terms.descriptions import describe_tensor
from ..terms.dtypes import LOW_PRECISION, DType, float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4, float32
from ..terms.enums import ON_CHIP, MemoryRegion
from ..terms.layout import Layout, dense_form
from ..terms.scopes import Scope
from ..terms.spec import DataNeeded, ValuesWanted
from .deferred import Deferred, Derived, Part, Rectangle, rectangle_of
from .written import WrittenMap

_NUMBERS = count()

# What an element that was never written reads as: NaN, and this in integer types (AWS's simulator uses it too).
INTEGER_SENTINEL = 4
# The same for each of the four elements of a packed type: NaN, and 4 in the bits of FP4, which has no NaN.
_PACKED_SENTINELS = {float8_e5m2_x4: 0x7E7E7E7E, float8_e4m3fn_x4: 0x7F7F7F7F, float4_e2m1fn_x4: 0x4444}

# Which blocks of rows and columns were written is remembered of larger storages, which elements of smaller ones.
_SMALLEST_IN_BLOCKS = 1 << 20

# As many deferred contents are kept; each is looked at whenever memory in HBM is overwritten.
_MOST_PARTS = 16

# Fills memory whose unwritten elements are checked: reused memory would show values that were right a moment ago.
_POISON = 0xA5

# Smaller arrays cost little to allocate.
_SMALLEST_POOLED_BYTES = 1 << 20
# About the SBUF of two cores: more than that is never alive at once in a kernel that fits the device.
_LARGEST_POOL_BYTES = 64 << 20
# References to an array that only its storage holds: the storage's own, and the argument of getrefcount.
_UNSHARED_REFERENCES = 3


class BytePool:
    """A pool of unused byte arrays for reuse, by size."""

    def __init__(self) -> None:
        self._free: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._total = 0
        self._lock = Lock()

    @property
    def kept_bytes(self) -> int:
        """The number of bytes of all arrays in the pool."""
        return self._total

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return an array of ``nbytes`` bytes with arbitrary content, from the pool if it has one."""
        with self._lock:
            arrays = self._free.get(nbytes)
            if arrays:
                self._total -= nbytes
                return arrays.pop()
        return np.empty(nbytes, np.uint8)

    def give(self, array: npt.NDArray[Any]) -> None:
        """Put an array into the pool, unless it is small, the pool is full or the array is still referenced
        elsewhere.
        """
        if array.size < _SMALLEST_POOLED_BYTES or sys.getrefcount(array) > _UNSHARED_REFERENCES:
            return
        with self._lock:
            if self._total + array.size <= _LARGEST_POOL_BYTES:
                self._free.setdefault(array.size, []).append(array)
                self._total += array.size


_ON_CHIP_POOL = BytePool()


def sentinel(dtype: DType) -> float:
    """Return the value that an element of ``dtype`` has if it was never written."""
    if dtype.is_packed:
        return _PACKED_SENTINELS[dtype]
    return INTEGER_SENTINEL if dtype.is_integer else np.nan


class Storage:
    """The memory of a tensor in SBUF, PSUM or HBM.

    With ``is_poisoned`` every byte starts with the same odd value; otherwise the memory starts with arbitrary values.

    Attributes:
        name: the name in messages.
        region: the memory region.
        dtype: the type with which the storage was made.
        numpy_dtype: the numpy type that holds an element; float32 for a low-precision type if ``precise_fp`` is off.
        shape: the shape with which the storage was made; on chip, dimension 0 counts partitions.
        layout: the layout of the whole storage, in that shape.
        partition_elements: the number of elements of ``dtype`` in one index of dimension 0.
        partition_bytes: the bytes of one index of dimension 0, in ``numpy_dtype``.
        nbytes: the bytes of the whole storage, in ``numpy_dtype``.
        is_abstract: whether the storage has a shape and a type but no memory; see terms/spec.py.
        written: the record of the elements that have a value.
        parts: the deferred contents of blocks that do not overlap, the oldest first; see deferred.py.
        derived: the values derived from the elements until they change, or None; see deferred.py.
        is_read_only: whether the memory is that of an array that must not be written.
        is_changed: whether the storage is in HBM and an instruction has written elements of it.
        number: a number that is unique in this process; observers keep their data about storages by this number.
        allocation: the number of the memory: ``number``, unless arguments of a launch share memory.
        start: the byte of that memory at which the storage begins.
        scope: the scope to which the storage belongs. If both cores make it in the body of a loop, each core has its
            own scope, see ``Core.scope_of``.
        address: the address if the kernel gives one: on chip the first partition and the first byte of a partition, in
            HBM the first byte; otherwise None.
        origin: in a launch with ``skip_arithmetic``, the argument or the line of the kernel from which the storage
            comes; see ``LeftOut`` in machine/left_out.py. None in other launches.
    """

    __slots__ = (
        "__weakref__",
        "_accumulated",
        "_bytes",
        "_describe_index",
        "_is_pooled",
        "address",
        "allocation",
        "derived",
        "dtype",
        "is_abstract",
        "is_changed",
        "is_read_only",
        "layout",
        "name",
        "nbytes",
        "number",
        "numpy_dtype",
        "origin",
        "partition_bytes",
        "partition_elements",
        "parts",
        "region",
        "scope",
        "shape",
        "start",
        "written",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        region: MemoryRegion,
        name: str,
        *,
        precise_fp: bool = True,
        data: npt.NDArray[Any] | None = None,
        is_abstract: bool = False,
        is_poisoned: bool = False,
        scope: Scope = (),
        address: tuple[int, ...] | None = None,
        origin: Hashable = None,
    ) -> None:
        self.number = self.allocation = next(_NUMBERS)
        self.start = 0
        self.name = name
        self.region = region
        self.dtype = dtype
        self.shape = shape
        self.numpy_dtype = dtype.numpy if precise_fp or dtype not in LOW_PRECISION else float32.numpy
        width = self.numpy_dtype.itemsize
        self.layout, size, self.partition_elements = dense_form(shape)
        self.partition_bytes = self.partition_elements * width
        self.nbytes = nbytes = size * width
        self.is_abstract = is_abstract
        self.is_changed = False
        self.origin = origin
        if is_abstract:
            self._is_pooled = False
            self._bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        elif data is None:
            self._is_pooled = nbytes >= _SMALLEST_POOLED_BYTES and region in ON_CHIP
            self._bytes = _ON_CHIP_POOL.take(nbytes) if self._is_pooled else np.empty(nbytes, np.uint8)
        else:
            self._is_pooled = False
            self._bytes = data.reshape(-1).view(np.uint8)
        if is_poisoned:
            self._bytes.fill(_POISON)
        self.is_read_only = data is not None and not self._bytes.flags.writeable
        self.written = self._make_map(data is not None or self.is_shape_only)
        self._accumulated: WrittenMap | None = None
        self.parts: list[Part] = []
        self.derived: Derived | None = None
        self._describe_index: Callable[[int], str] | None = None
        self.scope = scope
        self.address = address

    def _make_map(self, starts_full: bool) -> WrittenMap:
        is_large = self.nbytes >= _SMALLEST_IN_BLOCKS
        return WrittenMap(self.nbytes, self.numpy_dtype.itemsize, starts_full, self.partition_bytes if is_large else 0)

    def __del__(self) -> None:
        if getattr(self, "_is_pooled", False):
            self.parts = []  # they may refer to the memory
            _ON_CHIP_POOL.give(self._bytes)

    @property
    def accumulated(self) -> WrittenMap:
        """The map of the elements that hold a matmul result; a later matmul may add to them."""
        if self._accumulated is None:
            self._accumulated = self._make_map(self.is_shape_only)
        return self._accumulated

    @property
    def is_shape_only(self) -> bool:
        """Whether the values of the storage will never be known, because the launch has shapes only."""
        return self.is_abstract and self.origin is None

    def need_values(self, what: object) -> None:
        """Check that the launch has values, because an address or a check depends on the elements of ``what``, a view.

        Raises:
            ValuesWanted: the launch did not compute these values.
            DataNeeded: the launch is on shapes.
        """
        if self.is_abstract:
            raise DataNeeded(repr(what)) if self.origin is None else ValuesWanted(self.origin)

    @property
    def is_widened(self) -> bool:
        """Whether elements are held in a wider type than the device's, because ``precise_fp`` is off."""
        return self.numpy_dtype.itemsize != self.dtype.itemsize

    def numpy_type_of(self, dtype: DType) -> np.dtype[Any]:
        """Return the numpy type with which a view of type ``dtype`` reads this storage."""
        return self.numpy_dtype if dtype == self.dtype else dtype.numpy

    def width_of(self, dtype: DType) -> int:
        """Return the bytes that an element of a view of type ``dtype`` takes in this storage's memory."""
        return self.numpy_dtype.itemsize if dtype == self.dtype else dtype.itemsize

    def elements_of(self, dtype: DType) -> int:
        """Return the number of elements of type ``dtype`` that the whole storage holds."""
        return self.nbytes // self.width_of(dtype)

    def explain_indices(self, describe: Callable[[int], str]) -> None:
        """Make errors about an index in a partition of this storage begin with the text ``describe(partition)``."""
        self._describe_index = describe

    def explanation(self, partition: int) -> str:
        """Return the text that :meth:`explain_indices` has set for a partition, with a colon; empty if none was set."""
        return "" if self._describe_index is None else f"{self._describe_index(partition)}: "

    def index_of(self, byte: int) -> list[int]:
        """Return the indices of the element that contains a byte of the storage's memory."""
        return [int(index) for index in np.unravel_index(byte // self.numpy_dtype.itemsize, self.shape)]

    def count_unwritten(self, layout: Layout, dtype: DType, among: npt.NDArray[np.bool_] | None = None) -> int:
        """Return the number of elements of ``layout`` with an unwritten byte.

        ``among`` is a mask of the elements to count; None for all.
        """
        if self.written.is_written(layout, self.width_of(dtype)):
            return 0
        return int(self.unwritten(layout, dtype, among).sum())

    def unwritten(
        self, layout: Layout, dtype: DType, among: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the elements of ``layout`` with an unwritten byte.

        ``among`` is a mask of the elements to consider; None for all. Call this only while some elements of the storage
        are unwritten.
        """
        unwritten = np.logical_not(np.all(self.written.mask_of(layout, self.width_of(dtype)), axis=-1))
        return np.asarray(unwritten if among is None else unwritten & among)

    def fill_unwritten(self, layout: Layout, dtype: DType) -> None:
        """Give the unwritten elements of ``layout`` the sentinel value, without marking them as written.

        If a view of a narrower type has written some bytes of an element, only the other bytes get the sentinel's bits.
        """
        if self.is_abstract:
            return
        numpy_type = self.numpy_type_of(dtype)
        unwritten = ~self.written.mask_of(layout, numpy_type.itemsize)
        units = unwritten.shape[-1]
        unit_strides = (*(stride * units for stride in layout.strides), 1)
        unit_layout = Layout((*layout.shape, units), unit_strides, layout.offset * units)
        bits = np.full(1, sentinel(dtype), numpy_type).view(f"u{numpy_type.itemsize // units}")
        np.copyto(self.array(unit_layout, bits.dtype), bits, where=unwritten)

    def array(self, layout: Layout, numpy_type: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the elements of ``layout`` as a numpy array without a copy, after computing their deferred contents.

        Strides and offset of ``layout`` count elements of ``numpy_type``.
        """
        if self.parts:
            self.settle(rectangle_of(layout, numpy_type.itemsize, self.partition_bytes))
        return self.memory(layout, numpy_type)

    def memory(self, layout: Layout, numpy_type: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the array that :meth:`array` returns, without computing deferred contents."""
        if self.is_abstract:
            self._must_have_memory()
        width = numpy_type.itemsize
        if 0 in layout.shape:  # its offset may lie behind the end
            return np.empty(layout.shape, numpy_type)
        # By position: numpy takes twice as long to find its arguments by keyword.
        shape, strides, offset = layout
        if len(strides) == 2:  # most are
            return np.ndarray(shape, numpy_type, self._bytes, offset * width, (strides[0] * width, strides[1] * width))
        return np.ndarray(shape, numpy_type, self._bytes, offset * width, [stride * width for stride in strides])

    def rows_of(self, block: Rectangle, dtype: DType) -> npt.NDArray[Any]:
        """Return the memory of ``block`` as a matrix of elements of ``dtype``, without computing deferred contents."""
        width = self.width_of(dtype)
        shape = (block.bottom - block.top, (block.right - block.left) // width)
        offset = (block.top * self.partition_bytes + block.left) // width
        return self.memory(Layout(shape, (self.partition_bytes // width, 1), offset), self.numpy_type_of(dtype))

    def block_of(self, layout: Layout, dtype: DType) -> Rectangle | None:
        """Return the block of partitions and bytes that a view covers; None for a view with gaps."""
        return rectangle_of(layout, self.width_of(dtype), self.partition_bytes)

    def defer(self, content: Deferred) -> None:
        """Give all elements of a block a new content, which is computed when an instruction reads it.

        The parts of earlier contents that lie outside the block stay deferred, because the next content often covers
        them, for instance if chunks of two widths alternate in a buffer.
        """
        self._must_have_memory()
        place = self.block_of(content.layout, content.dtype)
        if place is None:
            raise ValueError("Storage.defer: the content of a view with gaps cannot be deferred; make it at once")
        self._forget(place)
        self.parts.append(Part(content, place, place, self.width_of(content.dtype)))
        while len(self.parts) > _MOST_PARTS:
            self._make(self.parts[0])

    def overwrite(self, layout: Layout, dtype: DType) -> None:
        """Drop the deferred contents of a view whose elements the caller then overwrites."""
        block = self.block_of(layout, dtype)
        if block is None or any(part.content.may_grow for part in self.parts):
            self.settle()
        else:
            self._forget(block)

    def settle(self, block: Rectangle | None = None) -> None:
        """Compute the deferred contents that share a byte with ``block``; all deferred contents if ``block`` is
        None.
        """
        for part in [*self.parts]:
            if block is None or part.content.may_grow or part.block.meets(block):
                self._make(part)

    def part_with(self, block: Rectangle, dtype: DType) -> Part | None:
        """Return the deferred part of type ``dtype`` that covers all of ``block``; None if there is none."""
        for part in self.parts:
            if part.block.contains(block) and part.content.dtype == dtype and part.divides(block):
                return part
        return None

    def derive(self) -> Derived:
        """Return the object that holds the values derived from the storage's elements; the first call creates it."""
        if self.derived is None:
            self.derived = Derived(self.nbytes)
        return self.derived

    def change(self) -> None:
        """Prepare for a write to elements of this storage.

        Deferred contents of other storages that depend on its elements are computed, and float32 copies are dropped.
        """
        if self.derived is None:
            return
        for reader in self.derived.readers:
            if reader.waits_for(self):
                reader.settle()
        self.derived = None  # with the copies that were made of the elements just now

    def waits_for(self, operand: object) -> bool:
        """Return whether a deferred content of this storage is computed from the elements of the storage
        ``operand``.
        """
        return any(operand in part.content.operands for part in self.parts)

    @property
    def deferred_sources(self) -> list[npt.NDArray[Any]]:
        """The memory in HBM from which the deferred contents are computed. Call :meth:`settle` before it changes."""
        return [source for part in self.parts for source in part.sources_within(part.block)]

    def _forget(self, block: Rectangle) -> None:
        """Drop the deferred contents within ``block``.

        If an edge of the block cuts an element of a deferred content, that content is computed instead.
        """
        for part in [*self.parts]:
            left = part.block.outside(block)
            if all(map(part.divides, left)):
                place = self._place_of(part)
                if place is not None:
                    self.parts[place : place + 1] = [part._replace(block=block_left) for block_left in left]
            else:
                self._make(part)

    def _make(self, part: Part) -> None:
        """Compute the elements of ``part``, one of ``parts``, and remove it from ``parts``.

        Deferred contents of other storages that read the old memory are computed first. One of them may already compute
        ``part``; then nothing remains to be done.
        """
        content = part.content
        if content.reads_itself:
            self.change()  # the memory, of which others may wait to be made
        place = self._place_of(part)
        if place is not None:
            del self.parts[place]
            content.write(self.rows_of(part.block, content.dtype), *part.within(part.block))

    def _place_of(self, part: Part) -> int | None:
        return next((place for place, candidate in enumerate(self.parts) if candidate is part), None)

    def _must_have_memory(self) -> None:
        if self.is_abstract:
            raise DataNeeded(describe_tensor(self.name, self.shape, self.dtype, self.region), self.origin)


# Where numpy has it from 1.25 on, and where it had it before.
_TooHardError = getattr(np, "exceptions", np).TooHardError
# The work that np.shares_memory may spend on a pair of arrays; two blocks of a matrix take less than a microsecond.
_MOST_SHARING_WORK = 10_000
# Stubs of some releases of numpy know two values of max_work alone.
_SHARES: Callable[..., bool] = np.shares_memory


def may_share(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    """Return whether two arrays share memory; True also if the answer would take long."""
    try:
        return _SHARES(first, second, max_work=_MOST_SHARING_WORK)
    except _TooHardError:
        return True


class DeferredLoads:
    """The tiles of one core that may have deferred contents from HBM; see deferred.py."""

    def __init__(self) -> None:
        self._storages: WeakSet[Storage] = WeakSet()

    def add(self, storage: Storage) -> None:
        """Add a tile; only a weak reference to it is kept."""
        self._storages.add(storage)

    def settle_readers(self, memory: npt.NDArray[Any], but: Storage | None = None) -> None:
        """Compute the deferred contents of the tiles that depend on ``memory``.

        Args:
            memory: the memory, which the caller then overwrites.
            but: a storage whose contents stay deferred.
        """
        for storage in self._storages:
            if storage is not but and any(may_share(source, memory) for source in storage.deferred_sources):
                storage.settle()

    def settle(self) -> None:
        """Compute all deferred contents of all tiles."""
        for storage in self._storages:
            storage.settle()
