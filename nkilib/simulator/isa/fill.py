# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Compile-time constants cast to the type of a tensor, for ``memset``, the creation functions and the selections."""

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
    """Return the constant ``value`` cast to an element of ``tensor``, in an array of size 1.

    Integer types take only integers, which stay exact; for float types ``value`` is cast as on the engines.

    Raises:
        NkiValidationError: if ``value`` is not a number, not an integer that the tensor's integer type can hold, or
            not 0 for a packed type; or if the type is int64, into which no instruction writes a constant.
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
        return np.full(1, int(value), stored_type(tensor))
    if tensor.dtype.is_packed:
        if value != 0:
            raise NkiValidationError(
                f"value must be 0 for the packed type {tensor.dtype}, got {value!r}; load other values with "
                f"nisa.dma_copy"
            )
        return np.zeros(1, stored_type(tensor))
    return cast_number(value, tensor)


def require_number(name: str, value: Any) -> None:
    """Check that ``value`` is a compile-time number.

    Raises:
        NkiValidationError: naming the parameter.
    """
    if not isinstance(value, bool | int | float | np.number):
        raise NkiValidationError(f"{name} must be a compile-time number, got {value!r}")


def cast_number(value: Any, tensor: NkiTensor) -> npt.NDArray[Any]:
    """Return a number as an element of ``tensor``, in an array of size 1.

    It is rounded to float32 and cast as on the engines.
    """
    cast = np.empty(1, stored_type(tensor))
    store_float(cast, np.full(1, value, np.float32), tensor.dtype)
    return cast


def stored_type(tensor: NkiTensor) -> np.dtype[Any]:
    """Return the numpy type in which an element of ``tensor`` is stored."""
    return tensor.storage.numpy_type_of(tensor.dtype)
