# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Effects of instructions on whole arrays, applied at once or recorded as a step of a plan.

``act`` applies any effect. Constants, copies and the exact integer arithmetic of the GpSimd engine use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..isa.operators import filling
from ..machine.core import Core
from ..numerics.casts import store_integer
from ..numerics.operators import ARITHMETIC
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import int32, uint32


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

    ``function`` reads and writes nothing else. A plan may call it again with other elements in arrays of the same
    shapes, so that it must not keep anything from a call. It is not called if a tensor that it writes has no values.

    Args:
        core: the core that runs the instruction.
        function: the function that computes the effect.
        writes: tensors whose elements ``function`` all writes, without reading any of them before.
        reads: tensors that it only reads.
        updates: tensors of which it writes some elements, or whose previous elements it needs.
        chosen: tensors of which it only reads elements that it chooses; it must not choose unwritten ones.
        may_refuse: whether it raises an error for some elements.
    """
    if core.emitter is not None:
        core.emitter.act(function, writes, reads, updates, chosen, may_refuse)
    elif not any([tensor.storage.is_abstract for tensor in (*writes, *updates)]):
        function(*[tensor.array for tensor in (*writes, *updates, *reads, *chosen)])


def put(core: Core, tensor: NkiTensor, elements: npt.NDArray[Any]) -> None:
    """Write ``elements``, known before the instruction runs, into ``tensor``.

    They have the shape and type of ``tensor``, or are a single element for all.
    """

    def write(into: npt.NDArray[Any]) -> None:
        into[...] = elements

    act(core, write, writes=(tensor,))


def fill(core: Core, tensor: NkiTensor, value: Any) -> None:
    """Write the number ``value`` into every element of ``tensor``.

    Raises:
        NkiValidationError: see :func:`filling`.
    """
    put(core, tensor, filling(tensor, value))


def copy_elements(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
    """Copy elements bit by bit, in row-major order, between arrays of one type that may differ in shape."""
    into[...] = elements if elements.shape == into.shape else elements.reshape(into.shape)


Integers = npt.NDArray[Any]

_INTEGERS = frozenset({int32, uint32})
# Operators whose 32-bit result is the wrapped wide result. A magnitude is not: the lowest int32 has one of 33 bits.
_CLOSED = frozenset(ARITHMETIC) - {"power", "abs_max", "abs_min"}


def are_integers(*tiles: NkiTensor) -> bool:
    """Return whether all tiles have types with which GpSimd computes exactly."""
    return _INTEGERS.issuperset([tile.dtype for tile in tiles])


def compute_integers(core: Core, key: str, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor) -> None:
    """Compute ``dst = data1 <key> data2`` on tiles that are all int32 or uint32: exactly, and wrapped to 32 bits."""
    function, dtype = ARITHMETIC[key], dst.dtype
    is_closed = dtype == data1.dtype == data2.dtype and key in _CLOSED

    def combine(into: Integers, first: Integers, second: Integers) -> None:
        left, right = first.reshape(into.shape), second.reshape(into.shape)
        if is_closed:
            function(left, right, into)
            return
        exact = np.empty(into.shape, np.int64)
        function(left.astype(np.int64), right.astype(np.int64), exact)
        store_integer(into, exact, dtype)

    act(core, combine, writes=(dst,), reads=(data1, data2))
