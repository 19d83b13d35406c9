"""Filling a tensor with a compile-time constant: shared by ``memset`` and the creation functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .casts import store_float
from .errors import NkiValidationError
from .tensor import NkiTensor


def fill(tensor: NkiTensor, value: Any) -> None:
    """Write ``value`` into every element of ``tensor``: an integer exactly into integer types, else by a float cast.

    Raises:
        NkiValidationError: if ``value`` is no number, or no integer that the tensor's integer type can hold.
    """
    if not isinstance(value, bool | int | float | np.number):
        raise NkiValidationError(f"value must be a compile-time number, got {value!r}")
    if tensor.dtype.is_integer:
        if not isinstance(value, bool | int | np.integer):
            raise NkiValidationError(f"value must be an integer for {tensor.dtype}, got {value!r}")
        limits = np.iinfo(tensor.dtype.numpy)
        if not limits.min <= int(value) <= limits.max:
            raise NkiValidationError(
                f"value must be in [{limits.min}, {limits.max}] for {tensor.dtype}, got {int(value)}"
            )
        tensor.array[...] = int(value)
        return
    single = np.full((1,) * tensor.ndim, value, np.float32)
    cast = np.empty(single.shape, tensor.array.dtype)
    store_float(cast, single, tensor.dtype)
    tensor.array[...] = cast
