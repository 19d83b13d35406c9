# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The words by which messages describe tensors, other values and elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import DType
from .enums import MemoryRegion

# What follows the description of a tensor without elements.
EMPTY = " (empty: a slice is where start >= stop, and a negative start or stop counts from the end)"


def describe_tensor(name: str, shape: tuple[int, ...], dtype: DType, region: MemoryRegion) -> str:
    """Return one line with the name (unless it is empty), shape, type and memory region of a tensor."""
    label = f"{name!r} " if name else ""
    return f"tensor {label}{list(shape)} {dtype} in {region}{EMPTY if 0 in shape else ''}"


def describe_foreign_value(value: Any) -> str:
    """Return a description, for an error message, of a value that is not a tensor of the kernel.

    An array is described by its shape and type, with advice on what to pass instead.
    """
    if hasattr(value, "is_data_representable"):
        return f"{value!r}: a grid is no operand, its tensor is grid.data"
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or hasattr(value, "buffer") or not hasattr(value, "dtype"):
        return repr(value)
    library = type(value).__module__.partition(".")[0]
    return (
        f"a {library} {type(value).__name__} {list(shape)} {value.dtype}: pass it to the kernel as an argument and "
        f"load it, or use nl.shared_constant"
    )


def first_and_last(chosen: npt.NDArray[np.bool_]) -> str:
    """Return text with the indices of the first and the last true element of a mask, in row-major order."""
    first, last = (np.argwhere(chosen)[end].tolist() for end in (0, -1))
    return f"the element {first}" if first == last else f"the first is {first}, the last {last}"
