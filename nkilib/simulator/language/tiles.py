"""What the functions on tiles share: their operands, the tiles that they make, and the place in their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..api import isa as nisa
from ..creation import ndarray
from ..dtypes import DType, as_dtype
from ..errors import NkiValidationError, add_location
from ..memory import MemoryRegion
from ..tensor import NkiTensor

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# An element-wise operand: a tile, or a number that stands for a tile of it.
TileOrNumber = NkiTensor | int | float


def language_function(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """``function`` with its errors located in the kernel, as ``file:line: nl.name: ...``.

    What an instruction inside refuses is located already, under the instruction's own name.
    """

    @wraps(function)
    def located(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except NkiValidationError as error:
            add_location(error, f"nl.{located.__name__}")
            raise

    return located


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, np.ndarray) and value.shape == ())


def as_tile(name: str, value: Any) -> NkiTensor:
    """``value`` as a tile with a static address; an indirect view is read into a new tile.

    Raises:
        NkiValidationError: if it is no tensor in SBUF or PSUM.
    """
    if not isinstance(value, NkiTensor):
        raise NkiValidationError(f"{name} must be a tile, got {value!r}")
    if not value.is_on_chip():
        raise NkiValidationError(f"{name} must be a tile in sbuf or psum, got {value}: load it first, with nl.load")
    return cast_copy(value, value.dtype) if value.is_indirect() else value


def new_tile(shape: Sequence[int], dtype: DType) -> NkiTensor:
    """An unwritten tile in SBUF."""
    return ndarray(shape, dtype, MemoryRegion.sbuf)


def result_tile(shape: Sequence[int], dtype: Any, default: DType) -> NkiTensor:
    """The unwritten tile of a result: of the type that the caller asks for, else of ``default``."""
    return new_tile(shape, default if dtype is None else as_dtype(dtype))


def cast_copy(x: NkiTensor, dtype: DType) -> NkiTensor:
    """A new SBUF tile with the elements of ``x``."""
    result = new_tile(x.shape, dtype)
    nisa.tensor_copy(result, x)
    return result


def in_sbuf(x: NkiTensor) -> NkiTensor:
    """``x``, moved to SBUF if it is in PSUM."""
    return cast_copy(x, x.dtype) if x.buffer is MemoryRegion.psum else x


def is_column(x: NkiTensor) -> bool:
    """Whether ``x`` has one element a partition."""
    return prod(x.shape[1:]) == 1
