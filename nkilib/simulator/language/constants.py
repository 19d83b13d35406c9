# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Constants that the kernel supplies: ``nl.shared_constant`` and ``nl.shared_identity_matrix``."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engines.dma.instructions import dma_copy
from ..hardware.generations import PARTITIONS
from ..machine.core import current_core
from ..memory.storage import Storage
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.dtypes import DType, as_dtype
from ..terms.enums import MemoryRegion
from ..terms.errors import NkiValidationError
from .operands import new_tile
from .programs import language_function

# "Supported element types" of shared_constant; of the packed types numpy has no arrays.
_CONSTANT_TYPES = frozenset(
    {
        *(dt.float32, dt.float16, dt.bfloat16, dt.float8_e4m3fn, dt.float8_e5m2, dt.float8_e8m0fnu, dt.tfloat32),
        *(dt.int32, dt.int16, dt.int8, dt.uint32, dt.uint16, dt.uint8),
    }
)


@language_function
def shared_constant(constant: npt.NDArray[Any] | str | os.PathLike[str]) -> NkiTensor:
    """Return a read-only tensor in shared HBM that holds ``constant``, a numpy array or the path of a ``.npy`` file.

    Two cores that pass the same array, or equal ones, get the same tensor. They must create their constants in the
    same order.

    Raises:
        NkiValidationError: if the cores' constants differ, or ``constant`` is no such array, is empty, has no
            dimension, or has a type that NKI does not support for constants.
    """
    core = current_core("nl.shared_constant")
    array = _as_array(constant)
    dtype = _constant_type(array)
    key = ("constant", core.next_shared_constant())
    tensor = _shared(key, array, dtype)
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

    One ``nisa.dma_copy`` copies it from a constant in shared HBM, which exists once for each size and type.
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
    dma_copy(tile, _shared(("identity", n, kind), np.eye(n, dtype=kind.numpy), kind))
    return tile


def _shared(key: Hashable, array: npt.NDArray[Any], dtype: DType) -> NkiTensor:
    """Return the launch's constant named ``key``; the first core that asks for it creates it from ``array``."""
    core = current_core("nl.shared_constant")

    def make() -> Storage:
        data = _as_stored(array, dtype).copy()
        data.flags.writeable = False
        precise, region = core.options.precise_fp, MemoryRegion.shared_hbm
        scope = core.launch.scope
        return Storage(array.shape, dtype, region, "constant", precise_fp=precise, data=data, scope=scope)

    storage = core.launch.constant(key, make)
    return NkiTensor(storage.shape, storage.dtype, storage, MemoryRegion.shared_hbm, storage.name)


def _same_bytes(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    """Return whether two dense arrays are bitwise equal; compared as values, NaN would differ from itself."""
    return np.array_equal(first.reshape(-1).view(np.uint8), second.reshape(-1).view(np.uint8))


def _as_stored(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return ``array`` as a storage holds it.

    It is dense, in native byte order, and in float32 if low precision is widened.
    """
    is_widened = not current_core("nl.shared_constant").options.precise_fp and dtype in dt.LOW_PRECISION
    return np.ascontiguousarray(array, np.float32 if is_widened else dtype.numpy)


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


def _constant_type(array: npt.NDArray[Any]) -> DType:
    try:
        dtype = as_dtype(array.dtype)
    except TypeError:
        raise _no_constant(array.dtype) from None
    if dtype not in _CONSTANT_TYPES:
        raise _no_constant(dtype)
    return dtype


def _no_constant(dtype: Any) -> NkiValidationError:
    allowed = ", ".join(sorted(_CONSTANT_TYPES))
    return NkiValidationError(f"a constant must have one of the types {allowed}, got {dtype}; cast it first")
