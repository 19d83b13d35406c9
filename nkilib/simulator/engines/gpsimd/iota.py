# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``iota``: sequences of integers generated on the GpSimd engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.fill import stored_type
from ...isa.operand import SBUF, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...numerics.casts import store_float
from ...tensors.scalars import DeviceInteger
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import float32
from ...terms.enums import Engine
from ...timing import costs
from ..actions import put
from ..vector.affine import affine_values


@instruction(
    operands=(output("dst", regions=SBUF),),
    on=(Engine.gpsimd,),
    cost=costs.counted,
)
def iota(
    call: Call,
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int | DeviceInteger = 0,
    channel_multiplier: int = 0,
) -> None:
    """Generate ``offset + partition * channel_multiplier + sum(step_k * i_k)`` in ``dst``.

    ``pattern`` is ``[[step, num], ...]`` with up to four pairs; the index i_k runs from 0 to num_k - 1, the last one
    fastest, and the product of the ``num`` is the number of elements per partition. The numbers are computed in 32-bit
    integers and cast to the type of ``dst``. ``offset`` may be a register or an ``NkiScalar`` of int32.
    """
    put(call.core, dst, _cast(affine_values(dst, pattern, offset, channel_multiplier).reshape(dst.shape), dst))


def _cast(values: npt.NDArray[np.int32], dst: NkiTensor) -> npt.NDArray[Any]:
    """Return the integers, cast to the type of ``dst``."""
    if not dst.dtype.is_integer:
        floats = values.astype(np.float32)
        if dst.dtype == float32:
            return floats
        cast = np.empty(values.shape, stored_type(dst))
        store_float(cast, floats, dst.dtype)
        return cast
    if dst.dtype.itemsize == values.itemsize:
        return values.view(dst.dtype.numpy)
    limits = np.iinfo(dst.dtype.numpy)
    return np.clip(values, limits.min, limits.max).astype(dst.dtype.numpy)
