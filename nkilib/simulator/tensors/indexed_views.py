# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views of a part of a tensor: ``t[...]``, ``slice``, ``select``, and the dynamic ``vector_select`` and ``indirect``.

- :class:`IndexedViews`: these methods of ``NkiTensor``.
- :class:`DynamicSlice`: ``nl.ds``; :func:`checked_scalar_index`: an index that is read at run time.

Sources: docstrings of the methods; ``nki/get-started/nki-language-guide.rst`` (Tensor Indexing) and
``nki/guides/architecture/trainium3_arch.rst`` (SBUF/PSUM indirect access).
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..hardware.current import current_generation
from ..terms.argument_checks import as_integer, as_integers, division_remedy
from ..terms.dtypes import COMPUTABLE, DType, int32, int64
from ..terms.enums import ON_CHIP, MemoryRegion, nc_version
from ..terms.errors import NkiValidationError, OutOfRangeError
from ..terms.layout import Layout, row_major_strides
from .device_integers import DeviceInteger, NkiScalar, VirtualRegister
from .view import Indirect, View

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from 3.11 on


# The types of an index that an engine reads element by element.
_INDEX_TYPES = frozenset(dtype for dtype in COMPUTABLE if dtype.is_integer)


class DynamicSlice(NamedTuple):
    """The result of ``nl.ds(start, size)``: the elements ``start`` to ``start + size`` (exclusive).

    ``start`` may be a register or an ``NkiScalar``.
    """

    start: int | DeviceInteger
    size: int


class _Picked(NamedTuple):
    """The elements of one dimension that an index selects; the run-time value of ``register``, if any, is added to
    ``start``.
    """

    start: int
    length: int
    step: int = 1
    is_integer: bool = False
    register: DeviceInteger | None = None


def _pick_from_register(tensor: View, dim: int, start: DeviceInteger, length: int) -> _Picked:
    if not 0 < length <= tensor.shape[dim]:
        raise OutOfRangeError(f"nl.ds({start}, {length}) does not fit dimension {dim} of {tensor}")
    return _Picked(0, length, register=start)


def _integer(tensor: View, dim: int, value: Any, item: Any) -> int:
    """Return ``value`` as an int; ``item`` is the whole index of dimension ``dim``, for the message.

    A boolean is an error, because numpy would take it for a mask.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        if isinstance(value, DeviceInteger):
            remedy = "; use nl.ds(register, size)"
        else:
            remedy = f"; use select({dim}, tensor)" if hasattr(value, "buffer") else division_remedy(value)
        raise NkiValidationError(
            f"{tensor} can be indexed with integers, slices, ... and nl.ds, got {item!r} for dimension {dim}{remedy}"
        ) from None


def _pick_slice(tensor: View, dim: int, item: builtins.slice) -> _Picked:
    """Return the elements of a dimension that a slice selects.

    Unlike in Python, a slice that leaves the tensor is an error: the device would access neighbouring memory.
    """
    size = tensor.shape[dim]
    step = 1 if item.step is None else _integer(tensor, dim, item.step, item)
    start = 0 if item.start is None else _integer(tensor, dim, item.start, item)
    stop = size if item.stop is None else _integer(tensor, dim, item.stop, item)
    start += size if start < 0 else 0
    stop += size if stop < 0 else 0
    if step < 1:
        raise NkiValidationError(f"a slice needs a step >= 1, got {step} for dimension {dim} of {tensor}")
    if not (0 <= start <= size and 0 <= stop <= size):
        parts = (item.start, item.stop) if item.step is None else (item.start, item.stop, item.step)
        text = ":".join("" if part is None else str(part) for part in parts)
        raise OutOfRangeError(f"slice [{text}] leaves dimension {dim} of {tensor}")
    return _Picked(start, max(0, -(-(stop - start) // step)), step)


def _pick(tensor: View, dim: int, item: Any) -> _Picked:
    size = tensor.shape[dim]
    if isinstance(item, builtins.slice):
        return _pick_slice(tensor, dim, item)
    if isinstance(item, DeviceInteger):
        return _Picked(0, 1, is_integer=True, register=item)
    if isinstance(item, DynamicSlice):
        if isinstance(item.start, DeviceInteger):
            return _pick_from_register(tensor, dim, item.start, _integer(tensor, dim, item.size, item))
        start, length = (_integer(tensor, dim, bound, item) for bound in item)
        if not 0 <= start <= start + length <= size:
            raise OutOfRangeError(f"nl.ds({start}, {length}) leaves dimension {dim} of {tensor}")
        return _Picked(start, length)
    index = _integer(tensor, dim, item, item)
    if not -size <= index < size:
        raise OutOfRangeError(f"index {index} is out of range for dimension {dim} of {tensor}")
    return _Picked(index % size, 1, is_integer=True)


def _resolve_key(tensor: View, key: Any) -> list[_Picked]:
    """Return the elements of each dimension of ``tensor`` that ``tensor[key]`` selects.

    Raises:
        OutOfRangeError: an index leaves its dimension.
        NkiValidationError: there are too many indices, or NKI does not document the type of an index.
    """
    keys = list(key) if isinstance(key, tuple) and not isinstance(key, DynamicSlice) else [key]
    ellipses = sum(item is Ellipsis for item in keys)
    if ellipses > 1 or len(keys) - ellipses > tensor.ndim:
        raise NkiValidationError(f"{tensor} has {tensor.ndim} dimensions, got the index {key!r}")
    everything = slice(None)
    at = next((position for position, item in enumerate(keys) if item is Ellipsis), len(keys))
    fill = [everything] * (tensor.ndim - len(keys) + ellipses)
    keys[at : at + ellipses] = fill
    return [_pick(tensor, dim, item) for dim, item in enumerate(keys)]


def _in_two_dimensions(index: View) -> View:
    """Return an index tensor without its free dimensions of size 1; the last one stays if all have size 1.

    A tensor with at most two dimensions is returned unchanged.
    """
    if len(index.shape) <= 2:
        return index
    free = [dim for dim in range(1, index.ndim) if index.shape[dim] != 1] or [index.ndim - 1]
    shape, strides = (tuple(sizes[dim] for dim in (0, *free)) for sizes in (index.shape, index.strides))
    return index.with_layout(Layout(shape, strides, index.offset))


def _violation(index: Any, kind: str, columns: int | None) -> str:
    """Return the requirement that an index tensor does not meet, as text to follow "must"; empty if it meets all."""
    wanted = "(1, 1)" if kind == "scalar" else "(P, 1)" if columns == 1 else "(P, 1) or (P, N)"
    shape = getattr(index, "shape", None)
    if shape is None or not hasattr(index, "buffer"):
        return f"be an SBUF tensor of shape {wanted}, got {index!r}"
    if index.buffer is not MemoryRegion.sbuf or not index.dtype.is_integer:
        return f"be an integer tensor in SBUF, got {index}"
    if index.dtype == int64:
        return f"have 32 bits or fewer, got {index}; nisa.scalar_load takes one of 64"
    if index.is_indirect():
        return f"not be an indirect view itself, got {index}"
    flat = _in_two_dimensions(index).shape
    if len(flat) != 2 or columns not in (None, flat[1]) or (kind == "scalar" and shape[0] != 1):
        return f"have shape {wanted}, got {index}"
    return ""


def _checked_index_tensor(method: str, view: View, index: Any, kind: str, columns: int | None = 1) -> View:
    """Check that an index is an integer SBUF tensor of the documented shape, and return it in two dimensions.

    Free dimensions of size 1 are removed, because published kernels pass such tensors.

    Args:
        method, view: the name of the method and the view that use the index, for messages.
        index: the kernel's argument.
        kind: ``"scalar"`` or ``"vector"``.
        columns: the number of elements per partition; None for any number.

    Raises:
        NkiValidationError: the index is anything else; the message names the method and the requirement.
    """
    wrong = _violation(index, kind, columns)
    if wrong:
        raise NkiValidationError(f"NkiTensor.{method} on {view}: the {kind} offset must {wrong}")
    return _in_two_dimensions(index)


def checked_scalar_index(method: str, view: View, index: Any) -> View | DeviceInteger:
    """Check that an index is a register, a scalar or an integer SBUF tensor of shape (1, 1), and return it.

    A tensor is returned in two dimensions.

    Raises:
        NkiValidationError: the index is anything else; the message names the method and the requirement.
    """
    if isinstance(index, VirtualRegister):
        return index
    if isinstance(index, NkiScalar):
        if view.is_on_chip() and index.dtype != int32:
            raise NkiValidationError(
                f"NkiTensor.{method} on {view}: on chip the scalar offset must be an int32, got {index}; "
                f"nisa.scalar_load it from a tensor of int32"
            )
        return index
    return _checked_index_tensor(method, view, index, "scalar")


def _check_offsets(owner: str, index: Any, partitions: int) -> None:
    """Check that the index of ``NkiTensor.indirect`` is an integer SBUF tensor of shape (``partitions``, K).

    Raises:
        NkiValidationError: the index is anything else; the message begins with ``owner`` and names the requirement.
    """
    is_in_sbuf = hasattr(index, "buffer") and str(index.buffer) == "sbuf"
    if not is_in_sbuf or index.dtype not in _INDEX_TYPES or index.is_indirect():
        raise NkiValidationError(f"{owner}: the index must be a static integer tensor in SBUF, got {index!r}")
    if len(index.shape) != 2 or index.shape[0] != partitions:
        raise NkiValidationError(f"{owner}: the index must have shape ({partitions}, K), got {index}")


class IndexedViews(View):
    """The methods of ``NkiTensor`` that select elements by an index, which is static or read at run time."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        """Index like numpy, with integers, slices, ``...`` and ``nl.ds``; never copies.

        An integer removes its dimension, except dimension 0 on chip (partitions), which it leaves at size 1. At least
        one dimension is left, on chip at least two. A register or an ``NkiScalar`` may replace one integer, or the
        start in ``nl.ds``; see :meth:`select`.

        Raises:
            OutOfRangeError: an index leaves the tensor.
            NkiValidationError: the key has another type, or indexes the dimension that a dynamic address already
                indexes.
        """
        if self.indirect_access is None:
            view = self._of_plain_key(key if type(key) is tuple else (key,))
            if view is not None:
                return view
        picked = _resolve_key(self, key)
        if self.indirect_access is not None:
            self._check_direct(picked, self.indirect_access)
        offset = self.offset
        for pick, stride in zip(picked, self.strides, strict=True):
            offset += pick.start * stride
        kept = self._kept_dimensions(picked)
        shape = [picked[dim].length for dim in kept]
        strides = [self.strides[dim] * picked[dim].step for dim in kept]
        return self._with(shape, strides, offset, indirect=self._dynamic_part(picked))

    def _of_plain_key(self, key: tuple[Any, ...]) -> Self | None:
        """Return ``self[key]`` if the key has only slices and non-negative integers, all inside the tensor; otherwise
        None.

        Most keys are of this form; :meth:`__getitem__` handles the others, and errors, on a slower path.
        """
        items, dimensions = len(key), len(self.shape)
        is_on_chip = self.buffer in ON_CHIP
        if not 0 < items <= dimensions or (is_on_chip and type(key[0]) is not slice):
            return None
        offset, shape, strides = self.offset, [], []
        for item, size, stride in zip(key, self.shape, self.strides, strict=False):
            if type(item) is slice:
                start, stop, step = item.start, item.stop, item.step
                if start is None:
                    start = 0
                if stop is None:
                    stop = size
                if not type(start) is type(stop) is int or not 0 <= start <= stop <= size:
                    return None
                if step is None:
                    shape.append(stop - start)
                    strides.append(stride)
                elif type(step) is int and step > 0:
                    shape.append((stop - start + step - 1) // step)
                    strides.append(stride * step)
                else:
                    return None
            elif type(item) is int and 0 <= item < size:
                start = item
            else:
                return None
            if start:
                offset += start * stride
        if items < dimensions:
            shape += self.shape[items:]
            strides += self.strides[items:]
        # Rather than lose its last dimension, or on chip its only free one, a tensor keeps it at size 1.
        if len(shape) < 2 and len(shape) < (min(2, dimensions) if is_on_chip else 1):
            return None
        return self._with(shape, strides, offset)

    def _check_direct(self, picked: list[_Picked], indirect: Indirect) -> None:
        """Check that an index takes all elements of the dimensions on which the tensor's dynamic address already
        acts.
        """
        if indirect.kind == "tensor":
            taking_part: Sequence[int] = range(self.ndim)
        else:
            taking_part = () if indirect.dim is None else (indirect.dim,)
        for dim in taking_part:
            if picked[dim] != _Picked(0, self.shape[dim]):
                raise NkiValidationError(f"{self}: dimension {dim} is indirect and cannot be indexed")

    def _dynamic_part(self, picked: list[_Picked]) -> Indirect | None:
        """Return the register or scalar of an index as an :class:`Indirect`; None if the index has none."""
        indirect = None
        for dim, pick in enumerate(picked):
            if pick.register is not None:
                if indirect is not None:
                    raise NkiValidationError(
                        f"NkiTensor.__getitem__: only one register may index {self}; compute one offset of two "
                        f"scalars, such as i * {self.strides[0]} + j, and index a flat view with it: "
                        f"x.reshape((n, 1))[nl.ds(offset, 1)]"
                    )
                self._refuse_second_indirection("__getitem__")
                index = checked_scalar_index("__getitem__", self, pick.register)
                indirect = self._scalar("__getitem__", dim, index, self.shape[dim] - pick.length + 1)
        return indirect

    def _scalar(self, method: str, dim: int, index: View | DeviceInteger, limit: int) -> Indirect:
        if dim == 0 and self.is_on_chip():
            raise NkiValidationError(f"NkiTensor.{method}: the partition dimension of {self} has no dynamic index")
        return Indirect("scalar", index, self.strides[dim], limit, self, None)

    def _kept_dimensions(self, picked: list[_Picked]) -> list[int]:
        kept = [dim for dim, pick in enumerate(picked) if not pick.is_integer or (dim == 0 and self.is_on_chip())]
        least = 2 if self.is_on_chip() else 1
        # Rather than lose the second dimension, the last free one stays at size 1.
        missing = [dim for dim in range(self.ndim - 1, -1, -1) if dim not in kept]
        return sorted(kept + missing[: max(0, min(least, self.ndim) - len(kept))])

    def _slice(self, dim: int, start: int, end: int, step: int = 1) -> Self:
        dim = self._check_dim("slice", dim)
        if not type(start) is type(end) is type(step) is int:
            start, end, step = as_integers(f"NkiTensor.slice of {self}: start, end and step", (start, end, step))
        # An empty slice is accepted where it lies inside: older kernels have a core without rows.
        if not 0 <= start <= end <= self.shape[dim] or step < 1:
            raise OutOfRangeError(
                f"NkiTensor.slice: 0 <= start < end <= {self.shape[dim]} and step >= 1 are required in dimension {dim} "
                f"of {self}, got start={start}, end={end}, step={step}"
            )
        if self.indirect_access is None:
            shape, strides = list(self.shape), list(self.strides)
            shape[dim] = (end - start + step - 1) // step
            strides[dim] *= step
            return self._with(shape, strides, self.offset + start * self.strides[dim])
        key: list[Any] = [slice(None)] * self.ndim
        key[dim] = slice(start, end, step)
        return self[tuple(key)]

    def _select(self, dim: int, index: int | View | DeviceInteger) -> Self:
        dim = self._check_dim("select", dim)
        if not isinstance(index, View | DeviceInteger):
            if isinstance(index, int | np.integer) and not 0 <= index < self.shape[dim]:
                raise OutOfRangeError(
                    f"NkiTensor.select: index must be in [0, {self.shape[dim]}) in dimension {dim} of {self}, "
                    f"got {index}"
                )
            key: list[Any] = [slice(None)] * self.ndim
            key[dim] = index
            return self[tuple(key)]
        self._refuse_second_indirection("select")
        index = checked_scalar_index("select", self, index)
        indirect = self._scalar("select", dim, index, self.shape[dim])
        picked = [_Picked(0, size) for size in self.shape]
        picked[dim] = _Picked(0, 1, is_integer=True)
        kept = self._kept_dimensions(picked)
        return self._with([picked[k].length for k in kept], [self.strides[k] for k in kept], indirect=indirect)

    def _vector_select(self, dim: int, vector_offset: View) -> Self:
        if dim != 0:
            raise NkiValidationError(f"NkiTensor.vector_select: dim must be 0, got {dim!r}")
        vector_offset = _checked_index_tensor("vector_select", self, vector_offset, "vector")
        shape = [vector_offset.shape[0], *self.shape[1:]]
        return self._vector("vector_select", shape, self.strides, self.offset, vector_offset, None)

    def _vector(
        self,
        method: str,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        index: View,
        dtype: DType | None,
    ) -> Self:
        self._refuse_second_indirection(method)
        if self.is_on_chip():
            raise NkiValidationError(f"NkiTensor.{method}: a vector offset needs a tensor in HBM, got {self}")
        index = _checked_index_tensor(method, self, index, "vector", columns=None)
        if index.size < shape[0]:  # dma_transpose takes the first ones of more; other instructions refuse that
            raise NkiValidationError(
                f"NkiTensor.{method} on {self}: the vector offset must have one index for each of the {shape[0]} rows "
                f"of the pattern, got {index}"
            )
        step = self._step(0, dtype or self.dtype)
        indirect = Indirect("vector", index, step, self.shape[0], self, 0)
        return self._with(shape, [step, *strides[1:]], offset, dtype, indirect)

    def _step(self, dim: int, dtype: DType) -> int:
        """Return the stride of dimension ``dim`` of this tensor, counted in elements of ``dtype``."""
        step = self.strides[dim] * self.dtype.itemsize
        if step % dtype.itemsize:
            raise NkiValidationError(
                f"NkiTensor.ap on {self}: a step of dimension {dim} is {step} bytes, which is no multiple of the "
                f"{dtype.itemsize} bytes of {dtype}"
            )
        return step // dtype.itemsize

    def _gathered(self, index: View, num_elem: int | None = None) -> Self:
        where = f"NkiTensor.indirect on {self}"
        generation = current_generation()
        if generation.version.value < nc_version.gen4.value:
            raise NkiValidationError(f"{where}: needs trn3; the target is {generation.name}")
        self._refuse_second_indirection("indirect")
        if not self.is_on_chip() or not self.is_contiguous():
            raise NkiValidationError(f"{where}: needs an on-chip tensor whose free dimensions are dense")
        _check_offsets(where, index, self.shape[0])
        count = index.size if num_elem is None else as_integer(f"{where}: num_elem", num_elem)
        if not 0 < count <= index.size:
            raise NkiValidationError(f"{where}: num_elem must be in [1, {index.size}], got {num_elem}")
        shape = (self.shape[0], count)
        base = self.with_layout(self.layout)
        indirect = Indirect("tensor", index, 1, prod(self.shape[1:]), self, None, base, count)
        return self._with(shape, row_major_strides(shape), 0, indirect=indirect)
