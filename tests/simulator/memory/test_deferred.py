# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.memory.deferred``: contents that are made when somebody reads them are those made at once.

Copies of views of a tile (``Derived``) are kept until it changes and as long as there is room.
"""

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
from nkilib.simulator.engines import rowwise as blocks
from nkilib.simulator.engines.rowwise import SMALLEST_DEFERRED_BYTES
from nkilib.simulator.machine.core import Core
from nkilib.simulator.memory.deferred import Deferred, Derived, Part, deferred_copy
from nkilib.simulator.memory.storage import Storage, may_share
from nkilib.simulator.terms.dtypes import bfloat16, float32
from nkilib.simulator.terms.enums import MemoryRegion
from nkilib.simulator.terms.layout import Layout

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

    def counting_make(storage: Storage, part: Part) -> None:
        count.made.append((part.content.is_copy, part.within(part.block)))
        make(storage, part)

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
def store_at_every_second_row(x: Any) -> None:
    """Twice the first rows of ``x`` go to rows 0, 2, ... of it: they begin where the loaded ones do."""
    tile, doubled = (nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    isa.dma_copy(dst=tile, src=x[0:ROWS, :])
    isa.tensor_scalar(dst=doubled, data=tile, op0=nl.multiply, operand0=2.0)
    isa.dma_copy(dst=x[0 : 2 * ROWS : 2, :], src=doubled)


def test_a_product_is_not_made_over_its_own_operand_in_another_layout() -> None:
    x = matrix(2 * ROWS, COLUMNS)
    expected = x.copy()
    expected[::2] = 2.0 * x[:ROWS]
    store_at_every_second_row(x)
    np.testing.assert_array_equal(x, expected)


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
    assert counted.deferred == 2 and not counted.made  # the store reads both from where they are


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
        ((COLUMNS, 512, 768), [slice(768, COLUMNS), slice(0, 768)]),
        ((COLUMNS, 768, 512), [slice(768, COLUMNS), slice(512, 768), slice(0, 512)]),
    ],
)
def test_what_loads_leave_of_those_before(
    widths: tuple[int, ...], made: list[slice], overwrites: bool, counted: Counted
) -> None:
    """A store reads it from where it is; it is made where what the first one came from is overwritten before."""
    x = matrix(4 * ROWS, COLUMNS)
    expected = np.zeros((ROWS, COLUMNS), np.float32)
    for number, width in enumerate(widths):
        expected[:, :width] = x[number * ROWS : (number + 1) * ROWS, :width]
    np.testing.assert_array_equal(widths_in_turn(x, widths, overwrites), expected)
    assert [columns for _, (_, columns) in counted.made] == (made if overwrites else [])


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


@nki.jit
def multiply_by_column(x: Any, columns: Any) -> Any:
    """``x`` times the first of two columns, which changes before the product is stored."""
    tile = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    factors = nl.ndarray((ROWS, 2), dtype=columns.dtype, buffer=nl.sbuf)
    isa.dma_copy(dst=tile, src=x)
    isa.dma_copy(dst=factors, src=columns)
    product = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
    isa.tensor_tensor(dst=product, data1=tile, data2=factors[:, 0:1].broadcast(1, COLUMNS), op=nl.multiply)
    isa.tensor_copy(dst=factors[:, 0:1], src=factors[:, 1:2])
    result = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    isa.dma_copy(dst=result, src=product)
    return result


@pytest.mark.parametrize("type_name", TYPES)
def test_a_product_with_a_broadcast_column_is_made_where_it_is_stored(type_name: str, counted: Counted) -> None:
    dtype = TYPES[type_name][0]
    x, columns = matrix(ROWS, COLUMNS), matrix(ROWS, 2, dtype)
    result = multiply_by_column(x, columns)
    np.testing.assert_array_equal(result, x * columns[:, :1].astype(np.float32))
    assert counted.deferred == 2  # the load and the product
    assert counted.made == []


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


# Random programs on a matrix X in HBM and three tiles, with every content deferred however small it is.
X_SHAPE, TILE_SHAPE = (10, 9), (4, 6)
ACTIONS = [
    "load",
    "load",
    "store",
    "store",
    "scale",
    "reduce",
    "shift",
    "add",
    "add column",
    "scale and add",
    "fill",
    "copy",
    "multiply",
    "multiply",
    "multiply",
    "read sum",
]
HEIGHTS = [(0, 4), (0, 4), (0, 3)]
WIDTHS = [(0, 6), (0, 6), (0, 4), (2, 6), (3, 6)]


@st.composite
def steps(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw what to do, with which tiles, which block of them and where in X the block is."""
    (top, bottom), (left, right) = draw(st.sampled_from(HEIGHTS)), draw(st.sampled_from(WIDTHS))
    step = draw(st.integers(1, 2))
    first = draw(st.integers(0, X_SHAPE[0] - (bottom - top - 1) * step - 1))
    at = draw(st.integers(0, X_SHAPE[1] - (right - left)))
    in_x = slice(first, first + (bottom - top - 1) * step + 1, step), slice(at, at + right - left)
    tiles = tuple(draw(st.integers(0, 2)) for _ in range(3))
    return draw(st.sampled_from(ACTIONS)), tiles, (slice(top, bottom), slice(left, right)), in_x


@nki.jit
def run_program(x: Any, program: Any, types: Any) -> Any:
    tiles = [nl.ndarray(TILE_SHAPE, dtype=dtype, buffer=nl.sbuf) for dtype in types]
    sums = nl.ndarray((TILE_SHAPE[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    factor = nl.ndarray((TILE_SHAPE[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    for tensor, value in ((tiles[0], 1.0), (tiles[1], -2.0), (tiles[2], 0.5), (sums, 0.0), (factor, -0.5)):
        isa.memset(dst=tensor, value=value)
    products = [nl.ndarray((TILE_SHAPE[1], TILE_SHAPE[1]), dtype=nl.float32, buffer=nl.psum) for _ in range(2)]
    for product in products:
        isa.nc_matmul(product, tiles[0], tiles[0], accumulate=False)
    read = []
    for action, numbers, block, in_x in program:
        rows = block[0]
        # Where it is all of a tile, one and the same view is used again and again.
        is_whole = block == (slice(0, TILE_SHAPE[0]), slice(0, TILE_SHAPE[1]))
        to, one, other = (tiles[number] if is_whole else tiles[number][block] for number in numbers)
        if action == "load":
            isa.dma_copy(dst=to, src=x[in_x])
        elif action == "store":
            isa.dma_copy(dst=x[in_x], src=to)
        elif action == "scale":
            isa.activation(dst=to, op=nl.copy, data=one, scale=factor[rows, :])
        elif action == "reduce":
            isa.activation(
                dst=to,
                op=nl.copy,
                data=one,
                bias=tiles[numbers[2]][rows, 0:1],
                reduce_op=nl.add,
                reduce_res=sums[rows, :],
                reduce_cmd=isa.reduce_cmd.reset_reduce,
            )
        elif action == "shift":
            isa.tensor_scalar(
                dst=to, data=one, op0=nl.subtract, operand0=sums[rows, :], op1=nl.multiply, operand1=0.5, reverse0=True
            )
        elif action == "add":
            isa.tensor_tensor(dst=to, data1=one, data2=other, op=nl.add)
        elif action == "add column":
            of_all = tiles[numbers[2]][rows, 5:6].broadcast(1, one.shape[1])
            isa.tensor_tensor(dst=to, data1=one, data2=of_all, op=nl.add)
        elif action == "scale and add":
            isa.scalar_tensor_tensor(
                dst=to, data=one, op0=nl.multiply, operand0=factor[rows, :], op1=nl.subtract, operand1=other
            )
        elif action == "fill":
            isa.memset(dst=tiles[numbers[0]][rows, 1:5], value=3.0)
        elif action == "multiply":
            stationary, moving = tiles[numbers[0]], tiles[numbers[1]]
            if types[numbers[0]] is types[numbers[1]]:
                isa.nc_matmul(products[numbers[2] % 2], stationary, moving, accumulate=not is_whole)
        elif action == "read sum":
            read.append(nl.ndarray((TILE_SHAPE[1], TILE_SHAPE[1]), dtype=nl.float32, buffer=nl.sbuf))
            isa.tensor_copy(dst=read[-1], src=products[numbers[2] % 2])
        else:
            isa.tensor_copy(dst=to, src=one)
    for product in products:
        read.append(nl.ndarray((TILE_SHAPE[1], TILE_SHAPE[1]), dtype=nl.float32, buffer=nl.sbuf))
        isa.tensor_copy(dst=read[-1], src=product)
    results = [x]
    for tensor in (*tiles, sums, *read):
        results.append(nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=nl.shared_hbm))
        isa.dma_copy(dst=results[-1], src=tensor)
    return tuple(results)


def run_in_numpy(x: npt.NDArray[Any], program: Any, types: list[Any]) -> list[npt.NDArray[Any]]:
    """The same with every step made at once."""
    half = np.float32(0.5)
    tiles = [np.full(TILE_SHAPE, value, dtype) for value, dtype in zip((1.0, -2.0, 0.5), types, strict=True)]
    sums = np.zeros((TILE_SHAPE[0], 1), np.float32)
    first_product = tiles[0].astype(np.float64).T @ tiles[0].astype(np.float64)
    products, read = [first_product.copy(), first_product.copy()], []
    for action, numbers, block, in_x in program:
        is_whole = block == (slice(0, TILE_SHAPE[0]), slice(0, TILE_SHAPE[1]))
        to, one, other = (tiles[number][block] for number in numbers)
        first, second = one.astype(np.float32), other.astype(np.float32)
        if action == "load":
            to[...] = x[in_x].astype(to.dtype)
        elif action == "store":
            x[in_x] = to.astype(x.dtype)
        elif action == "scale":
            to[...] = (first * -half).astype(to.dtype)
        elif action == "reduce":
            values = first + tiles[numbers[2]][block[0], :1].astype(np.float32)
            to[...] = values.astype(to.dtype)
            sums[block[0], 0] = values.sum(axis=1)
        elif action == "shift":
            to[...] = ((sums[block[0]] - first) * half).astype(to.dtype)
        elif action == "add":
            to[...] = (first + second).astype(to.dtype)
        elif action == "add column":
            to[...] = (first + tiles[numbers[2]][block[0], 5:6].astype(np.float32)).astype(to.dtype)
        elif action == "scale and add":
            to[...] = (first * -half - second).astype(to.dtype)
        elif action == "fill":
            tiles[numbers[0]][block[0], 1:5] = 3.0
        elif action == "multiply":
            if types[numbers[0]] is types[numbers[1]]:
                product = tiles[numbers[0]].astype(np.float64).T @ tiles[numbers[1]].astype(np.float64)
                products[numbers[2] % 2] = product + (0.0 if is_whole else products[numbers[2] % 2])
        elif action == "read sum":
            read.append(products[numbers[2] % 2])
        else:
            to[...] = one.astype(to.dtype)
    return [x, *tiles, sums, *read, *products]


@settings(max_examples=300)
@given(
    st.booleans(),
    st.sampled_from(list(TYPES)),
    st.lists(st.sampled_from(list(TYPES)), min_size=3, max_size=3),
    st.lists(steps(), min_size=1, max_size=12),
)
def test_programs_give_what_they_give_when_every_step_is_made_at_once(
    defers_on: bool, type_name: str, of_tiles: list[str], program: list[Any]
) -> None:
    """Also where results that were computed twice do not end it."""
    x = np.random.default_rng(3).integers(-8, 8, X_SHAPE).astype(TYPES[type_name][0])
    expected = run_in_numpy(x.copy(), program, [TYPES[name][0] for name in of_tiles])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SMALLEST_DEFERRED_BYTES", 1)
        if defers_on:
            patch.setattr(Core, "stop_deferring", lambda core: None)
        results = run_program(x, program, tuple(TYPES[name][1] for name in of_tiles))
    exactly = 5  # x, the tiles and their sums; products are rounded to float32 in an order of BLAS's own
    for result, exact in zip(results[:exactly], expected[:exactly], strict=True):
        np.testing.assert_array_equal(result.astype(np.float32), exact.astype(np.float32))
    for result, exact in zip(results[exactly:], expected[exactly:], strict=True):
        np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("first", [0, 1])
def test_sums_that_wait_for_a_tile_that_is_computed_in_place_are_of_its_new_elements(first: int) -> None:
    """Reading one of the sums makes the elements, and the sums that wait for them are made from the new ones."""

    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        isa.dma_copy(dst=tile, src=x)  # a cast, which is not deferred
        isa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        products = [nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.psum) for _ in range(2)]
        for place, product in enumerate(products):
            isa.nc_matmul(product, tile[:, 100 * place : 100 * place + 4], tile[:, 500:508], accumulate=False)
        results = [nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.shared_hbm) for _ in products]
        for place in (first, 1 - first):
            read = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf)
            isa.tensor_copy(dst=read, src=products[place])
            isa.dma_copy(dst=results[place], src=read)
        return tuple(results)

    x = matrix(ROWS, COLUMNS, np.float16)
    tile = x.astype(np.float64) + 1.0
    for place, result in enumerate(kernel[1](x)):
        exact = tile[:, 100 * place : 100 * place + 4].T @ tile[:, 500:508]
        np.testing.assert_allclose(result, exact, rtol=1e-4)


def test_a_storage_shows_its_deferred_content() -> None:
    storage = Storage((4, 6), nl.float32, MemoryRegion.sbuf, "tile")
    source = matrix(4, 6)
    layout = Layout((4, 6), (6, 1), 0)
    storage.defer(deferred_copy(layout, nl.float32, source))
    np.testing.assert_array_equal(storage.array(layout, source.dtype), source)
    assert not storage.parts


class Maker:
    """Makes copies of so many elements, and counts them."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.made = 0

    def __call__(self) -> Any:
        self.made += 1
        return np.zeros((1, self.elements), np.float32)


def view(offset: int) -> Layout:
    return Layout((1, 4), (4, 1), offset)


def test_a_view_is_copied_once() -> None:
    derived, maker = Derived(nbytes=64), Maker(4)
    first = derived.copy_of(view(0), bfloat16, maker)
    assert derived.copy_of(view(0), bfloat16, maker) is first
    assert maker.made == 1
    assert derived.copy_of(view(4), bfloat16, maker) is not first
    assert derived.copy_of(view(0), float32, maker) is not first


def test_copies_take_four_times_the_bytes_of_their_tile_at_most() -> None:
    derived, maker = Derived(nbytes=8), Maker(4)
    derived.copy_of(view(0), bfloat16, maker)
    derived.copy_of(view(1), bfloat16, maker)
    derived.copy_of(view(2), bfloat16, maker)  # 48 bytes of 32: the others are forgotten
    derived.copy_of(view(2), bfloat16, maker)
    assert maker.made == 3
    derived.copy_of(view(0), bfloat16, maker)
    assert maker.made == 4
