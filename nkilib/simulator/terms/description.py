# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How messages speak of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import DType
from .regions import MemoryRegion


def describe(name: str, shape: tuple[int, ...], dtype: DType, region: MemoryRegion) -> str:
    """One line: name, where it has one, shape, type and place."""
    label = f"{name!r} " if name else ""
    return f"tensor {label}{list(shape)} {dtype} in {region}"


def describe_stranger(value: Any) -> str:
    """What came where a tensor of the kernel belongs: an array in one line, without its elements, and what to do."""
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
    """Which elements are true, by the indices of the first and the last one in row-major order."""
    first, last = (np.argwhere(chosen)[end].tolist() for end in (0, -1))
    return f"the element {first}" if first == last else f"the first is {first}, the last {last}"
