"""Instructions of the GpSimd engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...isa.operand import SBUF, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...numerics.casts import store_float
from ...tensors.scalars import DeviceInteger
from ...tensors.tensor import NkiTensor
from ...terms.enums import Engine
from ...timing import costs
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
    """``offset + partition * channel_multiplier + sum(step_k * i_k)`` in 32-bit integers, cast to the type of ``dst``.

    ``pattern`` is ``[[step, num], ...]`` with up to four pairs, the last one changing fastest; the product of the
    numbers is the number of elements per partition. ``offset`` may be a register or an ``NkiScalar`` of int32.
    """
    _store(dst, affine_values(dst, pattern, offset, channel_multiplier).reshape(dst.shape))


def _store(dst: NkiTensor, values: npt.NDArray[np.int32]) -> None:
    if not dst.dtype.is_integer:
        store_float(dst.array, values.astype(np.float32), dst.dtype)
    elif dst.dtype.itemsize == values.itemsize:
        dst.array[...] = values.view(dst.array.dtype)
    else:
        limits = np.iinfo(dst.dtype.numpy)
        dst.array[...] = np.clip(values, limits.min, limits.max).astype(dst.dtype.numpy)
