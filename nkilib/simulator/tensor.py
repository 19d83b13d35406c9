"""``NkiTensor``: a view (shape, strides, offset) of a storage, as NKI has it. No method here moves data.

Source: ``nki/api/nki/language/__init__.py`` (class NkiTensor), ``nki/get-started/nki-language-guide.rst`` (Tensor
Values, Tensor Indexing) and ``nki/deep-dives/nki-aps.rst`` of the NKI documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_int
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import DType, as_dtype
from .errors import NkiValidationError, OutOfRangeError
from .indexing import Picked, resolve_key
from .indirect import Indirect, check_index_tensor
from .layout import Layout, dense, extent, is_dense, reshape_strides
from .memory import ON_CHIP, MemoryRegion, as_region
from .pending_views import PendingViews
from .storage import Storage


class NkiTensor(PendingViews):
    """A tensor in SBUF, PSUM or HBM; create one with ``nl.ndarray``.

    Attributes:
        shape: sizes; on chip, dimension 0 counts partitions.
        strides: elements from one index to the next, by dimension.
        offset: first element, counted from the start of the storage.
        dtype: type of an element.
        buffer: the memory region.
        name: for messages.
    """

    __slots__ = (
        "_array",
        "_flat_rows",
        "_indirect",
        "_passed_engine_checks",
        "buffer",
        "dtype",
        "name",
        "offset",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        storage: Any,
        buffer: MemoryRegion | str = MemoryRegion.sbuf,
        name: str = "",
    ) -> None:
        layout = dense(tuple(int(size) for size in shape))
        self._set(layout, as_dtype(dtype), storage, as_region(buffer), name, None)

    def _set(
        self,
        layout: Layout,
        dtype: DType,
        storage: Storage,
        buffer: MemoryRegion,
        name: str,
        indirect: Indirect | None,
    ) -> None:
        self.shape, self.strides, self.offset = layout
        self.dtype = dtype
        self.storage = storage
        self.buffer = buffer
        self.name = name
        self._indirect = indirect
        self._array: npt.NDArray[Any] | None = None
        self._flat_rows: npt.NDArray[Any] | None = None
        # Set by operands.check_engine_access: the layout never changes, so that once is enough.
        self._passed_engine_checks = False

    def _with(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int | None = None,
        dtype: DType | None = None,
        indirect: Indirect | None = None,
    ) -> NkiTensor:
        """Another view of the same storage."""
        view = NkiTensor.__new__(NkiTensor)
        layout = Layout(tuple(shape), tuple(strides), self.offset if offset is None else offset)
        view._set(layout, dtype or self.dtype, self.storage, self.buffer, self.name, indirect or self._indirect)
        return view

    def with_layout(self, layout: Layout) -> NkiTensor:
        """A static view of the same storage with another layout. For the simulator; kernels use the views below."""
        view = NkiTensor.__new__(NkiTensor)
        view._set(layout, self.dtype, self.storage, self.buffer, self.name, None)
        return view

    @property
    def layout(self) -> Layout:
        return Layout(self.shape, self.strides, self.offset)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def indirect_access(self) -> Indirect | None:
        """The dynamic part of this view's address, if it has one."""
        return self._indirect

    @property
    def array(self) -> npt.NDArray[Any]:
        """The elements as a numpy view of the storage. For the simulator, tests and debuggers, not for kernels.

        Raises:
            NkiValidationError: on an indirect view, whose address is known only to the instruction that uses it.
        """
        if self._indirect is not None:
            raise NkiValidationError(f"{self} is an indirect view: only an instruction can read it")
        if self._array is None:
            self._array = self.storage.array(self.layout, self.storage.numpy_type_of(self.dtype))
        return self._array

    @property
    def flat_rows(self) -> npt.NDArray[Any] | None:
        """The elements as a view (partitions, elements per partition), or None where a partition is not dense."""
        if self._flat_rows is None and self.is_contiguous():
            self._flat_rows = self.array.reshape(self.shape[0], prod(self.shape[1:]))
        return self._flat_rows

    def is_on_chip(self) -> bool:
        return self.buffer in ON_CHIP

    def is_contiguous(self) -> bool:
        """Whether the view is dense in row-major order; on chip, within each partition."""
        first = 1 if self.is_on_chip() else 0
        return is_dense(self.shape[first:], self.strides[first:])

    def is_indirect(self) -> bool:
        """Whether the address depends on a tensor that is read at run time."""
        return self._indirect is not None

    def get_pattern(self) -> list[list[int]]:
        """``[[stride, count], ...]``, in the form that :meth:`ap` takes."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def __repr__(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        return f"tensor {name}{list(self.shape)} {self.dtype} in {self.buffer}"

    def __bool__(self) -> bool:
        raise NkiValidationError(f"{self}: the values of a tensor are not known while the kernel is being built")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise NotImplementedError(
            f"NkiTensor.__setitem__: assignment to {self} is not implemented in the simulator; write with an "
            "instruction, for instance nisa.tensor_copy or nisa.dma_copy"
        )

    def __getitem__(self, key: Any) -> NkiTensor:
        """Index as numpy does, with integers, slices, ``...`` and ``nl.ds``; never copies.

        On chip an integer keeps partition dimension 0 at size 1 and the result has at least two dimensions. In HBM an
        integer removes its dimension and the result has at least one.

        Raises:
            OutOfRangeError: if an index leaves the tensor.
            NkiValidationError: if the key is of another kind or indexes the dimension of an indirect access.
        """
        picked = resolve_key(self, key)
        if self._indirect is not None and self._indirect.dim is not None:
            first = picked[self._indirect.dim]
            if first != Picked(0, self.shape[self._indirect.dim], 1, False):
                raise NkiValidationError(f"{self}: dimension {self._indirect.dim} is indirect and cannot be indexed")
        offset = self.offset + sum(pick.start * stride for pick, stride in zip(picked, self.strides, strict=True))
        kept = self._kept_dimensions(picked)
        shape = [picked[dim].length for dim in kept]
        strides = [self.strides[dim] * picked[dim].step for dim in kept]
        return self._with(shape, strides, offset)

    def _kept_dimensions(self, picked: list[Picked]) -> list[int]:
        kept = [dim for dim, pick in enumerate(picked) if not pick.is_integer or (dim == 0 and self.is_on_chip())]
        least = 2 if self.is_on_chip() else 1
        # Rather than lose the second dimension, the last free one stays at size 1.
        missing = [dim for dim in range(self.ndim - 1, -1, -1) if dim not in kept]
        return sorted(kept + missing[: max(0, min(least, self.ndim) - len(kept))])

    def _check_dim(self, method: str, dim: int) -> int:
        if not isinstance(dim, int | np.integer) or not -self.ndim <= dim < self.ndim:
            raise OutOfRangeError(f"NkiTensor.{method}: dim must be in [0, {self.ndim}) of {self}, got {dim!r}")
        return int(dim) % self.ndim

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements ``start`` to ``end`` (exclusive) of dimension ``dim``, every ``step``-th.

        Raises:
            OutOfRangeError: unless ``0 <= start < end <= shape[dim]`` and ``step >= 1``.
        """
        dim = self._check_dim("slice", dim)
        # An empty slice is accepted where it lies inside: older kernels have a core without rows.
        if not 0 <= start <= end <= self.shape[dim] or step < 1:
            raise OutOfRangeError(
                f"NkiTensor.slice: 0 <= start < end <= {self.shape[dim]} and step >= 1 are required in dimension {dim} "
                f"of {self}, got start={start}, end={end}, step={step}"
            )
        key: list[Any] = [slice(None)] * self.ndim
        key[dim] = slice(start, end, step)
        return self[tuple(key)]

    def select(self, dim: int, index: int | NkiTensor) -> NkiTensor:
        """One element of dimension ``dim``; an integer index, or an SBUF tensor of shape (1, 1) read at run time.

        Raises:
            OutOfRangeError: if an integer leaves the dimension (a tensor's value is checked when it is used).
            NkiValidationError: for a second dynamic index, or a dynamic one on the partition dimension.
        """
        dim = self._check_dim("select", dim)
        if not isinstance(index, NkiTensor):
            if isinstance(index, int | np.integer) and not 0 <= index < self.shape[dim]:
                raise OutOfRangeError(
                    f"NkiTensor.select: index must be in [0, {self.shape[dim]}) in dimension {dim} of {self}, "
                    f"got {index}"
                )
            key: list[Any] = [slice(None)] * self.ndim
            key[dim] = index
            return self[tuple(key)]
        self._refuse_second_indirection("select")
        check_index_tensor(f"NkiTensor.select on {self}", index, "scalar")
        if dim == 0 and self.is_on_chip():
            raise NkiValidationError(f"NkiTensor.select: the partition dimension of {self} has no dynamic index")
        picked = [Picked(0, size, 1, False) for size in self.shape]
        picked[dim] = Picked(0, 1, 1, True)
        kept = self._kept_dimensions(picked)
        indirect = Indirect("scalar", index, self.strides[dim], self.shape[dim], str(self), None)
        return self._with([picked[k].length for k in kept], [self.strides[k] for k in kept], indirect=indirect)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row ``vector_offset[p]`` of dimension 0 for every partition p: the view of a gather or a scatter.

        Raises:
            NkiValidationError: unless ``dim`` is 0, this is an HBM tensor and not indirect, and ``vector_offset`` is
                an integer SBUF tensor of shape (P, 1).
        """
        if dim != 0:
            raise NkiValidationError(f"NkiTensor.vector_select: dim must be 0, got {dim!r}")
        check_index_tensor(f"NkiTensor.vector_select on {self}", vector_offset, "vector")
        shape = [vector_offset.shape[0], *self.shape[1:]]
        return self._vector("vector_select", shape, self.strides, self.offset, vector_offset, None)

    def _vector(
        self,
        method: str,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        index: NkiTensor,
        dtype: DType | None,
    ) -> NkiTensor:
        self._refuse_second_indirection(method)
        if self.is_on_chip():
            raise NkiValidationError(f"NkiTensor.{method}: a vector offset needs a tensor in HBM, got {self}")
        check_index_tensor(f"NkiTensor.{method} on {self}", index, "vector")
        if index.shape[0] != shape[0]:
            raise NkiValidationError(
                f"NkiTensor.{method} on {self}: the vector offset must have one index for each of the {shape[0]} rows "
                f"of the pattern, got {index}"
            )
        step = self._step(0, dtype or self.dtype)
        indirect = Indirect("vector", index, step, self.shape[0], str(self), 0)
        return self._with(shape, [step, *strides[1:]], offset, dtype, indirect)

    def _refuse_second_indirection(self, method: str) -> None:
        if self._indirect is not None:
            raise NkiValidationError(f"NkiTensor.{method}: {self} is indirect already; a view has one dynamic index")

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: NkiTensor | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """An access pattern given outright: ``[[stride, count], ...]`` over the storage, in elements of ``dtype``.

        The pattern takes the place of this view's shape and strides. ``offset`` is added to the view's own offset
        (the API's docstring says so; the deep dive on access patterns lets it replace the view's offset: the two
        agree on every tensor that starts at the beginning of its storage). A scalar or vector offset counts in steps
        of dimension ``indirect_dim`` of the tensor on which ``ap`` is called, whatever the pattern says.

        Raises:
            OutOfRangeError: if the static pattern leaves the storage.
            NkiValidationError: if both offsets are given, the pattern is malformed, an on-chip pattern does not walk
                partition by partition, or ``indirect_dim`` is not 0 with a vector offset.
        """
        self._refuse_second_indirection("ap")
        new_dtype = self.dtype if dtype is None else self._reinterpreted(as_dtype(dtype), "ap")
        strides, shape = self._checked_pattern(pattern, new_dtype)
        start = self.offset * self.dtype.itemsize // new_dtype.itemsize + (0 if offset is None else as_int(offset))
        if vector_offset is None and scalar_offset is None:
            return self._static_pattern(shape, strides, start, new_dtype)
        if vector_offset is not None and scalar_offset is not None:
            raise NkiValidationError(f"NkiTensor.ap on {self}: give scalar_offset or vector_offset, not both")
        if vector_offset is not None:
            if indirect_dim != 0:
                raise NkiValidationError(
                    f"NkiTensor.ap on {self}: a vector offset needs indirect_dim=0, got {indirect_dim}"
                )
            return self._vector("ap", shape, strides, start, vector_offset, new_dtype)
        assert scalar_offset is not None
        return self._scalar_pattern(shape, strides, start, new_dtype, scalar_offset, indirect_dim)

    def _static_pattern(self, shape: list[int], strides: list[int], start: int, dtype: DType) -> NkiTensor:
        low, high = extent(Layout(tuple(shape), tuple(strides), start))
        elements = self.storage.elements_of(dtype)
        if low < 0 or high >= elements:
            raise OutOfRangeError(
                f"NkiTensor.ap on {self}: pattern {list(zip(strides, shape, strict=True))} at offset {start} touches "
                f"elements {low} to {high} of a storage of {elements}"
            )
        if self.is_on_chip():
            self._check_stays_in_partition(shape, strides, start)
        return self._with(shape, strides, start, dtype)

    def _check_stays_in_partition(self, shape: list[int], strides: list[int], start: int) -> None:
        row = strides[0]
        low, high = extent(Layout(tuple(shape[1:]), tuple(strides[1:]), start % row))
        if low < 0 or high >= row:
            raise OutOfRangeError(
                f"NkiTensor.ap on {self}: the free pattern {list(zip(strides[1:], shape[1:], strict=True))} at offset "
                f"{start} leaves the {row} elements of a partition"
            )

    def _scalar_pattern(
        self, shape: list[int], strides: list[int], start: int, dtype: DType, index: NkiTensor, indirect_dim: int
    ) -> NkiTensor:
        check_index_tensor(f"NkiTensor.ap on {self}", index, "scalar")
        dim = self._check_dim("ap", indirect_dim)
        if dim == 0 and self.is_on_chip():
            raise NkiValidationError(f"NkiTensor.ap: the partition dimension of {self} has no dynamic index")
        indirect = Indirect("scalar", index, self._step(dim, dtype), self.shape[dim], str(self), None)
        return self._with(shape, strides, start, dtype, indirect)

    def _step(self, dim: int, dtype: DType) -> int:
        """One step of dimension ``dim`` of this tensor, in elements of ``dtype``."""
        step = self.strides[dim] * self.dtype.itemsize
        if step % dtype.itemsize:
            raise NkiValidationError(
                f"NkiTensor.ap on {self}: a step of dimension {dim} is {step} bytes, which is no multiple of the "
                f"{dtype.itemsize} bytes of {dtype}"
            )
        return step // dtype.itemsize

    def _checked_pattern(self, pattern: Sequence[Sequence[int]], dtype: DType) -> tuple[list[int], list[int]]:
        try:
            strides = [as_int(stride) for stride, _ in pattern]
            shape = [as_int(count) for _, count in pattern]
        except (TypeError, ValueError):
            raise NkiValidationError(f"NkiTensor.ap: pattern must be [[stride, count], ...], got {pattern!r}") from None
        if not shape or min(shape) < 0:
            raise NkiValidationError(f"NkiTensor.ap: pattern needs a dimension and counts >= 0, got {pattern!r}")
        if self.is_on_chip():
            row = prod(self.storage.shape[1:]) * self.storage.dtype.itemsize // dtype.itemsize
            if len(shape) < 2:
                raise NkiValidationError(
                    f"NkiTensor.ap on {self}: an on-chip pattern starts with the partition dimension and has at least "
                    f"one free dimension, got {pattern!r}"
                )
            if shape[0] > 1 and strides[0] != row:
                raise NkiValidationError(
                    f"NkiTensor.ap on {self}: the first stride must be the {row} elements of a partition, "
                    f"got {strides[0]}"
                )
            strides[0] = row
        return strides, shape

    def _reinterpreted(self, dtype: DType, method: str) -> DType:
        if self.storage.is_widened and dtype != self.dtype:
            raise NkiValidationError(
                f"NkiTensor.{method}: {self} is held in float32 because NKI_PRECISE_FP=0; its bits cannot be read as "
                f"{dtype}"
            )
        if self.offset * self.dtype.itemsize % dtype.itemsize:
            raise NkiValidationError(
                f"NkiTensor.{method}: {self} starts at byte {self.offset * self.dtype.itemsize}, which is no multiple "
                f"of the {dtype.itemsize} bytes of {dtype}"
            )
        return dtype

    def view(self, dtype: Any) -> NkiTensor:
        """The same bits read as ``dtype``; the last dimension's size changes by the ratio of the widths.

        Raises:
            NkiValidationError: on an indirect view, where the last dimension is not dense, or where its bytes are no
                multiple of the new width.
        """
        new = as_dtype(dtype)
        if self._indirect is not None:
            raise NkiValidationError(f"NkiTensor.view: {self} is indirect")
        old_width, new_width = self.dtype.itemsize, self._reinterpreted(new, "view").itemsize
        if old_width == new_width:
            return self._with(self.shape, self.strides, dtype=new)
        if self.ndim == 0 or (self.strides[-1] != 1 and self.shape[-1] != 1):
            raise NkiValidationError(
                f"NkiTensor.view: the last dimension of {self} must be dense, got strides {self.strides}"
            )
        last_bytes = self.shape[-1] * old_width
        outer = [stride * old_width for stride in self.strides[:-1]]
        if last_bytes % new_width or any(stride % new_width for stride in outer):
            raise NkiValidationError(
                f"NkiTensor.view: the {last_bytes} bytes of the last dimension of {self} and the strides before it "
                f"must be multiples of the {new_width} bytes of {new}"
            )
        shape = [*self.shape[:-1], last_bytes // new_width]
        strides = [*(stride // new_width for stride in outer), 1]
        return self._with(shape, strides, self.offset * old_width // new_width, new)

    reinterpret_cast = view

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """The same elements in another shape, without moving them.

        Raises:
            NkiValidationError: if the number of elements differs, the partition dimension (or that of a vector offset)
                would change, or the layout does not allow it.
        """
        new_shape = tuple(as_int(size) for size in shape)
        if min(new_shape, default=0) < 0:
            raise NkiValidationError(f"NkiTensor.reshape: sizes must not be negative, got {list(new_shape)} for {self}")
        if prod(new_shape) != self.size:
            raise NkiValidationError(
                f"NkiTensor.reshape: {self} has {self.size} elements, {list(new_shape)} has {prod(new_shape)}"
            )
        keeps_first = self.is_on_chip() or (self._indirect is not None and self._indirect.dim == 0)
        if keeps_first and new_shape[:1] != self.shape[:1]:
            raise NkiValidationError(
                f"NkiTensor.reshape: dimension 0 of {self} counts partitions and must stay {self.shape[0]}, "
                f"got {list(new_shape)}"
            )
        if self.is_on_chip() and len(new_shape) < 2:
            raise NkiValidationError(
                f"NkiTensor.reshape: an on-chip tensor has a partition and at least one free dimension, got "
                f"{list(new_shape)} for {self}"
            )
        first = 1 if keeps_first else 0
        strides = reshape_strides(self.shape[first:], self.strides[first:], new_shape[first:])
        if strides is None:
            raise NkiValidationError(
                f"NkiTensor.reshape: {self} with strides {self.strides} cannot become {list(new_shape)} without a copy"
            )
        return self._with(new_shape, (*self.strides[:first], *strides))

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """Dimensions in the order ``dims``; dimension 0 stays first on chip and after ``vector_select``.

        Raises:
            NkiValidationError: if ``dims`` is no permutation, or moves a dimension 0 that must stay.
        """
        order = tuple(dims)
        if sorted(order) != list(range(self.ndim)):
            raise NkiValidationError(
                f"NkiTensor.permute: dims must be a permutation of 0..{self.ndim - 1}, got {order}"
            )
        if order[0] != 0 and (self.is_on_chip() or (self._indirect is not None and self._indirect.dim == 0)):
            raise NkiValidationError(f"NkiTensor.permute: dimension 0 of {self} must stay first, got {order}")
        return self._with([self.shape[dim] for dim in order], [self.strides[dim] for dim in order])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Dimension ``dim``, of size 1, repeated ``size`` times by a stride of 0.

        Raises:
            NkiValidationError: if the dimension is not of size 1, is the partition dimension or that of a vector
                offset, or if ``size`` is not positive.
        """
        dim = self._check_dim("broadcast", dim)
        if self._indirect is not None and self._indirect.dim == dim:
            raise NkiValidationError(f"NkiTensor.broadcast: dimension {dim} of {self} is indirect")
        if as_int(size) < 1:
            raise NkiValidationError(f"NkiTensor.broadcast: size must be at least 1, got {size!r}")
        if self.shape[dim] != 1 or (dim == 0 and self.is_on_chip()):
            raise NkiValidationError(
                f"NkiTensor.broadcast: dimension {dim} of {self} must have size 1 and not be the partition dimension"
            )
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = as_int(size), 0
        return self._with(shape, strides)
