# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``View``, the base of every tensor: a layout (shape, strides, offset) of a storage, and a type.

- :class:`View`: the base class. ``NkiTensor`` in ``tensor.py`` adds the views that kernels make, by indexing
  (``indexed_views.py``), by reshaping and by an access pattern (``reshaped_views.py``).
- :class:`Indirect`: the *dynamic address* of a view, which is read at run time.
- :func:`partition_in_storage`, :func:`placed_partition`, :func:`assumed_partition`: the partition in which a view on
  chip starts. :func:`allowed_starts`, :func:`possible_starts`: the partitions in which it may start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..memory.storage import Storage
from ..terms.descriptions import describe_tensor, first_and_last
from ..terms.dtypes import DType
from ..terms.enums import ON_CHIP, MemoryRegion
from ..terms.errors import NkiValidationError, OutOfRangeError, UninitializedReadError
from ..terms.layout import Layout, is_dense
from ..terms.nki_object import NKIObject
from ..terms.spec import DataNeeded
from .device_integers import DeviceInteger

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from 3.11 on


# Members of an Enum are looked up by a Python function before 3.12.
_PSUM = MemoryRegion.psum


class View(NKIObject):
    """The base of ``NkiTensor``: its attributes, and methods that return other views or properties of the layout.

    Attributes:
        shape: the sizes of the dimensions; dimension 0 of a view on chip counts partitions.
        strides: for each dimension the distance of neighbours in the storage, in elements of ``dtype``.
        offset: the position of the first element in the storage, in elements of ``dtype``.
        layout: the shape, strides and offset together.
        dtype: the type by which the bytes of the storage are read; it may differ from the type of the storage.
        storage: the memory of the view.
        buffer: the memory region of the storage.
        name: the name of the tensor in messages; empty if it has none.
        is_whole: True if it is known that the view is all of the storage.
        indirect_access: the dynamic address of the view, or None.
        may_be_accessed: True if it is known that a compute engine can access the view; see isa/checks.py.
        size: the number of elements.
        free_size: the number of elements for each index of dimension 0; on chip, elements per partition.
    """

    __slots__ = (
        "_array",
        "_flat_rows",
        "buffer",
        "dtype",
        "free_size",
        "indirect_access",
        "is_whole",
        "layout",
        "may_be_accessed",
        "name",
        "offset",
        "shape",
        "size",
        "storage",
        "strides",
    )

    def _set(
        self,
        layout: Layout,
        dtype: DType,
        storage: Storage,
        buffer: MemoryRegion,
        name: str,
        indirect: Indirect | None,
    ) -> None:
        # Worked out once: every instruction asks for them of every operand.
        self.layout = layout
        shape, self.strides, self.offset = layout
        self.shape = shape
        self.free_size = free_size = shape[1] if len(shape) == 2 else prod(shape[1:])
        self.size = shape[0] * free_size if shape else 1
        self.dtype = dtype
        self.storage = storage
        self.buffer = buffer
        self.name = name
        self.indirect_access = indirect
        self._array: npt.NDArray[Any] | None = None
        self._flat_rows: npt.NDArray[Any] | None = None
        self.is_whole = False
        # The layout never changes, so that it is checked once.
        self.may_be_accessed = False

    def _with(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int | None = None,
        dtype: DType | None = None,
        indirect: Indirect | None = None,
    ) -> Self:
        """Return another view of the same storage; an argument that is None keeps the property of this view."""
        view = self.__class__.__new__(self.__class__)
        layout = Layout(tuple(shape), tuple(strides), self.offset if offset is None else offset)
        view._set(layout, dtype or self.dtype, self.storage, self.buffer, self.name, indirect or self.indirect_access)
        return view

    def with_layout(self, layout: Layout) -> Self:
        """Return a view of the same storage with another layout and a static address. For the simulator only."""
        view = self.__class__.__new__(self.__class__)
        view._set(layout, self.dtype, self.storage, self.buffer, self.name, None)
        return view

    def with_indirect(self, indirect: Indirect) -> Self:
        """Return this view with a dynamic address. For the simulator only; kernels use ``ap`` and ``ds``."""
        return self._with(self.shape, self.strides, indirect=indirect)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def array(self) -> npt.NDArray[Any]:
        """The elements as a numpy view of the storage, for the simulator, tests and debuggers.

        Raises:
            NkiValidationError: the view has a dynamic address, which only an instruction reads.
        """
        if self.indirect_access is not None:
            raise NkiValidationError(f"{self} is an indirect view: only an instruction can read it")
        storage = self.storage
        if storage.parts:
            storage.settle(storage.block_of(self.layout, self.dtype))
        array = self._array
        if array is None:
            if storage.is_abstract:
                raise DataNeeded(repr(self), storage.origin)
            dtype = self.dtype
            numpy_type = storage.numpy_dtype if dtype is storage.dtype else storage.numpy_type_of(dtype)
            array = self._array = storage.memory(self.layout, numpy_type)
        return array

    def forget_array(self) -> None:
        """Drop the cached numpy view, because the storage now has other memory."""
        self._array = self._flat_rows = None

    @property
    def flat_rows(self) -> npt.NDArray[Any] | None:
        """The elements as a numpy view (partitions, elements per partition); None if a partition is not contiguous."""
        storage = self.storage
        if storage.parts:
            storage.settle(storage.block_of(self.layout, self.dtype))
        rows = self._flat_rows
        if rows is None and self.is_contiguous():
            array = self.array
            rows = array if len(self.shape) == 2 else array.reshape(self.shape[0], self.free_size)
            self._flat_rows = rows
        return rows

    @property
    def rows_to_read(self) -> npt.NDArray[Any] | None:
        """The elements as in :attr:`flat_rows`, for reading only.

        If the tile is the destination of a deferred load (see memory/deferred.py), the result is the memory of the
        load's source, and the load stays deferred.
        """
        storage = self.storage
        if storage.parts and self.indirect_access is None:
            block = storage.block_of(self.layout, self.dtype)
            part = None if block is None else storage.part_with(block, self.dtype)
            if block is not None and part is not None and part.content.is_copy:
                return part.sources_within(block)[0]
        return self.flat_rows

    def allow_access(self) -> None:
        """Record that a compute engine can access this view, so that the check is not repeated."""
        self.may_be_accessed = True

    def mark_written(self, is_matmul: bool = False) -> None:
        """Record that an instruction has written all elements.

        In PSUM, ``is_matmul`` tells whether a later matmul may add to them.
        """
        storage = self.storage
        written = storage.written
        if not written.is_full:
            if self.is_whole:
                written.mark_all()
            else:
                written.mark(self.layout, storage.width_of(self.dtype))
        if self.buffer is _PSUM and not is_matmul:
            storage.accumulated.clear(self.layout, storage.width_of(self.dtype))

    def covers_storage(self) -> bool:
        """Return whether the view contains every element of its storage."""
        if self.is_whole:
            return True
        is_large_enough = self.size == self.storage.elements_of(self.dtype)
        return is_large_enough and self.indirect_access is None and is_dense(self.shape, self.strides)

    def is_on_chip(self) -> bool:
        return self.buffer in ON_CHIP

    def is_contiguous(self) -> bool:
        """Return whether the view is dense in row-major order; on chip, within each partition."""
        if self.buffer not in ON_CHIP:
            return is_dense(self.shape, self.strides)
        if len(self.shape) == 2:  # most are
            return self.shape[1] == 1 or self.strides[1] == 1
        return is_dense(self.shape[1:], self.strides[1:])

    def is_indirect(self) -> bool:
        """Return whether the address depends on a tensor, a register or a scalar that is read at run time."""
        return self.indirect_access is not None

    def get_pattern(self) -> list[list[int]]:
        """Return the access pattern ``[[stride, count], ...]``, in the form that :meth:`NkiTensor.ap` takes."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def __repr__(self) -> str:
        """Return one line with name, shape, type and memory, without values."""
        return describe_tensor(self.name, self.shape, self.dtype, self.buffer)

    def __format__(self, spec: str) -> str:
        """Return the line of ``repr``: f-strings with tensors are mostly error messages."""
        return format(repr(self), spec)

    def _check_dim(self, method: str, dim: int) -> int:
        """Return the dimension ``dim``, which may be negative, as a number from 0; ``method`` is the caller's name in
        errors.
        """
        if type(dim) is int and 0 <= dim < len(self.shape):  # most are
            return dim
        if not isinstance(dim, int | np.integer) or not -self.ndim <= dim < self.ndim:
            raise OutOfRangeError(f"NkiTensor.{method}: dim must be in [0, {self.ndim}) of {self}, got {dim!r}")
        return int(dim) % self.ndim

    def _refuse_second_indirection(self, method: str) -> None:
        if self.indirect_access is not None:
            raise NkiValidationError(f"NkiTensor.{method}: {self} is indirect already; a view has one dynamic index")

    def _keeps_first_dimension(self) -> bool:
        """Return whether dimension 0 must stay first and unchanged, because it counts partitions or rows of a vector
        offset.
        """
        return self.is_on_chip() or (self.indirect_access is not None and self.indirect_access.dim == 0)


@dataclass(frozen=True)
class Indirect:
    """The dynamic address of a view. The index is read when an instruction uses the view, as on the device.

    Attributes:
        kind: ``"scalar"``: one index for the whole view; ``"vector"``: one index for each row (index of dimension 0) of
            the view; ``"tensor"``: indices of single free elements, from ``NkiTensor.indirect``.
        index: the SBUF tensor of the index, shape (1, 1), (P, 1) or (P, K); for a scalar also a register or an
            NkiScalar.
        stride: the number of elements by which the address moves if the index grows by 1.
        limit: the exclusive upper limit of the index, which must lie in [0, limit).
        source: the tensor that is indexed, for messages.
        dim: the dimension of the view that a vector indexes, which is 0; None for the other kinds.
        base: for ``"tensor"``, the view whose free elements are selected; the layout of the view itself is that of the
            selected elements in a dense tensor.
        count: for ``"tensor"``, the number of elements that are selected in each partition.
    """

    kind: Literal["scalar", "vector", "tensor"]
    index: View | DeviceInteger
    stride: int
    limit: int
    source: object
    dim: int | None
    base: View | None = None
    count: int = 0

    def read(self) -> npt.NDArray[np.int64]:
        """Return the index values in row-major order as int64; unsigned types keep their value.

        Raises:
            UninitializedReadError: an index was never written; this is an error with every value of the option
                ``uninitialized``, because a sentinel is no address.
        """
        if not isinstance(self.index, View):
            return np.array([self.index.value(f"the index of {self.source}")], np.int64)
        tensor = self.index
        if tensor.storage.count_unwritten(tensor.layout, tensor.dtype):
            where = first_and_last(tensor.storage.unwritten(tensor.layout, tensor.dtype))
            raise UninitializedReadError(f"index {tensor} is read before it was written: {where}")
        tensor.storage.need_values(tensor)
        return tensor.array.reshape(-1).astype(np.int64)

    def out_of_range(self, row: int, value: int, limit: int | None = None) -> OutOfRangeError:
        """Return the error for an index that is out of range.

        Args:
            row: the position of the index in the index tensor, counted down the partitions and then along the columns.
            value: the value of the index.
            limit: the exclusive upper limit; None: :attr:`limit`.
        """
        limit = self.limit if limit is None else limit
        if not isinstance(self.index, View):
            return OutOfRangeError(f"index {value} of {self.index} is out of range [0, {limit}) of {self.source}")
        column, partition = divmod(row, self.index.shape[0])
        place = f"partition {partition}" + (f", column {column}," if column else "")
        explained = self.index.storage.explanation(row)
        return OutOfRangeError(
            f"{explained}index {value} in {place} of {self.index} is out of range [0, {limit}) of {self.source}"
        )


def partition_elements(tensor: View) -> int:
    """Return the number of elements of the view's type in one partition of the storage: the stride between
    partitions.
    """
    storage = tensor.storage
    if tensor.dtype is storage.dtype:  # most are
        return storage.partition_elements
    return storage.partition_bytes // storage.width_of(tensor.dtype)


def partition_in_storage(tensor: View) -> int:
    """Return the partition in which an on-chip view starts, counted from the first partition of its storage."""
    return tensor.offset // partition_elements(tensor) if tensor.offset else 0


def placed_partition(tensor: View) -> int | None:
    """Return the partition in which an on-chip view starts; None if the kernel leaves this to the compiler."""
    address = tensor.storage.address
    return None if address is None else address[0] + partition_in_storage(tensor)


def assumed_partition(tensor: View) -> int:
    """Return the partition in which an on-chip view starts; a storage that the kernel does not place starts at 0."""
    placed = placed_partition(tensor)
    return partition_in_storage(tensor) if placed is None else placed


def allowed_starts(partitions: int) -> tuple[int, ...]:
    """Return the partitions at which a compute engine's access to ``partitions`` partitions may start."""
    return (0, 32, 64, 96) if partitions <= 32 else (0, 64) if partitions <= 64 else (0,)


def possible_starts(tensor: View) -> tuple[int, ...]:
    """Return the partitions at which an on-chip view may start: the kernel's choice, or all choices of a compiler."""
    placed = placed_partition(tensor)
    if placed is not None:
        return (placed,)
    start = partition_in_storage(tensor)
    return tuple(first + start for first in allowed_starts(tensor.storage.shape[0]))
