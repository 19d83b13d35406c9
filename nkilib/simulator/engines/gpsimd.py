"""Instructions of the GpSimd engine."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index

import numpy as np
import numpy.typing as npt

from ..blocks import free_size
from ..casts import store_float
from ..enums import engine as engines
from ..errors import NkiValidationError
from ..generations import FREE_DIMENSIONS_MAX
from ..instruction import Call, instruction
from ..operands import SBUF, output
from ..tensor import NkiTensor

_INT32 = np.iinfo(np.int32)


@instruction(operands=(output("dst", regions=SBUF),), on=(engines.gpsimd,))
def iota(
    call: Call, dst: NkiTensor, pattern: Sequence[Sequence[int]], offset: int = 0, channel_multiplier: int = 0
) -> None:
    """``offset + partition * channel_multiplier + sum(step_k * i_k)`` in 32-bit integers, cast to the type of ``dst``.

    ``pattern`` is ``[[step, num], ...]`` with up to four pairs, the last one changing fastest; the product of the
    numbers is the number of elements per partition.
    """
    try:
        steps = [index(step) for step, _ in pattern]
        counts = [index(count) for _, count in pattern]
    except (TypeError, ValueError):
        raise NkiValidationError(f"pattern must be [[step, num], ...] of integers, got {pattern!r}") from None
    if not 1 <= len(counts) <= FREE_DIMENSIONS_MAX or min(counts) < 1 or prod(counts) != free_size(dst):
        raise NkiValidationError(
            f"pattern must have 1 to {FREE_DIMENSIONS_MAX} pairs [step, num] whose numbers multiply to the "
            f"{free_size(dst)} elements per partition of {dst}, got {pattern!r}"
        )
    for name, value in (("offset", offset), ("channel_multiplier", channel_multiplier)):
        if not isinstance(value, int | np.integer) or not _INT32.min <= value <= _INT32.max:
            raise NkiValidationError(f"{name} must be an int32, got {value}")
    values = np.full((1,), offset, np.int64)
    for step, count in zip(steps, counts, strict=True):
        values = (values[:, None] + step * np.arange(count, dtype=np.int64)[None, :]).reshape(-1)
    partitions = np.arange(dst.shape[0], dtype=np.int64) * channel_multiplier
    wrapped = (partitions[:, None] + values[None, :]).astype(np.int32)
    _store(dst, wrapped.reshape(dst.shape))


def _store(dst: NkiTensor, values: npt.NDArray[np.int32]) -> None:
    if not dst.dtype.is_integer:
        store_float(dst.array, values.astype(np.float32), dst.dtype)
    elif dst.dtype.itemsize == values.itemsize:
        dst.array[...] = values.view(dst.array.dtype)
    else:
        limits = np.iinfo(dst.dtype.numpy)
        dst.array[...] = np.clip(values, limits.min, limits.max).astype(dst.dtype.numpy)
