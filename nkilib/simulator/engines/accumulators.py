"""Reading the accumulator registers of an engine into a tile."""

from __future__ import annotations

import numpy as np

from ..machine.core import Accumulators, Core
from ..machine.levels import refuse
from ..numerics.casts import store_float
from ..tensors.partitions import first_lane
from ..tensors.tensor import NkiTensor
from ..terms.errors import UninitializedReadError, kernel_location

# For reduce_cmd=reduce.
CONTINUES = "reduce_cmd=reduce continues from accumulator registers that hold no defined value; start with reset_reduce"


def lanes_of(data: NkiTensor) -> slice:
    """The registers that an instruction on ``data`` uses: those of its partitions."""
    start = first_lane(data)
    return slice(start, start + data.shape[0])


def check_known(core: Core, registers: Accumulators, lanes: slice, message: str) -> None:
    """Refuse, as the options say, to go on from registers that hold no defined value.

    Raises:
        UninitializedReadError: with ``message``, at ``uninitialized="error"``.
    """
    if core.options.uninitialized != "ignore" and not registers.known[lanes].all():
        refuse(core.options.uninitialized, UninitializedReadError(message), kernel_location())


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
    check_known(
        *(core, registers, lanes),
        "reduce_res reads accumulator registers that hold no defined value; start with reduce_cmd=reset_reduce",
    )
    values = registers.values[lanes]
    store_float(destination.array, np.negative(values) if negate else values, destination.dtype)
