# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.replay.plan``: the memory of a plan, what is made in HBM, and when cores run side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator.replay.launch import Replay
from nkilib.simulator.replay.plan import _GAIN, _TRIALS, _Ways
from nkilib.simulator.replay.recorder import record_launch
from tests.simulator.replay.both_ways import compare


@nki.jit
def through_tiles(x: Any) -> Any:
    """Add 1, by way of two tiles and of a tensor in HBM that nobody gets."""
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    between = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, x)
    other_tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.tensor_scalar(other_tile, tile, nl.add, 1.0)
    nisa.dma_copy(between, other_tile)
    nisa.dma_copy(result, between)
    return result


def test_a_plan_holds_its_tensors_in_hbm_and_no_tile() -> None:
    """Tiles lie in memory that all plans share, in that of their core."""
    x = np.ones((8, 32), np.float32)
    recorded = record_launch(through_tiles, (x,), {}, [x])
    assert recorded.stream is not None
    plan = Replay(recorded.stream, [x]).plan
    assert plan.nbytes == x.nbytes
    assert (plan.run([x])[0] == x + 1).all()


@nki.jit
def in_two_loads(x: Any) -> Any:
    """Twice x: the parts of a tile come from two places, so that it cannot be read in either."""
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile[:, 0:64], x[:, 64:128])
    nisa.dma_copy(tile[:, 64:128], x[:, 0:64])
    doubled = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.tensor_scalar(doubled, tile, nl.multiply, 2.0)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, doubled)
    return result


@nki.jit
def below_its_source(x: Any) -> Any:
    """Store 2 x a row below x: made there at once, some rows that are still to be read would be overwritten."""
    between = nl.ndarray((129, x.shape[1]), x.dtype, nl.shared_hbm)
    nisa.dma_copy(between[0:128], x)
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, between[0:128])
    doubled = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.tensor_scalar(doubled, tile, nl.multiply, 2.0)
    nisa.dma_copy(between[1:129], doubled)
    result = nl.ndarray(between.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, between)
    return result


@pytest.mark.parametrize("kernel", [in_two_loads, below_its_source])
def test_a_large_tile_is_read_and_made_in_hbm_only_where_it_can_be(kernel: Any) -> None:
    x = np.arange(128.0 * 128.0, dtype=np.float32).reshape(128, 128)
    assert compare(kernel, (x,), {}, data=("permuted data",)).check().replayed


def test_between_a_load_and_a_store_of_large_tiles_only_the_arithmetic_is_left() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        tile, doubled = (nl.ndarray((128, x.shape[1] - 1), x.dtype, nl.sbuf) for _ in range(2))
        result = nl.ndarray(tile.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(tile, x[:, 1:])
        nisa.tensor_scalar(doubled, tile, nl.multiply, 2.0)
        nisa.dma_copy(result, doubled)
        return result

    def steps(columns: int) -> int:
        x = np.ones((128, columns + 1), np.float32)
        recorded = record_launch(kernel, (x,), {}, [x])
        assert recorded.stream is not None
        return Replay(recorded.stream, [x]).plan.steps

    assert (steps(16), steps(64)) == (3, 1)


def decided(in_turns: float, beside: float) -> tuple[list[bool], bool]:
    """How the first runs went, of which each way takes so many seconds, and how all later ones go."""
    ways, tried = _Ways(may_pay=True), []
    for _ in range(2 * _TRIALS):
        tried.append(ways.is_side_by_side)
        ways.note(tried[-1], beside if tried[-1] else in_turns)
    return tried, ways.is_side_by_side


@pytest.mark.parametrize(
    ("beside", "is_side_by_side"), [(0.5, True), (0.99 * _GAIN, True), (1.01 * _GAIN, False), (1.5, False)]
)
def test_the_faster_way_is_taken_after_both_were_tried(beside: float, is_side_by_side: bool) -> None:
    tried, later = decided(1.0, beside)
    assert sorted(tried) == [False] * _TRIALS + [True] * _TRIALS
    assert later is is_side_by_side


def test_the_shortest_run_counts() -> None:
    ways = _Ways(may_pay=True)
    for seconds in (9.0, 1.0):
        ways.note(False, seconds)
    for seconds in (7.0, 0.5):
        ways.note(True, seconds)
    assert ways.is_side_by_side


def test_small_rounds_run_alternately() -> None:
    ways = _Ways(may_pay=False)
    for _ in range(5):
        assert not ways.is_side_by_side
        ways.note(False, 1.0)
