# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that read the accumulator registers of an engine into a tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..hardware.options import refuse
from ..machine.core import Accumulators, Core
from ..numerics.casts import store_float
from ..tensors.tensor import NkiTensor
from ..tensors.view import assumed_partition
from ..terms.dtypes import DType
from ..terms.errors import UninitializedReadError, kernel_location

# For reduce_cmd=reduce.
CONTINUES = "reduce_cmd=reduce continues from accumulator registers that hold no defined value; start with reset_reduce"


def lanes_of(data: NkiTensor) -> slice:
    """Return the slice of the accumulator registers that an instruction on ``data`` uses, one for each partition."""
    start = assumed_partition(data)
    return slice(start, start + data.shape[0])


def check_known(core: Core, registers: Accumulators, lanes: slice, message: str) -> None:
    """Check that the registers of ``lanes`` hold defined values before an instruction continues from them.

    The option ``uninitialized`` decides how a violation is reported.

    Raises:
        UninitializedReadError: with ``message``, if a register holds none and ``uninitialized="error"``.
    """
    level = core.options.uninitialized
    if (level == "ignore" and not core.is_recorded) or registers.known[lanes].all():
        return
    core.unrepeatable = "it reads accumulator registers that hold nothing defined"
    if level != "ignore":
        refuse(level, UninitializedReadError(message), kernel_location())


def check_stored(core: Core, registers: Accumulators, lanes: slice) -> None:
    """Check that the registers of ``lanes`` hold defined values before they are stored.

    The option ``uninitialized`` decides how a violation is reported.

    Raises:
        UninitializedReadError: if a register holds none, with ``uninitialized="error"``.
    """
    check_known(
        *(core, registers, lanes),
        "reduce_res reads accumulator registers that hold no defined value; start with reduce_cmd=reset_reduce",
    )


def read_accumulators(
    core: Core,
    registers: Accumulators,
    lanes: slice,
    destination: npt.NDArray[Any],
    dtype: DType,
    *,
    negate: bool = False,
) -> None:
    """Store the registers of ``lanes`` in ``destination``, the elements of a (P, 1) tile of type ``dtype``.

    ``negate`` stores them times -1.

    Raises:
        UninitializedReadError: if a register holds no defined value, with ``uninitialized="error"``.
    """
    check_stored(core, registers, lanes)
    values = registers.read(lanes)
    store_float(destination, np.negative(values) if negate else values, dtype)
