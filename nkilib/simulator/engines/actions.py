# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The effects of instructions on whole arrays: applied at once, or recorded as a step of a replay plan.

- :func:`fill_element`, :func:`cast_number`, with :func:`require_number` and :func:`stored_type`: convert a number to an
  element of a tensor.
- :func:`act`: applies any effect, given as a function of arrays.
- :func:`put`, :func:`fill`, :func:`copy_elements`: write known elements, write one number everywhere, copy elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..machine.core import Core
from ..numerics.casts import store_float
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import int64
from ..terms.errors import NkiValidationError


def require_number(name: str, value: Any) -> None:
    """Check that ``value`` is a compile-time number.

    Raises:
        NkiValidationError: ``value`` is no number; the message has ``name``, the name of the parameter.
    """
    if not isinstance(value, bool | int | float | np.number):
        raise NkiValidationError(f"{name} must be a compile-time number, got {value!r}")


def stored_type(tensor: NkiTensor) -> np.dtype[Any]:
    """Return the numpy type in which the storage of ``tensor`` holds an element."""
    return tensor.storage.numpy_type_of(tensor.dtype)


def cast_number(value: Any, tensor: NkiTensor) -> npt.NDArray[Any]:
    """Return ``value`` in the type of ``tensor``'s elements, as an array of size 1.

    The number is rounded to float32, and then cast as on the engines.
    """
    cast = np.empty(1, stored_type(tensor))
    store_float(cast, np.full(1, value, np.float32), tensor.dtype)
    return cast


def fill_element(tensor: NkiTensor, value: Any) -> npt.NDArray[Any]:
    """Return the constant ``value`` as an element of ``tensor``, in an array of size 1.

    For an integer type, ``value`` must be an integer and stays exact; for a float type, ``value`` is cast as on the
    engines.

    Raises:
        NkiValidationError: ``value`` is not a number, the tensor's integer type cannot hold ``value``, a packed type
            gets another value than 0, or the type is int64, for which no instruction writes a constant.
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


def act(
    core: Core,
    function: Callable[..., object],
    *,
    writes: Sequence[NkiTensor] = (),
    reads: Sequence[NkiTensor] = (),
    updates: Sequence[NkiTensor] = (),
    chosen: Sequence[NkiTensor] = (),
    may_refuse: bool = False,
) -> None:
    """Call ``function`` with the arrays of ``writes``, ``updates``, ``reads`` and ``chosen``, in this order.

    ``function`` reads and writes only these arrays. A replay may call ``function`` again with other elements in arrays
    of the same shapes, so a call must not keep any value. ``function`` is not called if the launch has no values for a
    tensor in ``writes`` or ``updates``.

    Args:
        core: the core that runs the instruction.
        function: the function that computes the effect.
        writes: tensors of which ``function`` writes every element and reads none before it is written.
        reads: tensors that ``function`` only reads.
        updates: tensors of which ``function`` writes only some elements, or reads the previous elements.
        chosen: tensors of which ``function`` reads only some elements, which must have been written.
        may_refuse: whether ``function`` raises an error for some values.
    """
    if core.emitter is not None:
        core.emitter.act(function, writes, reads, updates, chosen, may_refuse)
    elif not any([tensor.storage.is_abstract for tensor in (*writes, *updates)]):
        function(*[tensor.array for tensor in (*writes, *updates, *reads, *chosen)])


def put(core: Core, tensor: NkiTensor, elements: npt.NDArray[Any]) -> None:
    """Write ``elements``, whose values are known before the instruction runs, into ``tensor``.

    ``elements`` has the shape and type of ``tensor``, or is a single element, which is written everywhere.
    """

    def write(into: npt.NDArray[Any]) -> None:
        into[...] = elements

    act(core, write, writes=(tensor,))


def fill(core: Core, tensor: NkiTensor, value: Any) -> None:
    """Write the number ``value`` into every element of ``tensor``.

    Raises:
        NkiValidationError: see :func:`fill_element`.
    """
    put(core, tensor, fill_element(tensor, value))


def copy_elements(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
    """Copy elements bit by bit, in row-major order, between two arrays of one type whose shapes may differ."""
    into[...] = elements if elements.shape == into.shape else elements.reshape(into.shape)
