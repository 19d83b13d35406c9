"""Storage: the memory behind tensors. Tensors are views of it and never copy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..terms.dtypes import LOW_PRECISION, DType, float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4, float32
from ..terms.layout import Layout
from ..terms.regions import ON_CHIP, MemoryRegion
from .deferred import Deferred, Remainder
from .derived import Derived
from .pool import ON_CHIP_POOL, SMALLEST_POOLED_BYTES
from .written import WrittenMap

_NUMBERS = count()

# What an element that was never written reads as: NaN, and this in integer types (AWS's simulator uses it too).
INTEGER_SENTINEL = 4
# The same for each of the four elements of a packed type: NaN, and 4 in the bits of FP4, which has no NaN.
_PACKED_SENTINELS = {float8_e5m2_x4: 0x7E7E7E7E, float8_e4m3fn_x4: 0x7F7F7F7F, float4_e2m1fn_x4: 0x4444}

# Which blocks of rows and columns were written is remembered of larger storages, which elements of smaller ones.
_SMALLEST_IN_BLOCKS = 1 << 20

# As many remainders of deferred contents are kept; each is looked at whenever memory in HBM is overwritten.
_MOST_REMAINDERS = 2

# For those who look for unwritten elements: else memory that is used again shows what was right there a moment ago.
_POISON = 0xA5


class Storage:
    """A piece of SBUF, PSUM or HBM.

    With ``is_poisoned`` its memory, which is otherwise what the process last had there, starts as one odd byte.

    Attributes:
        name: for messages.
        region: where it is.
        dtype: the type that it was made with.
        numpy_dtype: the numpy type that holds an element; float32 for a low-precision type if ``precise_fp`` is off.
        shape: the shape that it was made with; on chip, dimension 0 counts partitions.
        partition_elements: elements of its type in one index of dimension 0.
        partition_bytes: bytes, as they are held here, of one index of dimension 0.
        nbytes: bytes that all of it takes, as it is held here.
        is_abstract: whether it has a shape and a type and no memory; see spec.py.
        written: which elements have a value.
        deferred: what the elements of a part of it are instead of what its memory holds; see deferred.py.
        derived: what holds of its elements until they change, or None; see derived.py.
        number: its own in this process; those who watch a core keep what they know of storages by their numbers.
        scope: the dynamic loops in whose bodies the kernel made it; see loops.py.
        address: where the kernel places it itself: on chip first partition and first byte in a partition, in HBM the
            first byte; or None.
    """

    __slots__ = (
        "__weakref__",
        "_accumulated",
        "_bytes",
        "_describe_index",
        "_is_pooled",
        "_remainders",
        "address",
        "deferred",
        "derived",
        "dtype",
        "is_abstract",
        "is_read_only",
        "name",
        "nbytes",
        "number",
        "numpy_dtype",
        "partition_bytes",
        "partition_elements",
        "region",
        "scope",
        "shape",
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
        scope: tuple[int, ...] = (),
        address: tuple[int, ...] | None = None,
    ) -> None:
        self.number = next(_NUMBERS)
        self.name = name
        self.region = region
        self.dtype = dtype
        self.shape = shape
        self.numpy_dtype = dtype.numpy if precise_fp or dtype not in LOW_PRECISION else float32.numpy
        width = self.numpy_dtype.itemsize
        self.partition_elements = prod(shape[1:])
        self.partition_bytes = self.partition_elements * width
        self.nbytes = prod(shape) * width
        self.is_abstract = is_abstract
        if is_abstract:
            self._is_pooled = False
            self._bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        elif data is None:
            self._is_pooled = self.nbytes >= SMALLEST_POOLED_BYTES and region in ON_CHIP
            self._bytes = ON_CHIP_POOL.take(self.nbytes) if self._is_pooled else np.empty(self.nbytes, np.uint8)
        else:
            self._is_pooled = False
            self._bytes = data.reshape(-1).view(np.uint8)
        if is_poisoned:
            self._bytes.fill(_POISON)
        self.is_read_only = data is not None and not self._bytes.flags.writeable
        self.written = self._make_map(data is not None or is_abstract)
        self._accumulated: WrittenMap | None = None
        self.deferred: Deferred | None = None
        # Of the contents before it, the oldest first; empty where nothing is deferred.
        self._remainders: list[Remainder] = []
        self.derived: Derived | None = None
        self._describe_index: Callable[[int], str] | None = None
        self.scope = scope
        self.address = address

    def _make_map(self, starts_full: bool) -> WrittenMap:
        is_large = self.nbytes >= _SMALLEST_IN_BLOCKS
        return WrittenMap(self.nbytes, self.numpy_dtype.itemsize, starts_full, self.partition_bytes if is_large else 0)

    def __del__(self) -> None:
        if getattr(self, "_is_pooled", False):
            self.deferred = None  # it may refer to the memory
            self._remainders.clear()
            ON_CHIP_POOL.give(self._bytes)

    @property
    def accumulated(self) -> WrittenMap:
        """The elements that hold a matmul result: a matmul may add to these (see engines/tensor/psum.py)."""
        if self._accumulated is None:
            self._accumulated = self._make_map(self.is_abstract)
        return self._accumulated

    @property
    def is_widened(self) -> bool:
        """Whether elements are held in a wider type than the device's, because ``precise_fp`` is off."""
        return self.numpy_dtype.itemsize != self.dtype.itemsize

    def numpy_type_of(self, dtype: DType) -> np.dtype[Any]:
        """The numpy type with which a view of type ``dtype`` reads this storage."""
        return self.numpy_dtype if dtype == self.dtype else dtype.numpy

    def width_of(self, dtype: DType) -> int:
        """Bytes of an element of a view of type ``dtype``, as it is held here."""
        return self.numpy_dtype.itemsize if dtype == self.dtype else dtype.itemsize

    def elements_of(self, dtype: DType) -> int:
        """Elements of type ``dtype`` that the whole storage holds."""
        return self.nbytes // self.width_of(dtype)

    def explain_indices(self, describe: Callable[[int], str]) -> None:
        """Let an error about an index in a partition of this storage say first what ``describe(partition)`` returns."""
        self._describe_index = describe

    def explanation(self, partition: int) -> str:
        """What the index in a partition means, as far as the kernel has said it, and a colon; or nothing."""
        return "" if self._describe_index is None else f"{self._describe_index(partition)}: "

    def count_unwritten(self, layout: Layout, dtype: DType, among: npt.NDArray[np.bool_] | None = None) -> int:
        """How many elements of ``layout``, or of those ``among`` them, were never written, wholly or in part."""
        if self.written.is_written(layout, self.width_of(dtype)):
            return 0
        return int(self.unwritten(layout, dtype, among).sum())

    def unwritten(
        self, layout: Layout, dtype: DType, among: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Which elements of ``layout``, or of those ``among`` them, were never written, wholly or in part.

        Only meaningful while the storage is not full.
        """
        unwritten = np.logical_not(np.all(self.written.mask_of(layout, self.width_of(dtype)), axis=-1))
        return np.asarray(unwritten if among is None else unwritten & among)

    def array(self, layout: Layout, numpy_type: np.dtype[Any]) -> npt.NDArray[Any]:
        """A numpy view of ``layout``, whose strides and offset count elements of ``numpy_type``. Never copies."""
        if self.deferred is not None:
            self.settle()
        return self.memory(layout, numpy_type)

    def defer(self, content: Deferred) -> None:
        """All elements of a view have a new content, which is made when somebody reads it.

        So is what it leaves of the content before: often the next one covers that, as where chunks of two widths take
        turns in a buffer.
        """
        before = self.deferred
        if before is not None:
            self._remainders = [each for each in self._remainders if not each.is_hidden_by(content)]
            self._remainders += [Remainder(before, block) for block in before.outside(content)]
            while len(self._remainders) > _MOST_REMAINDERS:
                self._make(*self._remainders.pop(0))
        self.deferred = content

    def drop_deferred(self) -> None:
        """All elements of the deferred content are about to be overwritten: it is not made any more."""
        self._make_remainders()
        self.deferred = None

    def settle(self) -> None:
        """Make the deferred content, if there is one."""
        self._make_remainders()
        content, self.deferred = self.deferred, None
        if content is not None:
            self._make(content, content.everything)

    def derive(self) -> Derived:
        """Where to keep what holds of its elements until they change."""
        if self.derived is None:
            self.derived = Derived(self.nbytes)
        return self.derived

    def change(self) -> None:
        """An instruction is about to write some of its elements: what is to be made of them is made now."""
        if self.derived is None:
            return
        for reader in self.derived.readers:
            if reader.waits_for(self):
                reader.settle()
        self.derived = None  # with the copies that were made of the elements just now

    def waits_for(self, operand: object) -> bool:
        """Whether something deferred is to be made of the elements of ``operand``."""
        if self.deferred is None:
            return False
        contents = [self.deferred, *(each.content for each in self._remainders)]
        return any(operand in content.operands for content in contents)

    @property
    def deferred_sources(self) -> list[npt.NDArray[Any]]:
        """The memory from which something deferred is to be made, which must not change before."""
        if self.deferred is None:
            return []
        return [self.deferred.source, *(each.content.source for each in self._remainders)]

    def _make_remainders(self) -> None:
        """In the order of their age: what is newer overwrites what is older."""
        remainders, self._remainders = self._remainders, []
        for each in remainders:
            self._make(each.content, each.block)

    def _make(self, content: Deferred, block: tuple[slice, slice]) -> None:
        """Make a block of a deferred content."""
        matrix = self.memory(content.matrix, self.numpy_type_of(content.dtype))
        content.write(matrix[block], *block)

    def memory(self, layout: Layout, numpy_type: np.dtype[Any]) -> npt.NDArray[Any]:
        """As :meth:`array`, whatever is deferred."""
        width = numpy_type.itemsize
        if 0 in layout.shape:  # its offset may lie behind the end
            return np.empty(layout.shape, numpy_type)
        # By position: numpy takes twice as long to find its arguments by keyword.
        shape, strides, offset = layout
        if len(strides) == 2:  # most are
            return np.ndarray(shape, numpy_type, self._bytes, offset * width, (strides[0] * width, strides[1] * width))
        return np.ndarray(shape, numpy_type, self._bytes, offset * width, [stride * width for stride in strides])

    def fill_unwritten(self, layout: Layout, dtype: DType) -> None:
        """Give the unwritten elements of ``layout`` the sentinel value, without marking them as written.

        An element that was written in part, through a view of a narrower type, gets the sentinel's bits in the other
        part.
        """
        numpy_type = self.numpy_type_of(dtype)
        unwritten = ~self.written.mask_of(layout, numpy_type.itemsize)
        units = unwritten.shape[-1]
        unit_strides = (*(stride * units for stride in layout.strides), 1)
        unit_layout = Layout((*layout.shape, units), unit_strides, layout.offset * units)
        bits = np.full(1, sentinel(dtype), numpy_type).view(f"u{numpy_type.itemsize // units}")
        np.copyto(self.array(unit_layout, bits.dtype), bits, where=unwritten)


def sentinel(dtype: DType) -> float:
    """What an element of ``dtype`` that was never written reads as."""
    if dtype.is_packed:
        return _PACKED_SENTINELS[dtype]
    return INTEGER_SENTINEL if dtype.is_integer else np.nan
