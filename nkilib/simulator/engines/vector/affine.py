# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Affine sequences of 32-bit integers, as the GpSimd engine generates them for ``iota`` and ``affine_select``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.limits import FREE_DIMENSIONS_MAX
from ...tensors.scalars import DeviceInteger, int32_of
from ...tensors.tensor import NkiTensor
from ...terms.errors import NkiValidationError
from ...terms.spec import DataNeeded

_INT32 = np.iinfo(np.int32)


def affine_values(
    dst: NkiTensor, pattern: Sequence[Sequence[int]], offset: Any, channel_multiplier: Any
) -> npt.NDArray[np.int32]:
    """Return ``offset + partition * channel_multiplier + sum(step_k * i_k)`` for the elements of ``dst``.

    The values are wrapped to 32 bits. An element has the indices i_0, i_1, ... in the free dimensions of ``pattern``.

    Args:
        dst: the tile with the elements; its partitions are counted from its first one.
        pattern: ``[[step, num], ...]``, up to four pairs, the last one changing fastest; the steps are int32.
        offset: an int32: an integer, or a register or scalar, which is read now.
        channel_multiplier: an int32.

    Returns:
        An array (partitions, elements per partition).

    Raises:
        NkiValidationError: if the pattern has another form or size, or a number is no int32.
    """
    try:
        steps = [index(step) for step, _ in pattern]
        counts = [index(count) for _, count in pattern]
    except (TypeError, ValueError):
        raise NkiValidationError(f"pattern must be [[step, num], ...] of integers, got {pattern!r}") from None
    if not 1 <= len(counts) <= FREE_DIMENSIONS_MAX or min(counts) < 1 or prod(counts) != dst.free_size:
        raise NkiValidationError(
            f"pattern must have 1 to {FREE_DIMENSIONS_MAX} pairs [step, num] whose numbers multiply to the "
            f"{dst.free_size} elements per partition of {dst}, got {pattern!r}"
        )
    if isinstance(offset, DeviceInteger):
        offset = int32_of("offset", offset)
    numbers = [("offset", offset), ("channel_multiplier", channel_multiplier), *(("a step", step) for step in steps)]
    for name, value in numbers:
        if not isinstance(value, int | np.integer) or not _INT32.min <= value <= _INT32.max:
            may_be = ", a register or a scalar" if name == "offset" else ""
            remedy = "; nisa.scalar_load reads a scalar from it" if may_be and isinstance(value, NkiTensor) else ""
            raise NkiValidationError(f"{name} must be an int32{may_be}, got {value!r}{remedy}")
    if dst.storage.is_abstract:
        raise DataNeeded(repr(dst), dst.storage.origin)
    values = np.full((1,), offset, np.int64)
    for step, count in zip(steps, counts, strict=True):
        values = (values[:, None] + step * np.arange(count, dtype=np.int64)[None, :]).reshape(-1)
    partitions = np.arange(dst.shape[0], dtype=np.int64) * channel_multiplier
    return partitions.astype(np.int32)[:, None] + values.astype(np.int32)[None, :]
