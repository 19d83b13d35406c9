# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Element-wise operators with two operands, each computed by one of two instructions.

- A tile with a number, or with a float32 tile of one element a partition: ``nisa.tensor_scalar`` on the Vector
  engine, whose arithmetic is float32 (integers are exact up to 2^24).
- Two tiles: ``nisa.tensor_tensor`` on the Vector engine, or on GpSimd for ``power``, and if both operands and the
  result are 32-bit integers (then exact). Sizes of 1 are broadcast.
"""

from __future__ import annotations

from typing import Any

from ..engines.vector.arithmetic import tensor_scalar, tensor_tensor
from ..isa.operators import OPERATORS, Operator
from ..numerics.operators import is_bitwise
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import DType, as_dtype, float32
from ..terms.errors import NkiValidationError
from ..terms.regions import MemoryRegion
from .broadcasting import common_shape, free_view, spread
from .promotion import promoted, with_number
from .tiles import as_tile, cast_copy, in_sbuf, is_column, is_number, new_tile

# Comparisons "default to the input tile dtype", so with any number (docstrings of nl.equal and its relatives); logical
# operators, whose docstrings leave it open, do as well.
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_TYPE_OF_TILE = _COMPARISONS | {"logical_and", "logical_or", "logical_xor"}


def binary(name: str, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Return the result of the operator ``name`` on ``x`` and ``y`` as a new tile of type ``dtype``.

    Raises:
        NkiValidationError: if neither operand is a tile, one of them is in HBM, or the shapes do not broadcast.
    """
    operator = OPERATORS[name]
    if is_number(x) and is_number(y):
        raise NkiValidationError(f"x or y must be a tile, got {x!r} and {y!r}")
    if is_number(y):
        result = _with_number(operator, as_tile("x", x), y, False, dtype)
    elif is_number(x):
        result = _with_number(operator, as_tile("y", y), x, True, dtype)
    else:
        result = _of_tiles(operator, as_tile("x", x), as_tile("y", y), dtype)
    if name in _COMPARISONS:
        result.mark_comparison()
    return result


def result_type(x: Any, y: Any) -> DType:
    """Return the type of an arithmetic result of ``x`` and ``y`` (tiles, or a tile and a number) without ``dtype=``."""
    if is_number(y):
        return with_number(x.dtype, y)
    if is_number(x):
        return with_number(y.dtype, x)
    return promoted(x.dtype, y.dtype)


def _with_number(operator: Operator, data: NkiTensor, number: Any, is_reversed: bool, dtype: Any) -> NkiTensor:
    if is_bitwise(operator.key):
        _require_integers(data, number)
        bits = new_tile(data.shape, data.dtype)
        tensor_scalar(bits, data, operator, number, is_reversed)
        return _cast(bits, dtype)
    default = data.dtype if operator.key in _TYPE_OF_TILE else with_number(data.dtype, number)
    result = new_tile(data.shape, default if dtype is None else as_dtype(dtype))
    tensor_scalar(result, data, operator, number, is_reversed)
    return result


def _of_tiles(operator: Operator, x: NkiTensor, y: NkiTensor, dtype: Any) -> NkiTensor:
    shape = common_shape(x, y)
    is_bits = is_bitwise(operator.key)
    if is_bits:
        _require_integers(x, y)
    wanted = promoted(x.dtype, y.dtype) if dtype is None or is_bits else as_dtype(dtype)
    result = new_tile(shape, wanted)
    partitions = shape[0]
    x, y = (tile if tile.shape[0] == partitions else spread(tile, partitions) for tile in (x, y))
    if not is_bits and _is_vector(y):
        tensor_scalar(result, x, operator, y)
    elif not is_bits and _is_vector(x):
        tensor_scalar(result, y, operator, x, reverse0=True)
    else:
        tensor_tensor(result, *_sources(operator, x, y, shape), operator)
    return _cast(result, dtype)


def _require_integers(*operands: NkiTensor | int | float) -> None:
    for operand in operands:
        is_integer = operand.dtype.is_integer if isinstance(operand, NkiTensor) else float(operand).is_integer()
        if not is_integer:
            raise NkiValidationError(f"bit-wise operators take integers, got {operand!r}")


def _is_vector(tile: NkiTensor) -> bool:
    """Return whether a tile has one float32 element a partition, so that ``tensor_scalar`` takes it as an operand."""
    return is_column(tile) and tile.dtype == float32


def _sources(operator: Operator, x: NkiTensor, y: NkiTensor, shape: tuple[int, ...]) -> tuple[NkiTensor, NkiTensor]:
    """Return both operands in the result's shape, in memory that ``tensor_tensor`` can read."""
    if operator.key == "power":
        # It runs on GpSimd, which has no access to PSUM.
        x, y = in_sbuf(x), in_sbuf(y)
    elif x.buffer is MemoryRegion.psum and y.buffer is MemoryRegion.psum:
        y = in_sbuf(y)
    return free_view(x, shape), free_view(y, shape)


def _cast(tile: NkiTensor, dtype: Any) -> NkiTensor:
    """Return ``tile``, copied if another type is asked for."""
    return tile if dtype is None or as_dtype(dtype) == tile.dtype else cast_copy(tile, as_dtype(dtype))
