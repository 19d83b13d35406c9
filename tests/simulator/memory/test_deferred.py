"""``nkilib.simulator.memory.deferred``: contents that are made when somebody reads them are those made at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.nki import nisa as isa
from nkilib.nki import nki, nl
from nkilib.simulator.engines import blocks
from nkilib.simulator.engines.blocks import SMALLEST_DEFERRED_BYTES
from nkilib.simulator.memory.deferred import Deferred, deferred_copy
from nkilib.simulator.memory.loads import may_share
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.terms.layout import Layout
from nkilib.simulator.terms.regions import MemoryRegion

ROWS, COLUMNS = 128, 1024  # of float32 or bfloat16: large enough to be deferred
TYPES = {"float32": (np.float32, nl.float32), "bfloat16": (ml_dtypes.bfloat16, nl.bfloat16)}


def matrix(rows: int, columns: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
    return np.random.default_rng(7).standard_normal((rows, columns)).astype(dtype)


class Counted:
    """How many contents were deferred, and which blocks of them were made in their tiles: copies or results."""

    def __init__(self) -> None:
        self.deferred = 0
        self.made: list[tuple[bool, tuple[slice, slice]]] = []


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    count, defer, make = Counted(), Storage.defer, Storage._make

    def counting_defer(storage: Storage, content: Deferred) -> None:
        count.deferred += 1
        defer(storage, content)

    def counting_make(storage: Storage, content: Deferred, block: tuple[slice, slice]) -> None:
        count.made.append((content.is_copy, block))
        make(storage, content, block)

    monkeypatch.setattr(Storage, "defer", counting_defer)
    monkeypatch.setattr(Storage, "_make", counting_make)
    yield count


@nki.jit
def load_overwrite_store(x: Any, other: Any, first: int, step: int) -> Any:
    """Rows 0, 2, ... of ``x`` as they were before rows ``first``, ``first + step``, ... of it were overwritten."""
    tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    isa.dma_copy(dst=tile, src=x[0 : 2 * ROWS : 2, :])
    isa.dma_copy(dst=x[first : first + step * ROWS : step, :], src=other)
    result = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    isa.dma_copy(dst=result, src=tile)
    return result


@pytest.mark.parametrize(("first", "step", "is_shared"), [(0, 2, True), (1, 2, False), (64, 1, True), (2, 2, True)])
def test_a_load_keeps_what_was_there_when_it_ran(first: int, step: int, is_shared: bool, counted: Counted) -> None:
    """Rows that interleave with the loaded ones without meeting them do not force the load to be made early."""
    x, other = matrix(3 * ROWS, COLUMNS), np.zeros((ROWS, COLUMNS), np.float32)
    expected = x.copy()
    expected[first : first + step * ROWS : step] = other
    before = x[0 : 2 * ROWS : 2].copy()
    np.testing.assert_array_equal(load_overwrite_store(x, other, first, step), before)
    np.testing.assert_array_equal(x, expected)
    assert counted.deferred == 1 and len(counted.made) == is_shared


@nki.jit
def load_two_store_one(x: Any) -> Any:
    """Rows 128 to 255 of ``x`` as they were before the rows above were stored there, straight from where they are."""
    above, below = (nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    isa.dma_copy(dst=above, src=x[0:ROWS, :])
    isa.dma_copy(dst=below, src=x[ROWS : 2 * ROWS, :])
    isa.dma_copy(dst=x[ROWS : 2 * ROWS, :], src=above)
    result = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    isa.dma_copy(dst=result, src=below)
    return result


def test_a_load_keeps_what_another_deferred_content_overwrites(counted: Counted) -> None:
    x = matrix(2 * ROWS, COLUMNS)
    before = x.copy()
    np.testing.assert_array_equal(load_two_store_one(x), before[ROWS:])
    np.testing.assert_array_equal(x, np.concatenate([before[:ROWS]] * 2))
    assert len(counted.made) == 1


@nki.jit
def load_scatter_store(x: Any, rows: Any, values: Any) -> Any:
    """The first rows of ``x`` as they were before ``values`` were scattered to some of its rows."""
    tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    isa.dma_copy(dst=tile, src=x[0:ROWS, :])
    index = nl.ndarray((rows.shape[0], 1), dtype=nl.int32, buffer=nl.sbuf)
    isa.dma_copy(dst=index, src=rows)
    isa.dma_copy(dst=x.vector_select(0, index), src=values)
    result = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    isa.dma_copy(dst=result, src=tile)
    return result


@pytest.mark.parametrize("rows", [[3, 200], [200, 300], [127, 128]])
def test_a_load_keeps_what_was_there_before_a_scatter(rows: list[int]) -> None:
    x = matrix(3 * ROWS, COLUMNS)
    before = x[:ROWS].copy()
    values = np.zeros((len(rows), COLUMNS), np.float32)
    index = np.array(rows, np.int32).reshape(-1, 1)
    np.testing.assert_array_equal(load_scatter_store(x, index, values), before)
    assert not x[rows].any()


@nki.jit
def exchange_rows(x: Any) -> Any:
    """Each core loads its rows; after a barrier it stores them where the other core's were."""
    core = nl.program_id(0)
    tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    isa.dma_copy(dst=tile, src=x[core * ROWS : (core + 1) * ROWS, :])
    isa.core_barrier(x, (0, 1))
    isa.dma_copy(dst=x[(1 - core) * ROWS : (2 - core) * ROWS, :], src=tile)
    return x


def test_a_barrier_lets_the_other_core_overwrite_what_was_loaded() -> None:
    x = matrix(2 * ROWS, COLUMNS)
    before = x.copy()
    exchange_rows[2](x)
    np.testing.assert_array_equal(x, np.concatenate([before[ROWS:], before[:ROWS]]))


@nki.jit
def sums_of_exponentials(x: Any, launches: int, reads: bool) -> Any:
    """The sum of exp of each row, computed again and again, and what stands in the tile at the end."""
    tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    sums = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    copy = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    isa.memset(dst=copy, value=0)
    for _ in range(launches):
        isa.dma_copy(dst=tile, src=x)
        isa.activation(
            dst=tile,
            op=nl.exp,
            data=tile,
            reduce_op=nl.add,
            reduce_res=sums,
            reduce_cmd=isa.reduce_cmd.reset_reduce,
        )
        if reads:
            isa.tensor_copy(dst=copy, src=tile)
    total = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    isa.dma_copy(dst=total, src=sums)
    result = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    isa.dma_copy(dst=result, src=copy)
    return total, result


@pytest.mark.parametrize("type_name", TYPES)
def test_exponentials_that_are_only_summed_are_not_stored(type_name: str, counted: Counted) -> None:
    x = matrix(ROWS, COLUMNS, TYPES[type_name][0])
    total, _ = sums_of_exponentials(x, 3, reads=False)
    np.testing.assert_allclose(total[:, 0], np.exp(x.astype(np.float64)).sum(axis=1), rtol=1e-5)
    assert not counted.made


@pytest.mark.parametrize("type_name", TYPES)
def test_exponentials_that_are_read_are_computed_twice_only_once(type_name: str, counted: Counted) -> None:
    """The first time they are deferred and then read; the second and third time they are stored at once."""
    x = matrix(ROWS, COLUMNS, TYPES[type_name][0])
    total, result = sums_of_exponentials(x, 3, reads=True)
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(total[:, 0], exact.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=2**-8 if x.dtype != np.float32 else 1e-6)
    assert [is_copy for is_copy, _ in counted.made] == [False]


@nki.jit
def chunks_of_two_widths(x: Any) -> Any:
    """Loads of all columns and of fewer take one tile in turn; what the narrower ones leave is read at the end."""
    tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    result = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    isa.dma_copy(dst=tile, src=x[0:ROWS, :])
    isa.dma_copy(dst=tile[:, 0 : COLUMNS - 24], src=x[ROWS : 2 * ROWS, 0 : COLUMNS - 24])
    isa.dma_copy(dst=result, src=tile)
    return result


def test_a_narrower_load_leaves_the_last_columns(counted: Counted) -> None:
    x = matrix(2 * ROWS, COLUMNS)
    expected = x[:ROWS].copy()
    expected[:, :-24] = x[ROWS:, :-24]
    np.testing.assert_array_equal(chunks_of_two_widths(x), expected)
    assert counted.made[0] == (True, (slice(0, ROWS), slice(COLUMNS - 24, COLUMNS)))


@nki.jit
def widths_in_turn(x: Any, widths: tuple[int, ...], overwrites: bool) -> Any:
    """Loads of some first columns, of other rows each time, take one tile in turn; all of it is read at the end."""
    tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    result = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    for number, width in enumerate(widths):
        isa.dma_copy(dst=tile[:, 0:width], src=x[number * ROWS : (number + 1) * ROWS, 0:width])
    if overwrites:
        isa.dma_copy(dst=x[0:ROWS, :], src=x[ROWS : 2 * ROWS, :])
    isa.dma_copy(dst=result, src=tile)
    return result


@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize(
    ("widths", "made"),
    [
        # What a narrower load leaves is covered by the next wide one, and never made.
        ((COLUMNS, 512, 512, COLUMNS), []),
        ((COLUMNS, 512, 768), [slice(512, COLUMNS), slice(0, 768)]),
        ((COLUMNS, 768, 512), [slice(768, COLUMNS), slice(512, 768), slice(0, 512)]),
        # Of more than two the oldest is made before.
        ((COLUMNS, 896, 768, 640), [slice(896, COLUMNS), slice(768, 896), slice(640, 768), slice(0, 640)]),
    ],
)
def test_what_loads_leave_of_those_before(
    widths: tuple[int, ...], made: list[slice], overwrites: bool, counted: Counted
) -> None:
    """Also where what the first one came from is overwritten."""
    x = matrix(4 * ROWS, COLUMNS)
    expected = np.zeros((ROWS, COLUMNS), np.float32)
    for number, width in enumerate(widths):
        expected[:, :width] = x[number * ROWS : (number + 1) * ROWS, :width]
    np.testing.assert_array_equal(widths_in_turn(x, widths, overwrites), expected)
    assert [columns for _, (_, columns) in counted.made] == made


def test_a_tile_that_outlives_its_kernel_does_not_follow_the_callers_array() -> None:
    kept = []

    @nki.jit
    def keep(x: Any) -> Any:
        tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
        isa.dma_copy(dst=tile, src=x)
        kept.append(tile)
        return x

    x = matrix(ROWS, COLUMNS)
    before = x.copy()
    keep(x)
    x[...] = 0
    np.testing.assert_array_equal(kept[0].array, before)


def test_small_contents_are_made_at_once(counted: Counted) -> None:
    @nki.jit
    def copy(x: Any) -> Any:
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        isa.dma_copy(dst=tile, src=x)
        result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        isa.dma_copy(dst=result, src=tile)
        return result

    smallest = SMALLEST_DEFERRED_BYTES // ROWS // 4
    for columns, deferred in ((smallest - 1, 0), (smallest, 1)):
        x = matrix(ROWS, columns)
        np.testing.assert_array_equal(copy(x), x)
        assert counted.deferred == deferred and not counted.made  # the store reads from where the load would


def test_memory_is_shared_where_an_element_is() -> None:
    memory = np.zeros((8, 8))
    assert not may_share(memory[::2], memory[1::2])
    assert not may_share(memory[:, :3], memory[:, 3:])
    assert may_share(memory[:, :4], memory[:, 3:])


def test_what_a_smaller_matrix_leaves_of_a_larger_one() -> None:
    def content(rows: int, columns: int, offset: int = 0, stride: int = 10) -> Deferred:
        source = np.zeros((rows, columns), np.float32)
        return deferred_copy(Layout((rows, columns), (stride, 1), offset), nl.float32, source)

    whole = content(6, 8)
    assert whole.outside(content(6, 8)) == []
    assert content(4, 5).outside(whole) == []
    assert whole.outside(content(6, 5)) == [(slice(0, 6), slice(5, 8))]
    assert whole.outside(content(4, 8)) == [(slice(4, 6), slice(0, 8))]
    assert whole.outside(content(4, 5)) == [(slice(4, 6), slice(0, 8)), (slice(0, 4), slice(5, 8))]
    assert whole.outside(content(6, 8, offset=1)) == [whole.everything]
    assert whole.outside(content(6, 8, stride=20)) == [whole.everything]


# Random programs on a matrix X in HBM and two tiles, with every content deferred however small it is.
X_SHAPE, TILE_SHAPE = (10, 9), (4, 6)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Any, ...]:
    """What to do, with which tile, which block of it (rows and columns from 0) and where in X the block is."""
    rows, columns = draw(st.sampled_from([4, 4, 3])), draw(st.sampled_from([6, 6, 4]))
    step = draw(st.integers(1, 2))
    first = draw(st.integers(0, X_SHAPE[0] - (rows - 1) * step - 1))
    left = draw(st.integers(0, X_SHAPE[1] - columns))
    action = draw(st.sampled_from(["load", "load", "store", "scale", "scale", "reduce", "reduce", "fill", "copy"]))
    return action, draw(st.integers(0, 1)), rows, columns, (slice(first, first + (rows - 1) * step + 1, step), left)


@nki.jit
def run_program(x: Any, program: Any) -> Any:
    tiles = [nl.ndarray(TILE_SHAPE, dtype=x.dtype, buffer=nl.sbuf) for _ in range(2)]
    sums = nl.ndarray((TILE_SHAPE[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    factor = nl.ndarray((TILE_SHAPE[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    for tensor, value in ((tiles[0], 1.0), (tiles[1], -2.0), (sums, 0.0), (factor, -0.5)):
        isa.memset(dst=tensor, value=value)
    for action, number, rows, columns, (at_rows, left) in program:
        is_whole = (rows, columns) == TILE_SHAPE  # then one and the same view is used again and again
        block = tiles[number] if is_whole else tiles[number][0:rows, 0:columns]
        in_x = x[at_rows, left : left + columns]
        if action == "load":
            isa.dma_copy(dst=block, src=in_x)
        elif action == "store":
            isa.dma_copy(dst=in_x, src=block)
        elif action == "scale":
            isa.activation(dst=block, op=nl.copy, data=block, scale=factor[0:rows, :])
        elif action == "reduce":
            isa.activation(
                dst=block,
                op=nl.copy,
                data=block,
                bias=tiles[number][0:rows, 0:1],
                reduce_op=nl.add,
                reduce_res=sums[0:rows, :],
                reduce_cmd=isa.reduce_cmd.reset_reduce,
            )
        elif action == "fill":
            isa.memset(dst=tiles[number][0:rows, 1:columns], value=3.0)
        else:
            isa.tensor_copy(dst=tiles[1 - number][0:rows, 0:columns], src=block)
    results = [x]
    for tensor in (*tiles, sums):
        results.append(nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=nl.shared_hbm))
        isa.dma_copy(dst=results[-1], src=tensor)
    return tuple(results)


def run_in_numpy(x: npt.NDArray[Any], program: Any) -> list[npt.NDArray[Any]]:
    """The same with every step made at once."""
    tiles = [np.full(TILE_SHAPE, value, x.dtype) for value in (1.0, -2.0)]
    sums = np.zeros((TILE_SHAPE[0], 1), np.float32)
    for action, number, rows, columns, (at_rows, left) in program:
        block, in_x = tiles[number][:rows, :columns], x[at_rows, left : left + columns]
        if action == "load":
            block[...] = in_x
        elif action == "store":
            in_x[...] = block
        elif action == "scale":
            block[...] = (block.astype(np.float32) * np.float32(-0.5)).astype(x.dtype)
        elif action == "reduce":
            values = block.astype(np.float32) + block[:, :1].astype(np.float32)
            block[...] = values.astype(x.dtype)
            sums[:rows, 0] = values.sum(axis=1)
        elif action == "fill":
            tiles[number][:rows, 1:columns] = 3.0
        else:
            tiles[1 - number][:rows, :columns] = block
    return [x, *tiles, sums]


@settings(max_examples=300)
@given(st.sampled_from(list(TYPES)), st.lists(steps(), min_size=1, max_size=9))
def test_programs_give_what_they_give_when_every_step_is_made_at_once(type_name: str, program: list[Any]) -> None:
    x = np.random.default_rng(3).integers(-8, 8, X_SHAPE).astype(TYPES[type_name][0])
    expected = run_in_numpy(x.copy(), program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SMALLEST_DEFERRED_BYTES", 1)
        results = run_program(x, program)
    for result, exact in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.astype(np.float32), exact.astype(np.float32))


def test_a_storage_shows_its_deferred_content() -> None:
    storage = Storage((4, 6), nl.float32, MemoryRegion.sbuf, "tile")
    source = matrix(4, 6)
    layout = Layout((4, 6), (6, 1), 0)
    storage.defer(deferred_copy(layout, nl.float32, source))
    np.testing.assert_array_equal(storage.array(layout, source.dtype), source)
    assert storage.deferred is None
