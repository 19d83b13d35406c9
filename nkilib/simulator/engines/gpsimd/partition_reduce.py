# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``tensor_partition_reduce``: reduction across partitions, on the GpSimd engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.operand import Operand, output
from ...isa.operators import MEAN, operator_key
from ...machine.call import Call
from ...machine.issue import instruction
from ...numerics.casts import store_float
from ...numerics.operators import BITWISE_REDUCTIONS
from ...tensors.tensor import NkiTensor
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..actions import act
from ..vector.elementwise import require_bit_patterns

_ARITHMETIC = {"add": np.add, MEAN: np.add, "maximum": np.maximum}
_BITWISE = ("bitwise_or", "bitwise_and", "bitwise_xor")


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.gpsimd,),
    cost=costs.assumed("data"),
)
def tensor_partition_reduce(call: Call, dst: NkiTensor, op: Any, data: NkiTensor) -> None:
    """Reduce the partitions of ``data`` to the single partition of ``dst``, for every element of the free dimensions.

    ``op`` is ``nl.add``, ``nl.mean`` or ``nl.max``, in float32, or ``nl.bitwise_or``, ``nl.bitwise_and`` or
    ``nl.bitwise_xor`` on integers of one width. ``nl.average``, the name of the mean in NKI 0.6, is still accepted.
    """
    if dst.shape[0] != 1 or dst.free_size != data.free_size:
        raise NkiValidationError(
            f"operand 'dst' must have 1 partition and the {data.free_size} elements per partition of 'data', got {dst}"
        )
    if data.shape[0] == 0:
        raise NkiValidationError(f"operand 'data' must have partitions to reduce, got {data}")
    key = operator_key("op", op)
    if key in _BITWISE:
        require_bit_patterns({"dst": dst, "data": data})
        bitwise = BITWISE_REDUCTIONS[key]

        def combine(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
            np.copyto(into, bitwise.reduce(elements, axis=0).reshape(into.shape), casting="unsafe")

        act(call.core, combine, writes=(dst,), reads=(data,))
        return
    if key not in _ARITHMETIC:
        raise NkiValidationError(
            f"op must be nl.add, nl.mean, nl.max, nl.bitwise_or, nl.bitwise_and or nl.bitwise_xor, got {op!r}"
        )
    arithmetic, dtype = _ARITHMETIC[key], dst.dtype
    count = np.float32(data.shape[0]) if key == MEAN else None

    def reduce(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        values = arithmetic.reduce(elements.astype(np.float32), axis=0)
        store_float(into, values if count is None else values / count, dtype)

    act(call.core, reduce, writes=(dst,), reads=(data,))
