# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.alloc_tiles``, ``nl.alloc_blocks`` and ``nl.empty_like``: new memory in tiles, and how it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import CapacityError, NkiValidationError, SimulatorWarning
from nkilib.simulator.terms.errors import GridTypeError, GridValueError
from tests.simulator.frame import counted, refused, run

TILE, BLOCK, ELEMENTS = (128, 256), (2, 2), (300, 700)


def allocated(buffer: Any = nl.sbuf, **changes: Any) -> Any:
    """Allocate tiles of 300 x 700 elements in a kernel, three rows of three."""
    arguments: dict[str, Any] = {"tile_shape": TILE, "element_shape": ELEMENTS, "buffer": buffer, "dtype": nl.float32}
    return nl.alloc_tiles(**arguments | changes)


def test_tiles_on_chip_are_one_allocation_one_beside_the_other() -> None:
    def kernel() -> None:
        grid = allocated(name="acc")
        assert grid.shape == (3, 3) and grid.element_shape == ELEMENTS and grid.buffer is nl.sbuf
        assert grid[0, 0].data.storage.shape == (128, 9 * 256) and grid[0, 0].data.name == "acc"
        assert [grid[row, column].data.offset for row, column in ((0, 0), (0, 1), (1, 0), (2, 2))] == [
            0,
            256,
            3 * 256,
            8 * 256,
        ]
        edge = grid[2, 2]
        assert edge.element_shape == edge.data.shape == (44, 188) and edge.is_remainder
        # A row of tiles is one tensor. Of several rows the room that the edges leave lies in between.
        assert grid[1].data.shape == (128, 700) and not grid.is_data_representable
        assert "index it down to neighbouring tiles, of one row where some are cut off" in refused(
            NkiValidationError, lambda: grid.data
        )

    run(kernel)


def test_whole_tiles_of_several_rows_are_one_tensor_of_their_partitions() -> None:
    def kernel(x: Any) -> Any:
        grid = allocated(tile_shape=(4, 8), element_shape=(12, 16))
        nisa.memset(grid.data, 0)
        assert grid.data.shape == (4, 6 * 8)
        nisa.memset(grid[1:, :].data, 1)
        nisa.memset(grid[2, 1].data, 2)
        # Between the tiles of a column lie those of the others.
        assert not grid[:, 1:].is_data_representable and not grid[::2].is_data_representable
        nisa.dma_copy(x, grid.data)
        return x

    expected = np.repeat([0, 0, 1, 1, 1, 2], 8).astype(np.float32)
    assert np.array_equal(run(kernel, np.zeros((4, 48), np.float32)), np.tile(expected, (4, 1)))


def test_tiles_of_one_partition_are_not_mistaken_for_rows() -> None:
    def kernel() -> None:
        grid = allocated(tile_shape=(1, 8), element_shape=(4, 16))
        assert grid.data.shape == (1, 64) and grid[3].data.shape == (1, 16)

    run(kernel)


@pytest.mark.parametrize("buffer", [nl.hbm, nl.shared_hbm], ids=str)
def test_tiles_in_hbm_are_a_dense_tensor(buffer: Any) -> None:
    def kernel() -> None:
        grid = allocated(buffer, element_shape=(2, *ELEMENTS))
        assert grid.shape == (2, 3, 3) and grid.data.shape == grid.data.storage.shape == (2, *ELEMENTS)
        assert grid[1, -1, 0].element_shape == (44, 256)

    run(kernel)


def test_leading_dimensions_on_chip_have_tiles_of_their_own() -> None:
    def kernel() -> None:
        grid = allocated(tile_shape=(4, 8), element_shape=(3, 4, 16), buffer=nl.psum)
        assert grid.shape == (3, 1, 2) and grid[0, 0, 0].data.storage.shape == (4, 3 * 2 * 8)
        assert grid[2].data.shape == (4, 16) and grid[2].data.offset == 2 * 16
        assert grid.data.shape == (4, 3 * 16)  # its first dimension counts partitions

    run(kernel)


def test_blocks_lie_as_their_tiles_do() -> None:
    def kernel() -> None:
        grid = nl.alloc_blocks(
            tile_shape=TILE, block_shape=BLOCK, element_shape=ELEMENTS, buffer=nl.sbuf, dtype=nl.bfloat16
        )
        assert isinstance(grid, nl.NkiBlockGrid)
        assert grid.shape == (2, 2) and grid.block_shape == BLOCK and grid.dtype is nl.bfloat16
        assert nl.tiles(grid[1, 1])[0, 0].data.offset == 8 * 256
        assert grid[1, 0].data.shape == (44, 512)

    run(kernel)


def test_an_address_is_that_of_the_whole_allocation() -> None:
    def kernel() -> None:
        grid = allocated(tile_shape=(32, 8), element_shape=(32, 16), address=(64, 1024))
        assert grid[0, 1].data.storage.address == (64, 1024)

    run(kernel)


@pytest.mark.parametrize(
    ("error", "changes", "message"),
    [
        (GridTypeError, {"element_shape": [300, 700]}, "element_shape must be a tuple of Python integers"),
        (GridValueError, {"element_shape": (300, -1)}, "element_shape must have positive sizes"),
        (GridValueError, {"element_shape": (300,)}, "tile_shape (128, 256) has more dimensions than element_shape"),
        (GridValueError, {"tile_shape": (128,)}, "tile_shape must have at least two dimensions"),
        (GridTypeError, {"buffer": "sbuf"}, "buffer must be a memory region, such as nl.sbuf or nl.shared_hbm"),
        (NkiValidationError, {"tile_shape": (256, 8)}, "the partition dimension must be at most 128"),
        (NkiValidationError, {"element_shape": (9000, 9000)}, "bytes a partition"),
    ],
)
def test_memory_that_cannot_be(error: type[Exception], changes: dict[str, Any], message: str) -> None:
    assert message in refused(error, lambda: run(lambda: allocated(**changes) and None))


def test_a_tensor_goes_through_sbuf_in_tiles() -> None:
    """The kernel is that of the pages, for a tensor whose last tiles are smaller: every element comes back once."""

    def kernel(source: Any) -> Any:
        result = nl.ndarray(source.shape, source.dtype, nl.shared_hbm)
        view = nl.tiles(source, tile_shape=TILE)
        kept = nl.empty_like(view, buffer=nl.sbuf)
        taken = nl.tiles(result, tile_shape=view.tile_shape)
        for row in range(view.shape[0]):
            nisa.dma_copy(dst=kept[row].data, src=view[row].data)
            for column in range(view.shape[1]):
                tile = kept[row, column]
                nisa.tensor_scalar(tile.data, tile.data, op0=nl.multiply, operand0=float(1 + row))
                nisa.dma_copy(dst=taken[row, column].data, src=tile.data)
        return result

    array = counted(*ELEMENTS)
    factors = 1 + np.arange(ELEMENTS[0]) // 128
    assert np.array_equal(run(kernel, array, uninitialized="error"), array * factors[:, None].astype(np.float32))


def test_blocks_move_at_once_and_are_worked_on_by_tiles() -> None:
    def kernel(source: Any) -> Any:
        result = nl.ndarray(source.shape, source.dtype, nl.shared_hbm)
        view = nl.blocks(source, tile_shape=TILE, block_shape=(1, 2))
        taken = nl.blocks(result, tile_shape=TILE, block_shape=(1, 2))
        for row in range(view.shape[0]):
            for column in range(view.shape[1]):
                block = view[row, column]
                kept = nl.empty_like(block, buffer=nl.sbuf)
                nisa.dma_copy(dst=kept.data, src=block.data)
                tiles = nl.tiles(kept)
                for number in range(tiles.shape[1]):
                    nisa.tensor_scalar(tiles[0, number].data, tiles[0, number].data, op0=nl.add, operand0=1.0)
                nisa.dma_copy(dst=taken[row, column].data, src=kept.data)
        return result

    array = counted(*ELEMENTS)
    with nkilib.simulator.recording() as record:
        assert np.array_equal(run(kernel, array, uninitialized="error"), array + 1)
    assert record.instruction_counts == {"dma_copy": 12, "tensor_scalar": 9}


def test_like_a_tensor() -> None:
    def kernel(x: Any) -> None:
        assert x.data is x
        made = nl.empty_like(x)
        assert (made.shape, made.dtype, made.buffer) == (x.shape, x.dtype, x.buffer)
        other = nl.empty_like(x[:4], nl.bfloat16, nl.sbuf, "t", address=(0, 64))
        assert (other.shape, other.dtype, other.buffer, other.name) == ((4, 8), nl.bfloat16, nl.sbuf, "t")
        assert other.storage.address == (0, 64)
        with pytest.raises(GridTypeError, match="x must be a tensor or a grid, got 3"):
            nl.empty_like(3)

    run(kernel, counted(16, 8))


def test_like_a_grid_its_tiles_lie_one_after_the_other() -> None:
    def kernel(x: Any) -> None:
        grid = nl.tiles(x, tile_shape=TILE)
        made = nl.empty_like(grid[:, ::2])
        assert isinstance(made, nl.NkiTileGrid) and made.buffer is x.buffer
        assert made.shape == (3, 2) and made.element_shape == made.data.shape == (300, 256 + 188)
        row = nl.empty_like(grid[1], buffer=nl.sbuf)
        assert row.shape == (3,) and row.data.shape == (128, 700)
        assert row[2].element_shape == (128, 188)

    run(kernel, counted(*ELEMENTS))


def test_like_blocks_it_keeps_their_hierarchy() -> None:
    def kernel(x: Any) -> None:
        grid = nl.blocks(x, tile_shape=TILE, block_shape=BLOCK)
        made = nl.empty_like(grid[:, 1:], nl.float16, nl.sbuf)
        assert isinstance(made, nl.NkiBlockGrid) and made.dtype is nl.float16
        assert (made.shape, made.block_shape, made.tile_shape) == ((2, 1), BLOCK, TILE)
        assert made.element_shape == (300, 188)
        assert nl.empty_like(grid[0, 0], buffer=nl.sbuf).shape == ()

    run(kernel, counted(*ELEMENTS))


def test_room_for_a_transpose() -> None:
    def kernel(x: Any) -> Any:
        source = nl.tiles(x, tile_shape=(64, 32))
        made = nl.empty_like(source, buffer=nl.sbuf, transpose_axes=(1, 0))
        assert made.shape == source.shape[::-1] and made.tile_shape == (32, 64)
        assert made.element_shape == (96, 128)
        assert nl.empty_like(source[1, 2], buffer=nl.sbuf, transpose_axes=(1, 0)).data.shape == (32, 64)
        for shape, axes in (((4, 5, 6), (2, 1, 0)), ((3, 4, 5, 6), (3, 1, 2, 0))):
            tensor = nl.ndarray(shape, nl.bfloat16, nl.hbm)
            room = nl.empty_like(tensor, buffer=nl.sbuf, transpose_axes=axes)
            assert room.shape == tuple(shape[axis] for axis in axes)
        result = nl.ndarray((96, 128), x.dtype, nl.shared_hbm)
        for row in range(2):
            for column in range(3):
                nisa.dma_transpose(made[column, row].data, source[row, column].data)
                nisa.dma_copy(nl.tiles(result, tile_shape=(32, 64))[column, row].data, made[column, row].data)
        return result

    array = counted(128, 96, dtype=np.float32)
    assert np.array_equal(run(kernel, array, uninitialized="error"), array.T)


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ((4, 8), {"transpose_axes": (0, 1)}, "transpose_axes of 2 dimensions must be (1, 0), got (0, 1)"),
        ((8,), {"transpose_axes": (0,)}, "transpose_axes of 1 dimensions must be (1, 0) or (2, 1, 0) or (3, 1, 2, 0)"),
        ((4, 8), {"transpose_axes": (1, 0), "buffer": None}, "is for a result in nl.sbuf, got buffer private_hbm"),
        ((4, 129), {"transpose_axes": (1, 0)}, "which must be at most 128, got 129"),
    ],
)
def test_transposes_that_cannot_be(shape: tuple[int, ...], changes: dict[str, Any], message: str) -> None:
    def kernel() -> None:
        nl.empty_like(nl.ndarray(shape, nl.float32, nl.hbm), **{"buffer": nl.sbuf} | changes)

    assert message in refused(GridValueError, lambda: run(kernel))


def test_a_tensor_is_placed_in_hbm_by_its_first_byte() -> None:
    def kernel() -> None:
        nl.ndarray((2, 4), nl.float32, nl.hbm, address=(0,))
        nl.ndarray((2, 4), nl.float32, nl.shared_hbm, address=(0,))
        placed = nl.ndarray((2, 4), nl.float32, nl.hbm, "second", address=(32,))
        assert placed.storage.address == (32,)
        assert nl.NkiTensor((2, 4), nl.float32, placed.storage, nl.hbm, address=(32,)).shape == (2, 4)
        with pytest.raises(NkiValidationError, match=r"lies where its storage does, at \(32,\), not at \(0,\)"):
            nl.NkiTensor((2, 4), nl.float32, placed.storage, nl.hbm, address=(0,))
        nl.ndarray((2, 4), nl.float32, nl.hbm, address=(63,))

    message = refused(CapacityError, lambda: run(kernel))
    assert "at bytes 63 to 95 overlaps tensor 'second' [2, 4] float32 in private_hbm at bytes 32 to 64" in message
    run(kernel, capacity="ignore")
    with pytest.warns(SimulatorWarning, match="at bytes 63 to 95 overlaps"):
        run(kernel, capacity="warn")


def test_both_cores_place_a_shared_tensor_once() -> None:
    addresses: list[Any] = []

    def kernel() -> None:
        addresses.append(nl.ndarray((2, 4), nl.float32, nl.shared_hbm, address=(8,)).storage.address)

    run(kernel, cores=2)
    assert addresses == [(8,), (8,)]


@pytest.mark.parametrize(
    ("buffer", "address", "message"),
    [
        (nl.hbm, (0, 0), "address of a tensor in HBM must be (first byte,), got (0, 0)"),
        (nl.hbm, (-1,), "address must not be negative, got (-1,)"),
        (nl.hbm, 0, "address of a tensor in HBM must be (first byte,), got 0"),
        (nl.sbuf, (0,), "address must be (first partition, first byte in a partition), got (0,)"),
    ],
)
def test_addresses_that_cannot_be(buffer: Any, address: Any, message: str) -> None:
    assert message in refused(NkiValidationError, lambda: run(lambda: nl.ndarray((2, 4), nl.int8, buffer, "", address)))


def test_rows_of_tiles_do_not_move_in_another_order() -> None:
    """Rows of tiles lie one below the other in HBM, and one beside the other on chip."""

    def kernel(x: Any, is_rearranged: bool) -> Any:
        kept = nl.alloc_tiles(tile_shape=(4, 8), element_shape=(12, 16), buffer=nl.sbuf, dtype=x.dtype)
        source = x.rearrange((("row", "p"), "f"), ("p", "row", "f"), {"p": 4}) if is_rearranged else x
        nisa.dma_copy(kept.data.reshape((4, 3, 16)) if is_rearranged else kept.data, source)
        result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        for row in range(3):
            nisa.dma_copy(nl.tiles(result, tile_shape=(4, 8))[row].data, kept[row].data)
        return result

    def slabs(x: Any) -> None:
        grid = nl.alloc_tiles(tile_shape=(4, 8), element_shape=(3, 4, 16), buffer=nl.sbuf, dtype=x.dtype)
        nisa.dma_copy(grid.data, x.reshape((3, 4, 16)))

    array = counted(12, 16)
    assert "has 3 rows of tiles" in refused(NkiValidationError, lambda: run(slabs, array))
    message = refused(NkiValidationError, lambda: run(kernel, array, False))
    assert "tensor [4, 48] float32 in sbuf has 3 rows of tiles one beside the other, and tensor 'x' [12, 16]" in message
    assert np.array_equal(run(kernel, array, True), array)
