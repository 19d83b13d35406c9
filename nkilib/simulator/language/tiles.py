# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Helpers that the functions on tiles share, for their operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..engines.vector.arithmetic import tensor_copy
from ..tensors.tensor import NkiTensor
from ..terms.description import describe_foreign_value
from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError
from ..terms.regions import MemoryRegion
from .creation import ndarray

# An element-wise operand: a tile, or a number that stands for a tile of it.
TileOrNumber = NkiTensor | int | float


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, np.ndarray) and value.shape == ())


def as_tile(name: str, value: Any) -> NkiTensor:
    """Return ``value`` as a tile with a static address; an indirect view is read into a new tile.

    Raises:
        NkiValidationError: if it is not a tensor in SBUF or PSUM.
    """
    if not isinstance(value, NkiTensor):
        raise NkiValidationError(f"{name} must be a tile, got {describe_foreign_value(value)}")
    if not value.is_on_chip():
        raise NkiValidationError(f"{name} must be a tile in sbuf or psum, got {value}: load it first, with nl.load")
    return cast_copy(value, value.dtype) if value.is_indirect() else value


def new_tile(shape: Sequence[int], dtype: DType) -> NkiTensor:
    """Return an unwritten tile in SBUF."""
    tile = ndarray(shape, dtype, MemoryRegion.sbuf)
    tile.mark_computed()
    return tile


def result_tile(shape: Sequence[int], dtype: Any, default: DType) -> NkiTensor:
    """Return the unwritten tile of a result, of the type that the caller asks for, else of ``default``."""
    return new_tile(shape, default if dtype is None else as_dtype(dtype))


def cast_copy(x: NkiTensor, dtype: DType) -> NkiTensor:
    """Return a new SBUF tile with the elements of ``x``."""
    result = new_tile(x.shape, dtype)
    tensor_copy(result, x)
    return result


def in_sbuf(x: NkiTensor) -> NkiTensor:
    """Return ``x``, moved to SBUF if it is in PSUM."""
    return cast_copy(x, x.dtype) if x.buffer is MemoryRegion.psum else x


def is_column(x: NkiTensor) -> bool:
    """Return whether ``x`` has one element a partition."""
    return prod(x.shape[1:]) == 1
