# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""GpSimd's integers: what is computed in 32 bits is what more bits would give, wrapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator.isa.operators import OPERATORS
from nkilib.simulator.numerics.operators import ARITHMETIC

from ..kernels import execute, tile

EXTREMES = np.array([-(2**31), -(2**31) + 1, -70_000, -2, -1, 0, 1, 3, 70_000, 2**31 - 2, 2**31 - 1], np.int64)
LEFT, RIGHT = (side.reshape(1, -1) for side in np.meshgrid(EXTREMES, EXTREMES))
SINCE_TRN3 = {"abs_max", "abs_min"}


def computed(key: str, types: tuple[Any, Any, Any]) -> np.ndarray:
    """The bits that GpSimd leaves in a tile of the first type, of operands of the other two."""

    def kernel() -> None:
        dst, left, right = (tile(1, LEFT.size, dtype=dtype) for dtype in types)
        left.array[...], right.array[...] = LEFT.astype(left.array.dtype), RIGHT.astype(right.array.dtype)
        for operand in (left, right):
            operand.storage.written.is_full = True
        nisa.tensor_tensor(dst, left, right, OPERATORS[key], engine=nisa.engine.gpsimd)
        results.append(dst.array.view(np.uint32).copy())

    results: list[np.ndarray] = []
    execute(kernel)
    return results[0]


@pytest.mark.parametrize("types", [(nl.int32,) * 3, (nl.uint32,) * 3, (nl.int32, nl.int32, nl.uint32)], ids=str)
@pytest.mark.parametrize("key", sorted(set(ARITHMETIC) - SINCE_TRN3))
def test_integers_are_exact_and_wrap(key: str, types: tuple[Any, Any, Any]) -> None:
    left, right = (
        side.astype(dtype.numpy).astype(np.int64) for side, dtype in zip((LEFT, RIGHT), types[1:], strict=True)
    )
    exact = np.empty(left.shape, np.int64)
    ARITHMETIC[key](left, right, exact)
    assert np.array_equal(computed(key, types), exact.astype(np.uint32))
