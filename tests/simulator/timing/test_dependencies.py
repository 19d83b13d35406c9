# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Earlier accesses for which a read and a write of a part of a storage have to wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.simulator.terms.enums import Engine
from nkilib.simulator.terms.layout import Layout
from nkilib.simulator.timing.dependencies import Done, HbmUses, TileUses
from nkilib.simulator.timing.footprints import OccupiedBytes, _part

KINDS = pytest.mark.parametrize("kind", [TileUses, HbmUses])
SYNC_NS = 0.5


def part(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> OccupiedBytes:
    result = _part(Layout(shape, strides, offset), 1)
    assert result is not None
    return result


def done(by: Engine, until_ns: float) -> Done:
    """Others than DMA are noticed late."""
    return Done(by, until_ns, until_ns if by is Engine.dma else until_ns + SYNC_NS, 1)


def read(uses: Any, part: OccupiedBytes, by: Engine = Engine.tensor) -> float:
    """Return the time from which on it can be read."""
    return float(uses[part].last_write(by).ready_ns(by))


def write(uses: Any, part: OccupiedBytes, by: Engine = Engine.tensor) -> float:
    """Return the time from which on it can be overwritten."""
    return float(uses[part].last_access(by)[0].ready_ns(by))


@KINDS
def test_a_write_stands_for_what_it_has_waited_for(kind: Any) -> None:
    left, right, whole = part((4, 5), (10, 1)), part((4, 5), (10, 1), offset=5), part((4, 10), (10, 1))
    uses = kind(1)
    assert write(uses, left) == 0.0
    uses[left].note_write(done(Engine.vector, 10.0))
    assert read(uses, right) == 0.0
    uses[right].note_read(done(Engine.scalar, 20.0))
    assert read(uses, whole) == 10.5
    assert write(uses, whole) == 20.5
    assert write(uses, part((1, 5), (10, 1), offset=50)) == 0.0
    uses[whole].note_write(done(Engine.dma, 30.0))
    assert read(uses, left) == write(uses, right) == 30.0


@KINDS
def test_many_parts_of_one_storage_are_told_apart(kind: Any) -> None:
    """Parts of several extents: one that begins far in front of another may still reach into it."""
    parts = [part((4, 10), (100, 1), offset=10 * number) for number in range(10)]
    uses = kind(1)
    for number, some in enumerate(parts):
        assert write(uses, some) == 0.0
        uses[some].note_write(done(Engine.dma, float(number)))
    uses[part((1,), (1,), offset=1000)].note_write(done(Engine.dma, 100.0))
    assert read(uses, part((3,), (1,), offset=345)) == 4.0
    assert read(uses, part((20,), (1,), offset=215)) == 3.0
    assert read(uses, part((10,), (1,), offset=210)) == 1.0


@KINDS
def test_engines_notice_each_other_late_and_know_what_they_did(kind: Any) -> None:
    whole = part((4, 10), (10, 1))
    uses = kind(1)
    uses[whole].note_write(done(Engine.dma, 5.0))
    assert read(uses, whole) == write(uses, whole) == 5.0  # the end of a DMA is noticed at once
    uses[whole].note_write(done(Engine.vector, 10.0))
    assert (read(uses, whole, Engine.vector), read(uses, whole, Engine.scalar)) == (10.0, 10.5)
    assert (write(uses, whole, Engine.vector), write(uses, whole, Engine.scalar)) == (0.0, 10.5)
    uses[whole].note_read(done(Engine.scalar, 25.0))
    uses[whole].note_read(done(Engine.scalar, 20.0))
    assert read(uses, whole) == 10.5
    assert (write(uses, whole, Engine.vector), write(uses, whole, Engine.scalar)) == (25.5, 10.5)
    uses[whole].note_read(done(Engine.dma, 30.0))
    assert write(uses, whole, Engine.dma) == 30.0  # DMA works at several transfers at a time


@KINDS
def test_a_read_waits_for_the_write_that_its_engine_notices_last(kind: Any) -> None:
    """Vector knows of its own write at once, and of the earlier one of Scalar a little later than that."""
    left, right, whole = part((4, 5), (10, 1)), part((4, 5), (10, 1), offset=5), part((4, 10), (10, 1))
    uses = kind(1)
    uses[left].note_write(done(Engine.scalar, 9.75))
    uses[right].note_write(done(Engine.vector, 10.0))
    assert (read(uses, whole, Engine.vector), read(uses, whole, Engine.scalar)) == (10.25, 10.5)


ACCESSES = st.tuples(
    st.sampled_from([part((4, 2), (10, 1), offset=at) for at in range(5)] + [part((4, 10), (10, 1)), part((9,), (1,))]),
    st.sampled_from([Engine.vector, Engine.scalar, Engine.dma]),
    st.booleans(),
)


@given(st.lists(ACCESSES, max_size=12))
def test_instructions_start_at_one_time_on_a_tile_and_in_hbm(
    accesses: list[tuple[OccupiedBytes, Engine, bool]],
) -> None:
    """Each takes a nanosecond. A tile remembers reads before a write of more than them, after which all come anyway."""
    tile, hbm = TileUses(1), HbmUses(2)
    free: dict[Engine, float] = {}
    for some, by, is_write in accesses:
        ask = write if is_write else read
        # Engines work in order, but for DMA.
        own = 0.0 if by is Engine.dma else free.get(by, 0.0)
        start = max(own, ask(tile, some, by))
        assert start == max(own, ask(hbm, some, by))
        free[by] = start + 1.0
        for place in (tile[some], hbm[some]):
            if is_write:
                place.note_write(done(by, start + 1.0))
            else:
                place.note_read(done(by, start + 1.0))
