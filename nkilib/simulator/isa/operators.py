# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators that instructions take as ``op``, by their names in ``nki.language``, and constants cast to a type.

Source: table "Supported Math Operators" (``nki/api/nki.api.shared.rst``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import numpy as np
import numpy.typing as npt

from ..hardware.current import current_generation
from ..numerics.activations import ACTIVATIONS, PARAMETRIC
from ..numerics.casts import store_float
from ..numerics.operators import ARITHMETIC, ARITHMETIC_UNARY, BITWISE, BITWISE_UNARY
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import int64
from ..terms.enums import nc_version
from ..terms.errors import NkiValidationError

# "Available only on NeuronCore-v4 (trn3) and newer" (docstrings of nl.abs_max and nl.abs_min).
_SINCE_TRN3 = frozenset({"abs_max", "abs_min"})

# The mean over partitions is an operator of ``tensor_partition_reduce`` alone: ``average`` until NKI 0.6.
MEAN = "mean"

# nl.max and nl.min are functions of the language; the instructions' texts also name them as operators.
_ALIASES = {"max": "maximum", "min": "minimum", "sum": "add", "average": MEAN}

# Where an instruction may leave out a step, the operator that says so.
BYPASS = "bypass"


class Operator:
    """A function of ``nki.language`` that instructions accept as ``op``, for instance ``nl.add`` or ``nl.exp``.

    A call works on tiles, with the function that ``api/language.py`` binds to the operator.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.key = _ALIASES.get(name, name)
        self._function: Callable[..., Any] | None = None

    def bind(self, function: Callable[..., Any]) -> None:
        """Make calls run ``function``, and take over its signature and documentation."""
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise NotImplementedError(
                f"nki.language.{self.__name__} is an operator only, not implemented in the simulator yet as a function "
                "on tiles; pass it as op= to a nisa instruction"
            )
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"nl.{self.__name__}"


def operator_key(parameter: str, op: Any) -> str:
    """Return the name of ``op``, by which the tables of this module and of ``activations`` list it.

    Raises:
        NkiValidationError: if ``op`` is not an operator of ``nki.language``, or one that the target does not have; the
            message names ``parameter``.
    """
    if not isinstance(op, Operator):
        raise NkiValidationError(f"{parameter} must be an operator such as nl.add, got {op!r}")
    if op.key in _SINCE_TRN3 and current_generation().version is not nc_version.gen4:
        raise NkiValidationError(f"{parameter}={op!r} needs trn3; the target is {current_generation().name}")
    return op.key


# Every function of nki.language that the tables of instructions know.
OPERATORS: dict[str, Operator] = {
    name: Operator(name)
    for name in sorted(
        {
            *ARITHMETIC,
            *ARITHMETIC_UNARY,
            *BITWISE,
            *BITWISE_UNARY,
            *ACTIVATIONS,
            *PARAMETRIC,
            *_ALIASES,
            BYPASS,
            MEAN,
        }
    )
}


def require_number(name: str, value: Any) -> None:
    """Check that ``value`` is a compile-time number.

    Raises:
        NkiValidationError: naming the parameter.
    """
    if not isinstance(value, bool | int | float | np.number):
        raise NkiValidationError(f"{name} must be a compile-time number, got {value!r}")


def stored_type(tensor: NkiTensor) -> np.dtype[Any]:
    """Return the numpy type in which an element of ``tensor`` is stored."""
    return tensor.storage.numpy_type_of(tensor.dtype)


def cast_number(value: Any, tensor: NkiTensor) -> npt.NDArray[Any]:
    """Return a number as an element of ``tensor``, in an array of size 1.

    It is rounded to float32 and cast as on the engines.
    """
    cast = np.empty(1, stored_type(tensor))
    store_float(cast, np.full(1, value, np.float32), tensor.dtype)
    return cast


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
