"""Reading the accumulator registers of an engine into a tile."""

from __future__ import annotations

import numpy as np

from ..machine.core import Accumulators, Core
from ..numerics.casts import store_float
from ..tensors.partitions import first_lane
from ..tensors.tensor import NkiTensor
from ..terms.errors import UninitializedReadError


def lanes_of(data: NkiTensor) -> slice:
    """The registers that an instruction on ``data`` uses: those of its partitions."""
    start = first_lane(data)
    return slice(start, start + data.shape[0])


def read_accumulators(
    core: Core, registers: Accumulators, data: NkiTensor, destination: NkiTensor | None, *, negate: bool = False
) -> None:
    """Store the registers of the partitions of ``data`` into ``destination``, a (P, 1) tile; nothing if it is None.

    Raises:
        UninitializedReadError: if a register holds no defined value, with ``uninitialized="error"``.
    """
    if destination is None:
        return
    lanes = lanes_of(data)
    if core.options.uninitialized == "error" and not registers.known[lanes].all():
        raise UninitializedReadError(
            "reduce_res reads accumulator registers that hold no defined value; start with reduce_cmd=reset_reduce"
        )
    values = registers.values[lanes]
    store_float(destination.array, np.negative(values) if negate else values, destination.dtype)
