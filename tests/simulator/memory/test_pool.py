# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``memory.pool``: memory of large on-chip tensors is used again, and never while somebody looks at it."""

from __future__ import annotations

import numpy as np

from nkilib.simulator.memory.pool import BytePool
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.terms.dtypes import float32
from nkilib.simulator.terms.layout import dense
from nkilib.simulator.terms.regions import MemoryRegion

MEBI = 1 << 20


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_a_returned_array_is_taken_again() -> None:
    pool = BytePool()
    array = pool.take(2 * MEBI)
    where = address(array)
    pool.give(array)
    del array
    assert address(pool.take(2 * MEBI)) == where


def test_another_size_is_another_array() -> None:
    pool = BytePool()
    array = pool.take(2 * MEBI)
    pool.give(array)
    assert pool.take(3 * MEBI).size == 3 * MEBI


def test_an_array_that_a_view_refers_to_is_not_taken_again() -> None:
    pool = BytePool()
    array = pool.take(2 * MEBI)
    view = array[:10]
    where = address(array)
    pool.give(array)
    del array
    assert address(pool.take(2 * MEBI)) != where
    assert view.size == 10


def test_small_arrays_and_more_than_the_limit_are_not_kept() -> None:
    pool = BytePool()
    pool.give(np.empty(MEBI - 1, np.uint8))
    for _ in range(3):
        pool.give(np.empty(30 * MEBI, np.uint8))
    assert pool.kept_bytes == 60 * MEBI


def test_tiles_of_one_launch_serve_the_next() -> None:
    def tile() -> Storage:
        return Storage((128, 4096), float32, MemoryRegion.sbuf, "tile")

    first = tile()
    first.written.mark(dense(first.shape), 4)
    assert first.written.is_full
    del first
    second = tile()
    assert not second.written.is_full, "the memory is used again, what was written is forgotten"
