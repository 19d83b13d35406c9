# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Profiles in which iterations of a loop are left out, beside those in which each has run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ModelParameters, Profile, profile, spec
from nkilib.simulator.language import loops as device_loop
from nkilib.simulator.timing.instruction_log import InstructionLog
from nkilib.simulator.timing.parameters import AS_ISSUED

FP32, INT32, BF16 = nl.float32, nl.int32, nl.bfloat16
ROWS = 128
# All engines meet between iterations; or iterations overlap, with one place for a tile of the body, or with several.
DRAINING = ModelParameters()
OVERLAPPING = replace(DRAINING, loops_drain=False, iterations_drain=False, loop_entry_us=0.0)
MODELS = {"draining": DRAINING, "overlapping": OVERLAPPING, "as issued": AS_ISSUED}


def both(
    body: Any, count: int, cores: int = 1, parameters: ModelParameters = DRAINING, **options: Any
) -> tuple[Profile, Profile, int]:
    """The profile with iterations left out, the one with all, and how many instructions the first one has run.

    ``body(x, count)`` is a kernel on ``count`` blocks of 128 x 512 float32.
    """

    def kernel(x: Any, flag: Any) -> Any:
        return body(x, flag, count)

    launched = nki.jit(kernel)[cores]
    arguments = spec((ROWS * max(1, count), 512), FP32), spec((1, 1), INT32)
    profiled = profile(launched, *arguments, parameters=parameters, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_loop, "FEWEST_ITERATIONS", 1 << 40)
        unrolled = profile(launched, *arguments, parameters=parameters, **options)
    return profiled, unrolled, sum(log.run for _, log, _ in profiled.recorded._cores)


def assert_same(result: Profile, unrolled: Profile) -> None:
    """Everything that a profile tells is the same; times to a millionth."""
    assert result.time_us == pytest.approx(unrolled.time_us, rel=1e-6)
    assert result.engine_busy_us == pytest.approx(unrolled.engine_busy_us, rel=1e-6)
    for name in (
        "hbm_read_bytes_by_tensor",
        "hbm_written_bytes_by_tensor",
        "instruction_counts",
        "sbuf_peak_bytes_per_partition",
        "psum_peak_bytes_per_partition",
        "untimed",
        "trips",
    ):
        assert getattr(result, name) == getattr(unrolled, name), name
    assert len(result.instructions) == len(unrolled.instructions)
    for mine, others in zip(result.instructions, unrolled.instructions, strict=True):
        assert mine._replace(start_us=0.0, end_us=0.0) == others._replace(start_us=0.0, end_us=0.0)
        assert (mine.start_us, mine.end_us) == pytest.approx((others.start_us, others.end_us), rel=1e-6, abs=1e-6)
    assert [_counted(log) for _, log, _ in result.recorded._cores] == [
        _counted(log) for _, log, _ in unrolled.recorded._cores
    ]
    lives = [
        sorted((life.core, life.start_us, life.end_us, life.nbytes, life.what) for life in item.tensors)
        for item in (result, unrolled)
    ]
    assert len(lives[0]) == len(lives[1])
    for one, other in zip(*lives, strict=True):
        assert one[1:4] == pytest.approx(other[1:4], rel=1e-6, abs=1e-6)


def _counted(log: InstructionLog) -> Counter[str]:
    """How many instructions of each name there are, as :meth:`InstructionLog.kinds` and as the notes in it say."""
    counts: Counter[str] = Counter()
    for kind, count in log.kinds():
        counts[kind.name] += count
    listed = list(log)
    assert counts == Counter(note[1].name for note in listed)
    for at in range(0, len(listed), 1 + len(listed) // 7):
        assert log[at] == listed[at]
        assert log[at : at + 5] == listed[at : at + 5]
    return counts


def exp_of_block(x: Any, out: Any, i: Any) -> None:
    """One block of 128 rows: load, exp, twice as much, store."""
    tile, result = nl.ndarray((ROWS, 512), FP32), nl.ndarray((ROWS, 512), FP32)
    nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
    nisa.activation(result, nl.exp, tile)
    nisa.tensor_scalar(result, result, nl.multiply, 2.0)
    nisa.dma_copy(out[nl.ds(i * ROWS, ROWS)], result)


def blocks(x: Any, flag: Any, count: int) -> Any:
    out = nl.ndarray(x.shape, FP32, nl.shared_hbm, name="out")
    nl.fori_loop(0, count, lambda i: exp_of_block(x, out, i))
    return out


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [0, 1, 2, 23, 24, 25, 60, 301])
def test_any_number_of_iterations(count: int, model: str) -> None:
    result, unrolled, run = both(blocks, count, parameters=MODELS[model])
    assert_same(result, unrolled)
    if count >= 60 and model != "as issued":
        assert run < 20 * 4


@pytest.mark.parametrize("cores", [1, 2])
def test_what_is_before_and_behind_the_loop(cores: int) -> None:
    """Weights that stay, a maximum that each iteration updates, and a reader of everything behind the loop."""

    def body(x: Any, flag: Any, count: int) -> Any:
        out = nl.ndarray(x.shape, FP32, nl.shared_hbm if cores == 1 else nl.private_hbm)
        weights, largest = nl.ndarray((ROWS, 512), FP32), nl.ndarray((ROWS, 1), FP32)
        nisa.dma_copy(weights, x[0:ROWS])
        nisa.memset(largest, 0.0)

        def turn(i: Any) -> None:
            tile, own = nl.ndarray((ROWS, 512), FP32), nl.ndarray((ROWS, 1), FP32)
            nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
            nisa.tensor_tensor(tile, tile, weights, nl.multiply)
            nisa.tensor_reduce(own, nl.maximum, tile, 1)
            nisa.tensor_tensor(largest, largest, own, nl.maximum)
            nisa.dma_copy(out[nl.ds(i * ROWS, ROWS)], tile)

        nl.fori_loop(0, count, turn)
        again = nl.ndarray((ROWS, 512), FP32)
        nisa.dma_copy(again, out[0:ROWS])
        nisa.activation(again, nl.exp, again, scale=largest)
        if cores == 2:
            nisa.core_barrier(x, (0, 1))
        nisa.dma_copy(out[0:ROWS], again)

    for parameters in (DRAINING, OVERLAPPING):
        result, unrolled, run = both(body, 100, cores, parameters)
        assert_same(result, unrolled)
        assert run < cores * 20 * 5


def test_loops_in_loops() -> None:
    """Inner loops with a known count and with one from a register, which the outer loop repeats."""

    def body(x: Any, flag: Any, count: int) -> None:
        bound = nl.ndarray((1, 1), INT32)
        nisa.dma_copy(bound, flag)
        total = nl.ndarray((ROWS, 512), FP32)
        nisa.memset(total, 0.0)

        def inner(i: Any) -> None:
            tile = nl.ndarray((ROWS, 512), FP32)
            nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
            nisa.tensor_tensor(total, total, tile, nl.add)

        def outer(_: Any) -> None:
            nl.fori_loop(0, 40, inner)
            nisa.tensor_scalar(total, total, nl.multiply, 0.5)
            nl.fori_loop(0, nisa.scalar_load(bound), inner)

        nl.fori_loop(0, count, outer)

    result, unrolled, run = both(body, 50, trips={"inner": 30})
    assert_same(result, unrolled)
    assert unrolled.instruction_counts["tensor_tensor"] == 50 * 70
    assert list(result.trips.values()) == [50 * 30]
    assert run < 20 * 2 * 30 * 2


def test_columns_that_move_with_the_loop() -> None:
    """Each iteration writes a column of its own; the loop that reads columns which others write is not shortened."""

    def body(x: Any, flag: Any, count: int, *, reads: bool) -> None:
        columns, sums = nl.ndarray((ROWS, count), FP32), nl.ndarray((ROWS, 1), FP32)
        nisa.memset(columns, 0.0)

        def turn(i: Any) -> None:
            tile = nl.ndarray((ROWS, 512), FP32)
            nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
            nisa.tensor_reduce(columns[:, nl.ds(i, 1)], nl.add, tile, 1)
            if reads:  # the column of iteration 50: it is ready at once, but in that iteration
                nisa.activation(tile[:, 0:1], nl.exp, columns[:, 50:51])

        nl.fori_loop(0, count, turn)
        nisa.tensor_reduce(sums, nl.add, columns, 1)

    for reads in (False, True):

        def kernel(x: Any, flag: Any, count: int, reads: bool = reads) -> None:
            body(x, flag, count, reads=reads)

        result, unrolled, run = both(kernel, 100)
        assert_same(result, unrolled)
        assert (run < 100) is not reads
        assert_same(*both(kernel, 100, parameters=OVERLAPPING)[:2])


def test_first_iterations_that_differ() -> None:
    """Many loads wait for their turn before the loop, so that its first iterations find the engines busy."""

    def body(x: Any, flag: Any, count: int) -> None:
        for at in range(20):
            nisa.dma_copy(nl.ndarray((ROWS, 512), FP32), x[at * ROWS : (at + 1) * ROWS])
        tile, target = nl.ndarray((ROWS, 512), FP32), nl.ndarray((ROWS, 512), FP32)

        def turn(i: Any) -> None:
            nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
            nisa.tensor_copy(target, tile)

        nl.fori_loop(0, count, turn)

    for model, parameters in MODELS.items():
        result, unrolled, run = both(body, 200, parameters=parameters)
        assert_same(result, unrolled)
        assert run < 200, model


def test_streams_that_drift_apart_run_whole() -> None:
    """Loads run ahead of the copies, which nothing holds back: no period, and none is made up."""

    def body(x: Any, flag: Any, count: int) -> None:
        target = nl.ndarray((ROWS, 8192), FP32)

        def turn(i: Any) -> None:
            tile = nl.ndarray((ROWS, 512), FP32)
            nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
            nisa.tensor_scalar(target, target, nl.multiply, 2.0)
            nisa.tensor_copy(target[:, 0:512], tile)

        nl.fori_loop(0, count, turn)

    result, unrolled, run = both(body, 60, parameters=AS_ISSUED)
    assert_same(result, unrolled)
    assert run == 60 * 3


@pytest.mark.parametrize("buffers", [2, 3, 4])
@pytest.mark.parametrize("model", ["draining", "overlapping"])
def test_buffers_used_round_robin(buffers: int, model: str) -> None:
    """A body that rotates its buffers has a period of as many iterations."""

    def body(x: Any, flag: Any, count: int) -> None:
        tiles = [nl.ndarray((ROWS, 512), FP32) for _ in range(buffers)]
        target = nl.ndarray((ROWS, 512), FP32)
        turns = iter(range(1 << 20))

        def turn(i: Any) -> None:
            tile = tiles[next(turns) % buffers]
            nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
            nisa.activation(target, nl.exp, tile)

        nl.fori_loop(0, count, turn)

    result, unrolled, run = both(body, 121, parameters=MODELS[model])
    assert_same(result, unrolled)
    assert run < 2 * (16 + 4 * buffers)


def test_meetings_are_not_left_out() -> None:
    """Two cores that synchronise in each iteration do so equally often, and both make a tensor that they share."""

    def body(x: Any, flag: Any, count: int) -> None:
        mine, others = nl.ndarray((ROWS, 512), FP32), nl.ndarray((ROWS, 512), FP32)

        def turn(i: Any) -> None:
            nisa.tensor_copy(mine, others)
            nisa.core_barrier(x, (0, 1))

        nl.fori_loop(0, count, turn)

    result, unrolled, run = both(body, 40, cores=2)
    assert_same(result, unrolled)
    assert run == 2 * 2 * 40


def test_cores_with_unlike_loops_synchronise_behind_them() -> None:
    def body(x: Any, flag: Any, count: int) -> None:
        tile = nl.ndarray((ROWS, 512), FP32)
        if nl.program_id(0) == 0:
            nl.fori_loop(0, count, lambda i: nisa.tensor_copy(tile, tile) and None)
        nisa.core_barrier(x, (0, 1))
        nisa.tensor_copy(tile, tile)

    result, unrolled, run = both(body, 500, cores=2)
    assert_same(result, unrolled)
    assert run < 30


def test_while_loops_with_stated_trips() -> None:
    def body(x: Any, flag: Any, count: int) -> None:
        tile, register = nl.ndarray((1, 1), INT32), nisa.register_alloc()
        nisa.register_load(register, flag)

        def again(_: Any) -> Any:
            nisa.dma_copy(tile, flag)
            following = nisa.register_alloc()
            nisa.register_load(following, tile)
            return following

        nl.while_loop(register, again)

    result, unrolled, run = both(body, 1, trips=200)
    assert_same(result, unrolled)
    assert run < 50


def test_the_numbers_of_notes_are_found_at_random() -> None:
    """InstructionLog of repeated iterations are a sequence like any other."""
    result, unrolled, _ = both(blocks, 300)
    ((_, mine, _),), ((_, others, _),) = result.recorded._cores, unrolled.recorded._cores
    assert len(mine) == len(others) == 1200
    listed = list(mine)
    for at in (0, 3, 47, 48, 700, 1199, -1, -1200):
        assert mine[at] == listed[at]
    assert [note[0] for note in mine] == [note[0] for note in others]
    for cut in (slice(10, 14), slice(40, 60), slice(700, None), slice(-3, None), slice(5, 2), slice(0, 900, 97)):
        assert mine[cut] == listed[cut]
    with pytest.raises(IndexError, match="note 1200 of 1200"):
        mine[1200]


OPERATIONS = ("load", "store", "exp", "copy", "gpsimd", "matmul", "column", "inner")


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@example([("inner", 2, False), ("inner", 2, True), ("inner", 2, True)], 37, "overlapping")
@example([("inner", 0, True), ("load", 0, False)], 24, "as issued")
@given(
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.booleans()), min_size=1, max_size=6),
    st.integers(24, 40),
    st.sampled_from(sorted(MODELS)),
)
def test_any_body(operations: list[tuple[str, int, bool]], count: int, model: str) -> None:
    """Bodies of random instructions on tiles from before the loop, and on tiles of their own."""

    def body(x: Any, flag: Any, trips: int) -> None:
        outer = [nl.ndarray((ROWS, 512), FP32) for _ in range(4)]
        psum, column = nl.ndarray((ROWS, 512), FP32, nl.psum), nl.ndarray((ROWS, trips), FP32)
        out = nl.ndarray(x.shape, FP32, nl.private_hbm)

        def turn(i: Any) -> None:
            own = [nl.ndarray((ROWS, 512), FP32) for _ in range(4)]
            for name, at, is_own in operations:
                run(name, (own if is_own else outer)[at], outer[(at + 1) % 4], i)

        def run(name: str, tile: Any, other: Any, i: Any) -> None:
            if name == "load":
                nisa.dma_copy(tile, x[nl.ds(i * ROWS, ROWS)])
            elif name == "store":
                nisa.dma_copy(out[nl.ds(i * ROWS, ROWS)], tile)
            elif name == "exp":
                nisa.activation(tile, nl.exp, other)
            elif name == "copy":
                nisa.tensor_copy(tile, other)
            elif name == "gpsimd":
                nisa.iota(tile, [[1, 512]], offset=0)
            elif name == "matmul":
                nisa.nc_matmul(psum, other[:, 0:128], tile)
            elif name == "column":
                nisa.tensor_reduce(column[:, nl.ds(i, 1)], nl.add, tile, 1)
            else:
                nl.fori_loop(0, 30, lambda k: nisa.tensor_copy(tile, other) and None)

        nl.fori_loop(0, trips, turn)
        nisa.tensor_copy(outer[0], outer[1])

    assert_same(*both(body, count, parameters=MODELS[model])[:2])
