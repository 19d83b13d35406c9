# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches in which the data decide what is touched: rows of scatters, races for them, loops, offsets, meetings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl, replayable
from nkilib.simulator import RaceError, UninitializedReadError, replay_counts, using
from nkilib.simulator.replay.errors import ReplayFailed
from nkilib.simulator.replay.launch import Replay
from nkilib.simulator.replay.recorder import record_launch
from tests.simulator.ranked import all_of, ncc
from tests.simulator.replay.both_ways import both_ways

F32 = np.float32


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def column(values: Any) -> Any:
    return np.array(values, np.int32).reshape(-1, 1)


def loaded(tensor: Any) -> Any:
    tile = nl.ndarray(tensor.shape, tensor.dtype, nl.sbuf)
    nisa.dma_copy(tile, tensor)
    return tile


def replay_of(kernel: Any, values: Any, rows: Any, *others: Any) -> Replay:
    """The plan of a launch of a kernel with two arrays."""
    recorded = record_launch(kernel, (values, rows, *others), {}, [values, rows])
    assert recorded.stream is not None, recorded.refusal
    return Replay(recorded.stream, [values, rows])


@nki.jit
def scattered(values: Any, rows: Any) -> Any:
    """Rows of a new tensor that the kernel has not written in another way."""
    result = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    index = loaded(rows)
    width = values.shape[1]
    nisa.dma_copy(
        result.ap([[width, values.shape[0]], [1, width]], vector_offset=index, indirect_dim=0), loaded(values)
    )
    return result


def test_a_scatter_writes_the_rows_that_the_data_name() -> None:
    report = both_ways(scattered[1], floats(8, 5), column(np.random.default_rng(0).permutation(8)))
    assert "the recorded data" in report.replayed, report


def test_a_row_that_a_scatter_leaves_out_is_found_when_the_launch_runs_again() -> None:
    values, rows = floats(8, 5), column(range(8))
    replay = replay_of(scattered[1], values, rows)
    assert np.array_equal(replay.run([values, rows], [values, rows]), values)
    twice = column([0, 1, 2, 3, 4, 5, 6, 6])
    with pytest.raises(ReplayFailed, match="was not written"):
        replay.run([values, twice], [values, twice])


@nki.jit
def gathered(values: Any, rows: Any, written: int, is_late: bool) -> Any:
    """Rows of a tensor of which only the first ones are written before, and the others after or never."""
    count, width = values.shape
    tile, index = loaded(values), loaded(rows)
    kept = nl.ndarray(values.shape, values.dtype, nl.private_hbm)
    nisa.dma_copy(kept[0:written, :], tile[0:written, :])
    rows_sbuf = nl.ndarray((rows.shape[0], width), values.dtype, nl.sbuf)
    nisa.dma_copy(rows_sbuf, kept.vector_select(0, index))
    if is_late:
        nisa.dma_copy(kept[written:count, :], tile[written:count, :])
    result = nl.ndarray(rows_sbuf.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result, rows_sbuf)
    return result


@nki.jit
def gathered_from_both(values: Any, rows: Any, written: int, is_late: bool) -> Any:
    """The same of a tensor that both cores write, each its half of the first rows; core 0 writes the others."""
    count, width = values.shape
    half, core = written // 2, nl.program_id(0)
    tile, index = nl.ndarray((half, width), values.dtype, nl.sbuf), loaded(rows)
    nisa.dma_copy(tile, values[nl.ds(core * half, half), :])
    kept = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(kept[nl.ds(core * half, half), :], tile)
    nisa.core_barrier(kept, (0, 1))
    rows_sbuf = nl.ndarray((rows.shape[0], width), values.dtype, nl.sbuf)
    nisa.dma_copy(rows_sbuf, kept.vector_select(0, index))
    result = nl.ndarray((2, *rows_sbuf.shape), values.dtype, nl.shared_hbm)
    nisa.dma_copy(result[core], rows_sbuf)
    nisa.core_barrier(kept, (0, 1))
    if is_late and core == 0:
        nisa.dma_copy(kept[written:count, :], loaded(values)[written:count, :])
    return result


@pytest.mark.parametrize("kernel", [gathered[1], gathered_from_both[2]], ids=["one core", "two cores"])
@pytest.mark.parametrize(("written", "is_late"), [(2, False), (4, False), (4, True)])
def test_rows_of_a_partly_written_tensor_are_gathered_if_they_are_written(
    kernel: Any, written: int, is_late: bool
) -> None:
    values, rows = floats(8, 5), column([1, 0, 0, 1])
    replay = replay_of(kernel, values, rows, written, is_late)
    for index in (rows, column([0, 1, 1, 1])):
        result = replay.run([values, index], [values, index])
        assert np.array_equal(result, kernel(values, index, written, is_late))
    beyond = column([0, 1, written, 7])
    with pytest.raises(UninitializedReadError, match="gathered from"):
        kernel(values, beyond, written, is_late)
    with pytest.raises(ReplayFailed, match="gathered from"):
        replay.run([values, beyond], [values, beyond])
    with using(uninitialized="ignore"):
        replay = replay_of(kernel, values, rows, written, is_late)
        result = replay.run([values, beyond], [values, beyond])
        assert np.array_equal(result, kernel(values, beyond, written, is_late), equal_nan=True)


@nki.jit
def picked(values: Any, columns: Any) -> Any:
    """Elements of a tile of which only every other column is written, with some arithmetic before."""
    index = loaded(columns)
    tile = nl.ndarray((values.shape[0], 2 * values.shape[1]), values.dtype, nl.sbuf)
    nisa.tensor_scalar(tile[:, 0::2], loaded(values), nl.add, 1.0)
    picked_sbuf = nl.ndarray(columns.shape, values.dtype, nl.sbuf)
    nisa.nc_n_gather(picked_sbuf, tile, index)
    result = nl.ndarray(columns.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result, picked_sbuf)
    return result


@pytest.mark.parametrize("uninitialized", ["error", "ignore"])
def test_elements_of_a_partly_written_tile_are_gathered_if_they_are_written(uninitialized: Any) -> None:
    values, columns = floats(4, 3), np.array([[0, 2], [4, 4], [2, 0], [4, 0]], np.uint32)
    with using(uninitialized=uninitialized):
        replay = replay_of(picked[1], values, columns)
        for index in (columns, columns[::-1].copy()):
            assert np.array_equal(replay.run([values, index], [values, index]), picked[1](values, index))
        beside = columns + np.eye(4, 2, dtype=np.uint32)
        with pytest.raises(ReplayFailed, match="were never written"):
            replay.run([values, beside], [values, beside])


@nki.jit
def gathered_from_some(values: Any, rows: Any) -> Any:
    """Rows, by the second column, of a tensor that has the rows of the first column that are in range."""
    index, width = loaded(rows), values.shape[1]
    kept = nl.ndarray((rows.shape[0], width), values.dtype, nl.private_hbm)
    nisa.dma_copy(kept, values.vector_select(0, index[:, 0:1]), oob_mode=nisa.oob_mode.skip)
    rows_sbuf = nl.ndarray(kept.shape, values.dtype, nl.sbuf)
    nisa.dma_copy(rows_sbuf, kept.vector_select(0, index[:, 1:2]))
    result = nl.ndarray(kept.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result, rows_sbuf)
    return result


def test_rows_that_a_copy_skips_are_no_rows_to_gather() -> None:
    values, rows = floats(8, 5), np.array([[7, 0], [3, 1], [2, 2], [1, 3]], np.int32)
    replay = replay_of(gathered_from_some[1], values, rows)
    without = np.array([[7, 0], [9, 0], [2, 2], [1, 3]], np.int32)
    assert np.array_equal(replay.run([values, rows], [values, rows]), values[[7, 3, 2, 1]])
    assert np.array_equal(replay.run([values, without], [values, without]), values[[7, 7, 2, 1]])
    without[1, 1] = 1
    with pytest.raises(ReplayFailed, match="gathered from"):
        replay.run([values, without], [values, without])


def test_more_rows_are_gathered_than_a_tensor_written_in_parts_has() -> None:
    @nki.jit
    def spread(values: Any, rows: Any) -> Any:
        count, width = values.shape
        tile, index = loaded(values), loaded(rows)
        kept = nl.ndarray(values.shape, values.dtype, nl.private_hbm)
        nisa.dma_copy(kept[0:1, :], tile[0:1, :])
        nisa.dma_copy(kept[1:count, :], tile[1:count, :])
        rows_sbuf = nl.ndarray((rows.shape[0], width), values.dtype, nl.sbuf)
        nisa.dma_copy(rows_sbuf, kept.vector_select(0, index))
        result = nl.ndarray(rows_sbuf.shape, values.dtype, nl.shared_hbm)
        nisa.dma_copy(result, rows_sbuf)
        return result

    report = both_ways(spread[1], floats(3, 5), column([0, 2, 1, 1, 0, 2, 2, 0]))
    assert "the recorded data" in report.replayed, report


@nki.jit
def scattered_and_stored(values: Any, rows: Any) -> Any:
    """Rows of a new tensor, and an element that a register holds."""
    count = rows.shape[0]
    index = loaded(rows)
    kept = nl.ndarray((8, 1), nl.int32, nl.private_hbm)
    nisa.dma_copy(kept.ap([[1, count], [1, 1]], vector_offset=index, indirect_dim=0), index)
    register = nisa.register_alloc()
    nisa.register_load(register, values)
    nisa.register_store(kept[7:8, :], register)
    result = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
    nisa.dma_copy(result, kept[7:8, :])
    return result


@pytest.mark.parametrize("uninitialized", ["error", "ignore"])
def test_a_register_is_stored_to_a_tensor_whose_rows_the_data_name(uninitialized: Any) -> None:
    with using(uninitialized=uninitialized):
        report = both_ways(scattered_and_stored[1], column([5]), column([0, 1, 2]))
    assert "the recorded data" in report.replayed, report


@nki.jit
@replayable
def scattered_by_both(values: Any, rows: Any) -> Any:
    """Each core stores its half of the rows where the data say."""
    count, width = values.shape
    half, core = count // 2, nl.program_id(0)
    result = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    index, tile = nl.ndarray((half, 1), nl.int32, nl.sbuf), nl.ndarray((half, width), values.dtype, nl.sbuf)
    nisa.dma_copy(index, rows[nl.ds(core * half, half), :])
    nisa.dma_copy(tile, values[nl.ds(core * half, half), :])
    nisa.dma_copy(result.ap([[width, half], [1, width]], vector_offset=index, indirect_dim=0), tile)
    nisa.core_barrier(result, (0, 1))
    return result


def test_a_race_for_a_row_is_found_when_the_launch_runs_again() -> None:
    values, rows = floats(8, 5), column([3, 1, 0, 2, 7, 6, 5, 4])
    first = scattered_by_both[2](values, rows)
    for _ in range(6):
        assert scattered_by_both[2](values, rows).tobytes() == first.tobytes()
    with pytest.raises(RaceError, match="race on"):
        scattered_by_both[2](values, column([3, 1, 0, 2, 7, 6, 5, 3]))


@nki.jit
@replayable
def changed_by_both(values: Any, rows: Any, read: int) -> Any:
    """Each core reads some rows of its half, and doubles rows that the data say."""
    count, width = values.shape
    half, core = count // 2, nl.program_id(0)
    index = nl.ndarray((half, 1), nl.int32, nl.sbuf)
    nisa.dma_copy(index, rows[nl.ds(core * half, half), :])
    seen, tile = (nl.ndarray((size, width), values.dtype, nl.sbuf) for size in (max(read, 1), half))
    result = nl.ndarray((2 * max(read, 1), width), values.dtype, nl.shared_hbm)
    if read:
        nisa.dma_copy(seen, values[nl.ds(core * half, read), :])
    else:
        nisa.memset(seen, 0.0)
    nisa.dma_copy(result[nl.ds(core * max(read, 1), max(read, 1)), :], seen)
    chosen = values.ap([[width, half], [1, width]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(tile, chosen)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(chosen, tile)
    return result


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        pytest.param(4, [3, 1, 0, 2, 7, 6, 5, 4], id="all rows are read, of a half each"),
        pytest.param(2, [3, 1, 0, 2, 7, 6, 5, 4], id="some rows are read"),
        pytest.param(2, [3, 1, 0, 6, 7, 2, 5, 4], id="of the rows that nobody reads some are in the other half"),
        pytest.param(0, [7, 1, 0, 6, 3, 2, 5, 4], id="no rows are read but by index"),
    ],
)
def test_rows_of_which_the_data_choose_the_core_are_replayed(read: int, rows: list[int]) -> None:
    values, index = floats(8, 5), column(rows)
    report = both_ways(changed_by_both[2], values, index, read)
    assert "the recorded data" in report.replayed, report


@pytest.mark.parametrize("read", [2, 0])
def test_a_race_for_a_row_that_no_core_reads_is_found_when_the_launch_runs_again(read: int) -> None:
    values, rows = floats(8, 5), column([3, 1, 0, 2, 7, 6, 5, 4])
    for _ in range(6):
        changed_by_both[2](values.copy(), rows, read)
    before = replay_counts().kernels["changed_by_both"].replayed
    changed_by_both[2](values.copy(), rows, read)
    assert replay_counts().kernels["changed_by_both"].replayed == before + 1
    with pytest.raises(RaceError, match="race on"):
        changed_by_both[2](values.copy(), column([3, 1, 0, 2, 7, 6, 5, 3]), read)


@nki.jit
@replayable
def repeated(values: Any, count: Any) -> Any:
    """A loop that runs as often as the data say."""
    total = nl.zeros(values.shape, values.dtype, nl.sbuf)
    tile = loaded(values)
    register = nisa.register_alloc()
    nisa.register_load(register, count)

    def body(i: Any) -> None:
        nisa.tensor_tensor(total, total, tile, nl.add)

    nl.fori_loop(0, register, body)
    result = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result, total)
    return result


def test_a_loop_runs_as_often_as_the_data_of_this_launch_say() -> None:
    values = floats(8, 5)
    for _ in range(4):
        for count in (3, 3, 3, 2, 0, 2, 2):
            result = repeated[1](values, np.array([[count]], np.int32))
            expected = np.zeros_like(values)
            for _ in range(count):
                expected += values
            assert np.array_equal(result, expected), count


@nki.jit
@replayable
def row_at(values: Any, position: Any) -> Any:
    """A row at an offset that a tensor holds."""
    scalar = nisa.scalar_load(position)
    tile = nl.ndarray((1, values.shape[1]), values.dtype, nl.sbuf)
    nisa.dma_copy(tile, values[nl.ds(scalar, 1), :])
    result = nl.ndarray(tile.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result, tile)
    return result


def test_an_offset_is_that_of_this_launch() -> None:
    values = floats(8, 5)
    for _ in range(5):
        for position in (3, 3, 3, 5, 0, 5, 7):
            result = row_at[1](values, np.array([[position]], np.int32))
            assert np.array_equal(result, values[position : position + 1]), position


@nki.jit
def swapped(values: Any) -> Any:
    """The cores swap tiles, and add what they got; each stores its half."""
    half, core = values.shape[0] // 2, nl.program_id(0)
    mine = nl.ndarray((half, values.shape[1]), values.dtype, nl.sbuf)
    other = nl.ndarray(mine.shape, values.dtype, nl.sbuf)
    summed = nl.ndarray(mine.shape, values.dtype, nl.sbuf)
    nisa.dma_copy(mine, values[nl.ds(core * half, half), :])
    nisa.sendrecv(mine, other, 1 - core, 1 - core, 0)
    nisa.tensor_tensor(mine, mine, other, nl.subtract)
    nisa.sendrecv_compute(mine, summed, 1 - core, 1 - core, nl.maximum)
    result = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result[nl.ds(core * half, half), :], summed)
    return result


def test_cores_swap_what_they_have_in_this_launch() -> None:
    assert len(both_ways(swapped[2], floats(8, 6)).replayed) > 2


@nki.jit
def gathered_from_one_rank(values: Any) -> Any:
    """An operation of the ranks, of which there is one."""
    source = nl.ndarray(values.shape, values.dtype, nl.private_hbm)
    nisa.dma_copy(source, values)
    target = nl.ndarray(values.shape, values.dtype, nl.private_hbm)
    ncc.all_reduce([source], [target], all_of(1), nl.add)
    result = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result, target)
    return result


@nki.jit
def reduced_by_both(values: Any) -> Any:
    """The same on two cores, to which both come."""
    half, core = values.shape[0] // 2, nl.program_id(0)
    source = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(source[nl.ds(core * half, half), :], values[nl.ds(core * half, half), :])
    target = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    ncc.all_reduce([source], [target], all_of(1), nl.add)
    return target


@pytest.mark.parametrize("kernel", [gathered_from_one_rank[1], reduced_by_both[2]], ids=["one core", "two cores"])
def test_an_operation_of_one_rank_is_replayed(kernel: Any) -> None:
    assert len(both_ways(kernel, floats(8, 6)).replayed) > 2


@nki.jit
def chosen(values: Any, offsets: Any) -> Any:
    """Elements that each group of partitions chooses, and where they go back (trn3)."""
    tile, index = loaded(values), loaded(offsets)
    picked = nl.ndarray(values.shape, values.dtype, nl.sbuf)
    nisa.tensor_copy(picked, tile.indirect(index, num_elem=values.shape[1]))
    nisa.tensor_scalar(tile.indirect(index, num_elem=values.shape[1]), picked, nl.multiply, 2.0)
    result = nl.ndarray(values.shape, values.dtype, nl.shared_hbm)
    nisa.dma_copy(result, tile)
    return result


def test_elements_that_offsets_choose_are_those_of_this_launch() -> None:
    draw = np.random.default_rng(3)
    offsets = np.concatenate([draw.permutation(48).astype(np.int32).reshape(16, 3) for _ in range(2)])
    with using(target="trn3"):
        report = both_ways(chosen[1], floats(32, 48), offsets)
    assert len(report.replayed) > 2, report


@nki.jit
def largest(values: Any) -> Any:
    """The two largest of 16 partitions, which are the first elements of a column; the others have no value."""
    tile, count = loaded(values), values.shape[0]
    best = nl.ndarray((count, 2), nl.bfloat16, nl.sbuf)
    positions = nl.ndarray((count, 2), nl.uint32, nl.sbuf)
    nisa.topk(best, positions, tile, n=count * values.shape[1])
    result = nl.ndarray(best.shape, best.dtype, nl.shared_hbm)
    nisa.dma_copy(result, best)
    return result


@nki.jit
def some_rows(values: Any, rows: Any) -> Any:
    """The rows that an index names; where it is out of range, a row of the tile has no value."""
    index, width = loaded(rows), values.shape[1]
    tile = nl.ndarray((rows.shape[0], width), values.dtype, nl.sbuf)
    chosen = values.ap([[width, rows.shape[0]], [1, width]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(tile, chosen, oob_mode=nisa.oob_mode.skip)
    result = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
    nisa.dma_copy(result, tile)
    return result


@nki.jit
def scattered_and_loaded(values: Any, rows: Any) -> Any:
    """A register is loaded from a row that the data of this launch name."""
    index = loaded(rows)
    kept = nl.ndarray(rows.shape, nl.int32, nl.private_hbm)
    nisa.dma_copy(kept.vector_select(0, index), index)
    register = nisa.register_alloc()
    nisa.register_load(register, kept[0:1, :])
    nisa.register_store(kept[1:2, :], register)
    result = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
    nisa.dma_copy(result, kept[1:2, :])
    return result


@nki.jit
def chosen_in_psum(values: Any, predicate: Any) -> Any:
    """A product is added to what is a product still, and takes the place of what was copied over."""
    tile, where = loaded(values), loaded(predicate)
    total = nl.ndarray((values.shape[1], values.shape[1]), nl.float32, nl.psum)
    nisa.nc_matmul(total, tile, tile, accumulate=False)
    nisa.tensor_copy_predicated(total, 100.0, where)
    nisa.nc_matmul(total, tile, tile, accumulate=None)
    result = nl.ndarray(total.shape, nl.float32, nl.sbuf)
    nisa.tensor_copy(result, total)
    stored = nl.ndarray(total.shape, nl.float32, nl.shared_hbm)
    nisa.dma_copy(stored, result)
    return stored


@pytest.mark.parametrize(
    ("kernel", "arguments", "refusal"),
    [
        (largest[1], [floats(16, 8).astype(nl.bfloat16.numpy)], "read where no instruction has written"),
        (some_rows[1], [floats(8, 5), column([0, 9, 3, 2])], "read where no instruction has written"),
        (scattered_and_loaded[1], [floats(8, 5), column([0, 2, 1])], "read where no instruction has written"),
        (chosen_in_psum[1], [floats(8, 4), np.eye(4, dtype=np.uint8)], "the data decide which elements of PSUM"),
    ],
    ids=["the rest of a column", "rows out of range", "a register", "matmul results"],
)
def test_elements_that_only_some_data_write_are_no_part_of_a_plan(
    kernel: Any, arguments: list[Any], refusal: str
) -> None:
    with using(uninitialized="ignore"):
        report = both_ways(kernel, *arguments)
    assert refusal in report.refusal, report
