# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.tiles`` and ``nl.blocks`` on tensors: what their grids say of themselves, and which elements they have.

The tensors stand on counted arrays, so that ``data.array`` is compared with slices of the array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError
from nkilib.simulator.terms.errors import GridTypeError, GridValueError
from tests.simulator.frame import counted, empty, in_hbm, in_sbuf, refused, run

ROWS, COLUMNS = 300, 1100
ARRAY = counted(ROWS, COLUMNS)


def tiles_of(array: Any = ARRAY, tile_shape: tuple[int, ...] = (128, 256)) -> Any:
    return nl.tiles(in_hbm(array), tile_shape=tile_shape)


def blocks_of(array: Any = ARRAY, block_shape: tuple[int, ...] = (2, 2)) -> Any:
    return nl.blocks(in_hbm(array), tile_shape=(128, 256), block_shape=block_shape)


def test_a_grid_of_tiles_counts_those_that_are_cut_off_too() -> None:
    grid = tiles_of()
    assert isinstance(grid, nl.NkiTileGrid) and isinstance(grid, nl.NkiGrid)
    assert grid.shape == (3, 5)
    assert grid.tile_shape == (128, 256)
    assert grid.element_shape == (ROWS, COLUMNS)
    assert grid.index_step_elements == (128, 256)
    assert (grid.dtype, grid.buffer) == (nl.float32, nl.private_hbm)
    assert grid.is_remainder and grid.is_data_representable
    assert np.array_equal(grid.data.array, ARRAY)


def test_an_integer_takes_a_coordinate_away_and_leaves_a_grid() -> None:
    row = tiles_of()[1]
    assert isinstance(row, nl.NkiTileGrid)
    assert row.shape == (5,) and row.element_shape == (128, COLUMNS)
    assert np.array_equal(row.data.array, ARRAY[128:256])
    tile = row[2]
    assert tile.shape == () and tile.element_shape == (128, 256) and not tile.is_remainder
    assert tile.index_step_elements == ()
    assert np.array_equal(tile.data.array, ARRAY[128:256, 512:768])


@pytest.mark.parametrize(
    ("key", "rows", "columns"),
    [
        ((0, 4), slice(0, 128), slice(1024, None)),
        ((2, 0), slice(256, None), slice(0, 256)),
        ((-1, -1), slice(256, None), slice(1024, None)),
        ((slice(1, None), slice(3, 5)), slice(128, None), slice(768, None)),
        ((..., -5), slice(None), slice(0, 256)),
        ((slice(-2, -1),), slice(128, 256), slice(None)),
    ],
    ids=str,
)
def test_tiles_at_the_edge_have_exactly_what_remains(key: Any, rows: slice, columns: slice) -> None:
    chosen = tiles_of()[key]
    expected = ARRAY[rows, columns]
    assert chosen.element_shape == chosen.data.shape == expected.shape
    assert np.array_equal(chosen.data.array, expected)
    assert chosen.is_remainder == bool(expected.shape[0] % 128 or expected.shape[1] % 256)


def test_a_view_of_tiles_is_a_view() -> None:
    array = counted(256, 512)
    tiles_of(array)[1, 1].data.array[:] = 0
    assert (array[128:, 256:] == 0).all() and np.count_nonzero(array[:128]) == 128 * 512 - 1


def test_all_of_a_tensor_is_the_tensor_itself() -> None:
    tensor = in_hbm(ARRAY)
    assert nl.tiles(tensor, tile_shape=(128, 256)).data is tensor
    assert tensor.data is tensor


def test_a_view_of_a_tensor_is_tiled_where_it_lies() -> None:
    part = in_hbm(ARRAY)[10:290:2, 5:]
    chosen = nl.tiles(part, tile_shape=(128, 256))[1, 4]
    assert np.array_equal(chosen.data.array, ARRAY[10:290:2, 5:][128:, 1024:])


def test_leading_dimensions_of_hbm_are_indexed_element_by_element() -> None:
    cube = counted(3, 4, 128, 300)
    grid = nl.tiles(in_hbm(cube), tile_shape=(64, 256))
    assert grid.shape == (3, 4, 2, 2) and grid.index_step_elements == (1, 1, 64, 256)
    tile = grid[2, 1, 0, 1]
    assert tile.element_shape == (64, 44)
    assert np.array_equal(tile.data.array, cube[2, 1, :64, 256:])
    slab = grid[:, -1]
    assert slab.shape == (3, 2, 2) and slab.element_shape == (3, 128, 300)
    assert np.array_equal(slab.data.array, cube[:, 3])


def test_tiles_with_gaps_between_them_have_no_data() -> None:
    grid = tiles_of()[:, ::2]
    assert grid.shape == (3, 3) and grid.element_shape == (ROWS, 256 + 256 + 76)
    assert grid.index_step_elements == (128, 512) and not grid.is_data_representable
    assert refused(NkiValidationError, lambda: grid.data) == (
        "NkiTileGrid of 3 x 3 tiles (128, 256) of tensor [300, 1100] float32 in private_hbm: no one access pattern has "
        "the elements [300, 588] of this selection (is_data_representable is False); index it down to neighbouring "
        "tiles"
    )
    assert np.array_equal(grid[0, 1].data.array, ARRAY[:128, 512:768])
    # One element a tile is a stride.
    assert np.array_equal(nl.tiles(in_hbm(ARRAY), tile_shape=(300, 1))[:, 1::3].data.array, ARRAY[:, 1::3])


def test_an_empty_slice_has_nothing() -> None:
    nothing = tiles_of()[1:1]
    assert nothing.shape == (0, 5) and nothing.element_shape == (0, COLUMNS) and not nothing.is_remainder


def test_a_grid_of_blocks_counts_blocks_of_tiles() -> None:
    grid = blocks_of()
    assert isinstance(grid, nl.NkiBlockGrid) and isinstance(grid, nl.NkiGrid)
    assert grid.shape == (2, 3)
    assert (grid.block_shape, grid.tile_shape) == ((2, 2), (128, 256))
    assert grid.index_step_elements == (256, 512)
    assert np.array_equal(grid.data.array, ARRAY)
    block = grid[1, 2]
    assert block.shape == () and block.block_shape == (2, 2) and block.is_remainder
    assert np.array_equal(block.data.array, ARRAY[256:, 1024:])
    assert not grid[0, 0].is_remainder


@pytest.mark.parametrize(("block", "tile"), [((0, 0), (1, 1)), ((0, 1), (-1, 0)), ((1, 2), (0, 0))])
def test_the_tiles_of_a_block(block: tuple[int, int], tile: tuple[int, int]) -> None:
    tiles = nl.tiles(blocks_of()[block])
    assert isinstance(tiles, nl.NkiTileGrid)
    assert tiles.shape == {(1, 2): (1, 1)}.get(block, (2, 2))
    row, column = (2 * number + index % 2 for number, index in zip(block, tile, strict=True))
    expected = ARRAY[128 * row : 128 * (row + 1), 256 * column : 256 * (column + 1)]
    assert np.array_equal(tiles[tile].data.array, expected)


def test_blocks_with_a_gap_keep_their_tiles() -> None:
    grid = blocks_of(block_shape=(1, 2))[0, ::2]
    tiles = nl.tiles(grid)
    assert grid.shape == (2,) and tiles.shape == (1, 3)
    assert [tiles[0, number].data.array[0, 0] for number in range(3)] == [0, 256, 1024]
    assert np.array_equal(tiles[:, :2].data.array, ARRAY[:128, :512])  # the two before the gap
    assert not grid.is_data_representable


def test_tiles_are_regrouped() -> None:
    grid = nl.blocks(blocks_of(), block_shape=(3, 4))
    assert grid.shape == (1, 2) and grid.tile_shape == (128, 256)
    assert np.array_equal(grid[0, 0].data.array, ARRAY[:, :1024])
    # Another size of tiles starts at the selection, whose tiles must be one tensor.
    finer = nl.tiles(blocks_of()[1, 2], tile_shape=(32, 50))
    assert finer.shape == (2, 2)
    assert np.array_equal(finer[1, 1].data.array, ARRAY[288:, 1074:])


def test_steps_that_differ_are_no_step() -> None:
    uneven = nl.blocks(blocks_of(counted(128, 5000), (1, 2))[:, ::2], block_shape=(1, 3))
    assert "its blocks do not follow each other in equal steps" in refused(
        NkiValidationError, lambda: uneven.index_step_elements
    )


def test_tiles_of_a_tile() -> None:
    array = counted(128, 1000)
    grid = nl.tiles(in_sbuf(array), tile_shape=(64, 300))
    assert grid.shape == (2, 4) and grid.buffer is nl.sbuf
    assert np.array_equal(grid[1, 3].data.array, array[64:, 900:])
    assert np.array_equal(grid[:, 1:3].data.array, array[:, 300:900])
    assert grid[1].data.shape == (64, 1000)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (GridTypeError, lambda: tiles_of(tile_shape=[128, 256]), "tile_shape must be a tuple of Python integers, got"),
        (GridTypeError, lambda: tiles_of(tile_shape=(np.int64(128), 256)), "tile_shape must be a tuple of Python"),
        (GridTypeError, lambda: tiles_of(tile_shape=(True, 256)), "tile_shape must be a tuple of Python integers"),
        (GridValueError, lambda: tiles_of(tile_shape=(128, 0)), "tile_shape must have positive sizes, got (128, 0)"),
        (GridValueError, lambda: tiles_of(tile_shape=(128,)), "tile_shape must have at least two dimensions"),
        (GridValueError, lambda: tiles_of(tile_shape=(1, 128, 4)), "tile_shape must have at most as many dimensions"),
        (
            GridValueError,
            lambda: nl.tiles(in_sbuf(counted(4, 3, 8)), tile_shape=(3, 8)),
            "tile_shape must have as many dimensions as tensor [4, 3, 8] float32 in sbuf, got (3, 8)",
        ),
        (GridTypeError, lambda: nl.tiles(in_hbm(ARRAY)), "tile_shape is needed"),
        (GridTypeError, lambda: nl.tiles(ARRAY, tile_shape=(1, 1)), "source must be a tensor or a grid, got a numpy"),
        (GridValueError, lambda: blocks_of(block_shape=(2,)), "of which there are 2; got (2,)"),
        (GridTypeError, lambda: blocks_of(block_shape=2), "block_shape must be a tuple of Python integers, got 2"),  # type: ignore[arg-type]
        (GridTypeError, nl.NkiTileGrid, "NkiTileGrid is not made by kernels"),
    ],
)
def test_shapes_that_cannot_be(error: type[Exception], make: Callable[[], Any], message: str) -> None:
    assert message in refused(error, make)
    assert issubclass(error, TypeError if error is GridTypeError else ValueError)
    assert issubclass(error, NkiValidationError)


@pytest.mark.parametrize(
    ("error", "key", "message"),
    [
        (OutOfRangeError, 3, "tile 3 is out of range of 3"),
        (OutOfRangeError, (0, -6), "tile -6 is out of range of 5"),
        (OutOfRangeError, slice(1, 4), "the slice 1:4 leaves its 3 tiles"),
        (GridValueError, (0, 0, 0), "has 2 coordinates, got the index (0, 0, 0)"),
        (GridValueError, slice(None, None, -1), "a slice needs a step >= 1, got -1"),
        (GridTypeError, 1.0, "is indexed with integers and slices, got 1.0"),
        (GridTypeError, True, "is indexed with integers and slices, got True"),
        (GridTypeError, nl.ds(0, 2), "is indexed with integers and slices"),
    ],
    ids=str,
)
def test_indices_that_cannot_be(error: type[Exception], key: Any, message: str) -> None:
    assert message in refused(error, lambda: tiles_of()[key])


def test_a_grid_is_not_iterated_over() -> None:
    assert "index it, for i in range(grid.shape[0])" in refused(GridTypeError, lambda: list(tiles_of()))


def test_a_register_cannot_choose_a_tile() -> None:
    def kernel(x: Any) -> None:
        nl.tiles(x, tile_shape=(2, 4))[nisa.register_alloc(0)]

    message = refused(GridTypeError, lambda: run(kernel, counted(4, 8)))
    assert "use a scalar_offset on the tensor, in steps of index_step_elements" in message


def test_an_indirect_tensor_has_no_tiles() -> None:
    def kernel(x: Any) -> None:
        nl.tiles(x.select(0, nisa.register_alloc(0)), tile_shape=(2, 4))

    assert "is indirect: its address is known at run time only" in refused(
        GridValueError, lambda: run(kernel, counted(4, 4, 8))
    )


def test_grids_issue_nothing_and_take_no_memory() -> None:
    def kernel(x: Any) -> None:
        grid = nl.blocks(x, tile_shape=(2, 4), block_shape=(2, 1))
        nl.tiles(grid[0, 0])[1, 0].data.permute((1, 0))

    with nkilib.simulator.recording() as record:
        run(kernel, counted(8, 8))
    assert record.instruction_counts == {} and record.sbuf_peak_bytes == 0


def test_an_instruction_names_what_is_missing_of_a_grid() -> None:
    message = refused(NkiValidationError, lambda: run(lambda x: nl.load(nl.tiles(x, tile_shape=(2, 4))), counted(4, 8)))
    assert message.endswith("a grid is no operand, its tensor is grid.data")


def test_a_kernel_returns_tensors_and_no_grids() -> None:
    message = refused(NkiValidationError, lambda: run(lambda x: nl.tiles(x, tile_shape=(2, 4)), counted(4, 8)))
    assert message.endswith("return grid.data")


def test_a_grid_of_another_type_is_told_apart() -> None:
    assert nl.tiles(empty(4, 8, dtype=nl.bfloat16), tile_shape=(2, 4)).dtype is nl.bfloat16
