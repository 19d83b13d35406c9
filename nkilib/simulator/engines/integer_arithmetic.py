# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Exact arithmetic of 32-bit integers, as on the GpSimd engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..machine.core import Core
from ..numerics.casts import store_integer
from ..numerics.operators import ARITHMETIC
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import int32, uint32
from .actions import act

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
