# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Helpers for tests of several ranks: kernels around one operation, and launches of them on n ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import per_rank, ranks
from tests.hangs import HANG_SECONDS

Array = npt.NDArray[Any]
ncc = nki.collectives

# Where the tensors of an operation are, and on how many cores of each rank it runs.
MEMORIES = [(nl.private_hbm, 1), (nl.shared_hbm, 2), (nl.private_hbm, 2), (nl.sbuf, 1), (nl.sbuf, 2)]
MEMORY_IDS = [f"{memory}, {cores} cores" for memory, cores in MEMORIES]


def all_of(count: int) -> Any:
    """One list of all ranks."""
    return ncc.ReplicaGroup([list(range(count))])


def around(operation: Callable[[Any, Any], object], shape: Sequence[int], memory: Any) -> Any:
    """A kernel: `operation(src, dst)` in `memory` between a copy of its argument and one to its result of `shape`.

    With two cores, core 0 returns what it has; core 1 does the same work on what belongs to it.
    """

    def kernel(x: Any) -> Any:
        src = nl.ndarray(x.shape, x.dtype, memory)
        dst = nl.ndarray(shape, x.dtype, memory)
        result = nl.ndarray(shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(src, x)
        operation(src, dst)
        nisa.dma_copy(result, dst)
        return result

    return nki.jit(kernel)


def on_ranks(kernel: Any, shares: Sequence[Any], cores: int = 1, **arguments: Any) -> list[Any]:
    """Return the result of each rank; rank r gets `shares[r]`."""
    results: list[Any] = ranks(len(shares), timeout=HANG_SECONDS)(kernel[cores])(per_rank(list(shares)), **arguments)
    return results


def integers(seed: int, *shape: int, dtype: Any = np.float32, low: int = -8) -> Array:
    """Whole numbers below 8, whose sums over eight ranks are exact in float32."""
    return np.random.default_rng(seed).integers(low, 8, shape).astype(dtype)
