# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions that create tensors, and the functions that return constants.

- :func:`ndarray`: a new tensor whose elements are unwritten; :func:`full`, :func:`zeros`, :func:`ones`,
  :func:`zeros_like`: a filled tensor.
- :func:`shared_constant`, :func:`shared_identity_matrix`: constants, which all cores of a launch share.
- :func:`new_tile`: an unwritten tile in SBUF, for the results of the functions of ``nki.language``.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..engines.actions import fill
from ..engines.dma_instructions import dma_copy
from ..engines.vector.arithmetic import memset
from ..hardware.generations import PARTITIONS, PSUM_BANK_BYTES, PSUM_PARTITION_BYTES
from ..hardware.options import refuse
from ..machine.core import Core, current_core
from ..machine.issue import report
from ..memory.storage import Storage
from ..tensors.tensor import NkiTensor
from ..tensors.view import allowed_starts
from ..terms import dtypes as dt
from ..terms.argument_checks import division_remedy
from ..terms.descriptions import describe_foreign_value, describe_tensor
from ..terms.dtypes import DType, as_dtype
from ..terms.enums import HBM, ON_CHIP, MemoryRegion, as_region
from ..terms.errors import (
    ArgumentTypeError,
    CapacityError,
    NkiValidationError,
    add_location,
    kernel_location,
)
from ..terms.scopes import Scope, new_scope
from ..terms.spec import DataNeeded
from .language_function import language_function

# Members of an Enum are looked up by a Python function before 3.12.
_SHARED_HBM, _SBUF = MemoryRegion.shared_hbm, MemoryRegion.sbuf
# Kernels make tensors of a few shapes and types, again and again.
_MOST_CHECKED = 4096


def _sizes(shape: Sequence[int], region: MemoryRegion) -> tuple[int, ...]:
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        raise NkiValidationError(
            f"shape must be a tuple of positive integers, got {shape!r}{division_remedy(shape)}"
        ) from None
    # On-chip tensors "are always at least 2-D" (language guide), yet examples of the API make them of shape [1].
    return (*sizes, 1) if region in ON_CHIP and len(sizes) == 1 else sizes


@lru_cache(maxsize=_MOST_CHECKED)
def _may_exist(shape: tuple[int, ...], dtype: DType, region: MemoryRegion, sbuf_bytes: int) -> bool:
    """Return whether hardware with ``sbuf_bytes`` per partition of SBUF can hold a tensor of this shape, type and
    region.
    """
    if not shape or min(shape) < 1:
        return False
    if region in HBM:
        return True
    limit = sbuf_bytes if region is _SBUF else PSUM_PARTITION_BYTES
    return shape[0] <= PARTITIONS and prod(shape[1:]) * dtype.itemsize <= limit


def _partition_bytes(core: Core, region: MemoryRegion) -> int:
    return core.generation.sbuf_usable_bytes if region is MemoryRegion.sbuf else PSUM_PARTITION_BYTES


def _refuse_shape(core: Core, shape: tuple[int, ...], dtype: DType, region: MemoryRegion, name: str) -> NoReturn:
    if not shape or min(shape) < 1:
        raise NkiValidationError(f"shape must be a tuple of positive integers, got {shape!r}")
    if shape[0] > PARTITIONS:
        raise NkiValidationError(
            f"{describe_tensor(name, shape, dtype, region)}: the partition dimension must be at most {PARTITIONS} "
            f"(nl.tile_size.pmax), got {shape[0]}"
        )
    raise NkiValidationError(
        f"{describe_tensor(name, shape, dtype, region)}: {prod(shape[1:]) * dtype.itemsize} bytes a partition, "
        f"a partition of {core.generation.name} has {_partition_bytes(core, region)}"
    )


def _checked_address(
    core: Core, shape: tuple[int, ...], dtype: DType, region: MemoryRegion, address: Any
) -> tuple[int, ...]:
    """Return ``address``, which the kernel gives, as integers, after checking that the tensor may lie there."""
    form = "(first byte,)" if region in HBM else "(first partition, first byte in a partition)"
    try:
        place = tuple(map(index, address))
    except TypeError:
        place = ()
    if len(place) != (1 if region in HBM else 2):
        where = " of a tensor in HBM" if region in HBM else ""
        raise NkiValidationError(f"address{where} must be {form}, got {address!r}")
    if region in HBM:
        if place[0] < 0:
            raise NkiValidationError(f"address must not be negative, got {address!r}")
        return place
    partition, low = place
    starts = allowed_starts(shape[0])
    if partition not in starts:
        raise NkiValidationError(
            f"address: a tensor of {shape[0]} partitions starts at partition {' or '.join(map(str, starts))}, got "
            f"{partition}"
        )
    nbytes = prod(shape[1:]) * dtype.itemsize
    limit = _partition_bytes(core, region)
    if low < 0 or low + nbytes > limit:
        raise NkiValidationError(
            f"address: bytes {low} to {low + nbytes} are not inside the {limit} bytes of a partition of {region}"
        )
    if region is MemoryRegion.psum and low % PSUM_BANK_BYTES:
        raise NkiValidationError(
            f"address: a tensor in psum starts at the beginning of a bank, a multiple of {PSUM_BANK_BYTES} bytes; got "
            f"{low}"
        )
    return partition, low


def _new_storage(
    core: Core,
    shape: tuple[int, ...],
    dtype: DType,
    region: MemoryRegion,
    name: str,
    address: tuple[int, ...] | None,
    scope: Scope,
) -> Storage:
    launch, options, is_shared = core.launch, core.options, region is _SHARED_HBM
    if address is not None and region in HBM:
        places = launch.hbm_places if is_shared else core.hbm_places
        clash = places.take(address[0], prod(shape) * dtype.itemsize, describe_tensor(name, shape, dtype, region))
        if clash is not None:
            refuse(options.capacity, CapacityError(clash), kernel_location())
    left_out = launch.left_out
    origin = None if left_out is None else left_out.origin_here()
    return Storage(
        shape,
        dtype,
        region,
        name,
        precise_fp=options.precise_fp,
        is_abstract=launch.is_abstract if left_out is None else not left_out.makes(origin),
        origin=origin,
        is_poisoned=options.uninitialized != "ignore",
        scope=scope,
        address=address,
    )


def _allocate(
    core: Core,
    shape: tuple[int, ...],
    dtype: DType,
    region: MemoryRegion,
    name: str,
    address: tuple[int, ...] | None,
) -> Storage:
    """Return the storage of a new tensor; all cores get the same storage for a tensor in shared HBM."""
    if region is not _SHARED_HBM:
        return _new_storage(core, shape, dtype, region, name, address, core.loops.scope)
    launch, position = core.launch, core.next_shared_allocation()
    scope = new_scope(launch.scope) if core.loops.depth else launch.scope
    storage = launch.shared_storage(
        position, shape, dtype, address, lambda: _new_storage(core, shape, dtype, region, name, address, scope)
    )
    core.made_shared(storage)
    return storage


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, ...] | None = None,
) -> NkiTensor:
    """Return a new tensor whose elements are unwritten.

    Args:
        shape: the sizes, all positive. On chip the first size counts partitions (at most 128), and a tensor has at
            least two dimensions: ``(n,)`` becomes ``(n, 1)``.
        dtype: type of an element.
        buffer: memory region. All cores share the tensors in ``nl.shared_hbm``, and must create these tensors in the
            same order.
        name: name of the tensor in messages.
        address: the address of the tensor, if the kernel chooses it: on chip ``(first partition, first byte in a
            partition)``, in HBM ``(first byte,)``. The simulator gives every tensor its own memory. Two tensors whose
            addresses overlap are an error (:class:`CapacityError`); on chip, only while both are needed.

    Raises:
        NkiValidationError: the tensor cannot exist on the target; the message names the limit and the value.
    """
    core = current_core("nl.ndarray")
    try:
        kind, region = as_dtype(dtype), as_region(buffer)
        sizes = _sizes(shape, region)
        if not _may_exist(sizes, kind, region, core.generation.sbuf_usable_bytes):
            _refuse_shape(core, sizes, kind, region, name)
        place = None if address is None else _checked_address(core, sizes, kind, region, address)
    except NkiValidationError as error:
        add_location(error, "nl.ndarray")
        raise
    storage = _allocate(core, sizes, kind, region, name, place)
    if region in ON_CHIP:
        for tell in core.observers.allocated:
            tell(storage)
    return NkiTensor.whole(storage)


def new_tile(shape: Sequence[int], dtype: DType) -> NkiTensor:
    """Return an unwritten tile in SBUF, for the result of a function of ``nki.language``."""
    tile = ndarray(shape, dtype, MemoryRegion.sbuf)
    tile.mark_computed()
    return tile


@language_function
def full(
    shape: Sequence[int], fill_value: Any, dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor filled with ``fill_value``: on chip by a ``memset``, in HBM by a DMA."""
    tensor = ndarray(shape, dtype, buffer, name)
    core = current_core("nl.full")
    try:
        fill(core, tensor, fill_value)
    except DataNeeded:  # the value is checked
        assert tensor.storage.is_abstract
    tensor.storage.written.mark(tensor.layout, tensor.storage.width_of(tensor.dtype))
    if tensor.buffer in ON_CHIP:
        report(core, memset, tensor, fill_value)
        return tensor
    # The same value from both cores is no race; a write of one core while the other still fills is one.
    for tell in core.observers.moved:
        tell(tensor, True, None, np.full(1, fill_value))
    report(core, dma_copy, tensor, None)
    return tensor


@language_function
def zeros(
    shape: Sequence[int], dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


@language_function
def ones(shape: Sequence[int], dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """Return a new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


@language_function
def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Return a new tensor of zeros with the shape and type of ``x``, by default in SBUF."""
    if not isinstance(x, NkiTensor):
        raise ArgumentTypeError(f"x must be a tensor, got {describe_foreign_value(x)}")
    return zeros(x.shape, dtype or x.dtype, buffer or MemoryRegion.sbuf, name)


# "Supported element types" of shared_constant; of the packed types numpy has no arrays.
_CONSTANT_TYPES = frozenset(
    {
        *(dt.float32, dt.float16, dt.bfloat16, dt.float8_e4m3fn, dt.float8_e5m2, dt.float8_e8m0fnu, dt.tfloat32),
        *(dt.int32, dt.int16, dt.int8, dt.uint32, dt.uint16, dt.uint8),
    }
)


def _no_constant(dtype: Any) -> NkiValidationError:
    allowed = ", ".join(sorted(_CONSTANT_TYPES))
    return NkiValidationError(f"a constant must have one of the types {allowed}, got {dtype}; cast it first")


def _constant_type(array: npt.NDArray[Any]) -> DType:
    try:
        dtype = as_dtype(array.dtype)
    except TypeError:
        raise _no_constant(array.dtype) from None
    if dtype not in _CONSTANT_TYPES:
        raise _no_constant(dtype)
    return dtype


def _as_array(constant: Any) -> npt.NDArray[Any]:
    if isinstance(constant, str | os.PathLike):
        try:
            constant = np.load(constant, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise NkiValidationError(f"constant: {constant!r} is no readable .npy file: {error}") from None
    if not isinstance(constant, np.ndarray):
        raise NkiValidationError(f"constant must be a numpy array or the path of a .npy file, got {constant!r}")
    if constant.ndim == 0 or constant.size == 0:
        raise NkiValidationError(f"constant must have elements and at least one dimension, got {constant.shape}")
    return constant


def _as_stored(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return ``array`` in the form in which a storage of type ``dtype`` holds it.

    The result is dense and in native byte order, and float32 if low precision is widened.
    """
    is_widened = not current_core("nl.shared_constant").options.precise_fp and dtype in dt.LOW_PRECISION
    return np.ascontiguousarray(array, np.float32 if is_widened else dtype.numpy)


def _same_bytes(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    # NaN differs from itself, so values cannot be compared.
    return np.array_equal(first.reshape(-1).view(np.uint8), second.reshape(-1).view(np.uint8))


def _launch_constant(key: Hashable, array: npt.NDArray[Any], dtype: DType) -> NkiTensor:
    core = current_core("nl.shared_constant")

    def make() -> Storage:
        data = _as_stored(array, dtype).copy()
        data.flags.writeable = False
        precise, region = core.options.precise_fp, MemoryRegion.shared_hbm
        scope = core.launch.scope
        return Storage(array.shape, dtype, region, "constant", precise_fp=precise, data=data, scope=scope)

    storage = core.launch.constant(key, make)
    return NkiTensor(storage.shape, storage.dtype, storage, MemoryRegion.shared_hbm, storage.name)


@language_function
def shared_constant(constant: npt.NDArray[Any] | str | os.PathLike[str]) -> NkiTensor:
    """Return a read-only tensor in shared HBM that holds ``constant``, a numpy array or the path of a ``.npy`` file.

    Two cores that pass equal arrays get the same tensor. The cores must create their constants in the same order.

    Raises:
        NkiValidationError: the constants of the cores differ; or ``constant`` is neither an array nor a readable file,
            is empty, has no dimension, or has a type that NKI does not support for constants.
    """
    core = current_core("nl.shared_constant")
    array = _as_array(constant)
    dtype = _constant_type(array)
    key = ("constant", core.next_shared_constant())
    tensor = _launch_constant(key, array, dtype)
    is_alike = tensor.shape == array.shape and tensor.dtype == dtype
    if not is_alike or (core.launch.cores > 1 and not _same_bytes(tensor.array, _as_stored(array, dtype))):
        raise NkiValidationError(
            f"the cores must make the same constants in the same order: number {key[1]} is {tensor} on one core and "
            f"{list(array.shape)} {dtype} {'with other values ' if is_alike else ''}on the other"
        )
    return tensor


@language_function
def shared_identity_matrix(n: int, dtype: Any = dt.uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """Return the n x n identity matrix in SBUF: a new tile of type ``dtype``, or ``dst`` if it is given.

    One ``nisa.dma_copy`` copies the matrix from a constant in shared HBM, which exists once for each size and type.
    """
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= PARTITIONS:
        raise NkiValidationError(f"n must be an integer from 1 to {PARTITIONS}, got {n!r}")
    kind = as_dtype(dtype)
    if kind not in _CONSTANT_TYPES:
        raise _no_constant(kind)
    if dst is not None and (
        not isinstance(dst, NkiTensor) or dst.buffer is not MemoryRegion.sbuf or dst.shape != (n, n)
    ):
        raise NkiValidationError(f"dst must be a tile of shape [{n}, {n}] in sbuf, got {dst!r}")
    tile = new_tile((n, n), kind) if dst is None else dst
    dma_copy(tile, _launch_constant(("identity", n, kind), np.eye(n, dtype=kind.numpy), kind))
    return tile
