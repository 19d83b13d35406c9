# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Compile-time constants as elements of a tensor: shared by ``memset``, the creation functions and the selections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.casts import store_float
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import int64
from ..terms.errors import NkiValidationError


def filling(tensor: NkiTensor, value: Any) -> npt.NDArray[Any]:
    """``value`` as an element of ``tensor``, in an array of size 1: an integer exactly in integer types, else by a
    float cast.

    Raises:
        NkiValidationError: if ``value`` is no number, no integer that the tensor's integer type can hold, or not 0 for
            a packed type.
    """
    require_number("value", value)
    if tensor.dtype == int64:
        raise NkiValidationError(
            f"no instruction writes a constant into int64, got {tensor}; fill a tensor of nl.int32 with twice as many "
            f"columns and view it as nl.int64"
        )
    if tensor.dtype.is_integer:
        if not math.isfinite(value) or value != int(value):  # 0.0 is an integer, as public kernels write it
            raise NkiValidationError(f"value must be an integer for {tensor.dtype}, got {value!r}")
        limits = np.iinfo(tensor.dtype.numpy)
        if not limits.min <= int(value) <= limits.max:
            raise NkiValidationError(
                f"value must be in [{limits.min}, {limits.max}] for {tensor.dtype}, got {int(value)}"
            )
        return np.full(1, int(value), held_type(tensor))
    if tensor.dtype.is_packed:
        if value != 0:
            raise NkiValidationError(
                f"value must be 0 for the packed type {tensor.dtype}, got {value!r}; load other values with "
                f"nisa.dma_copy"
            )
        return np.zeros(1, held_type(tensor))
    return cast_number(value, tensor)


def require_number(name: str, value: Any) -> None:
    """Refuse what is no compile-time number.

    Raises:
        NkiValidationError: naming the parameter.
    """
    if not isinstance(value, bool | int | float | np.number):
        raise NkiValidationError(f"{name} must be a compile-time number, got {value!r}")


def cast_number(value: Any, tensor: NkiTensor) -> npt.NDArray[Any]:
    """A number as an element of ``tensor``, in an array of size 1: taken as float32 and cast as the engines do."""
    cast = np.empty(1, held_type(tensor))
    store_float(cast, np.full(1, value, np.float32), tensor.dtype)
    return cast


def held_type(tensor: NkiTensor) -> np.dtype[Any]:
    """The numpy type that an element of ``tensor`` is held in."""
    return tensor.storage.numpy_type_of(tensor.dtype)
