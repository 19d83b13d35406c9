# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.memory.storage``: the memory behind tensors, its pool, and reads of what was never written.

Unwritten elements are tracked one by one; a read of them is an error or a sentinel, as the options say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import UninitializedReadError
from nkilib.simulator.memory.storage import INTEGER_SENTINEL, BytePool, Storage
from nkilib.simulator.terms.dtypes import ALL_DTYPES, COMPUTABLE, DType, float32
from nkilib.simulator.terms.enums import MemoryRegion
from nkilib.simulator.terms.layout import Layout, dense
from tests.simulator.frame import refused, run, without_place

# Packed types: tests/simulator/tensors/test_packed.py says what an unwritten word reads as.
UNPACKED = [dtype for dtype in ALL_DTYPES if not dtype.is_packed]


def make(shape: tuple[int, ...], dtype: DType, **settings: Any) -> Storage:
    return Storage(shape, dtype, nl.sbuf, "t", **settings)


def test_a_storage_of_given_data_is_that_memory() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    storage = make((3, 4), nl.float32, data=data)
    assert storage.written.is_full and not storage.is_read_only and storage.nbytes == 48
    storage.array(Layout((2,), (4,), 1), data.dtype)[...] = -1
    np.testing.assert_array_equal(data[:, 1], [-1, -1, 9])


def test_an_array_follows_strides_and_offset_in_elements_of_its_type() -> None:
    data = np.arange(12, dtype=np.int32)
    storage = make((12,), nl.int32, data=data)
    array = storage.array(Layout((2, 3), (5, 2), 1), np.dtype(np.int32))
    np.testing.assert_array_equal(array, [[1, 3, 5], [6, 8, 10]])
    halves = storage.array(Layout((3,), (2,), 0), np.dtype(np.int16))
    np.testing.assert_array_equal(halves, data.view(np.int16)[:6:2])


def test_a_layout_without_elements_may_start_behind_the_end() -> None:
    storage = make((3, 4), nl.float32)
    beyond = Layout((2, 0), (4, 1), 99)
    assert storage.array(beyond, np.dtype(np.float32)).shape == (2, 0)
    assert storage.written.mask_of(beyond, 4).shape == (2, 0, 1)


def test_a_read_only_array_makes_a_read_only_storage() -> None:
    data = np.zeros(4, np.float32)
    data.flags.writeable = False
    storage = make((4,), nl.float32, data=data)
    assert storage.is_read_only
    assert not storage.array(dense((4,)), data.dtype).flags.writeable


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_without_precise_floating_point_low_precision_types_are_stored_as_float32(dtype: DType) -> None:
    is_low = dtype in (nl.bfloat16, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)
    precise, wide = make((2, 3), dtype), make((2, 3), dtype, precise_fp=False)
    assert (precise.nbytes, precise.numpy_dtype, precise.is_widened) == (6 * dtype.itemsize, dtype.numpy, False)
    assert wide.is_widened == is_low
    assert wide.numpy_dtype == (np.float32 if is_low else dtype.numpy)
    assert wide.nbytes == 6 * wide.numpy_dtype.itemsize
    assert wide.numpy_type_of(dtype) == wide.numpy_dtype


def test_a_view_of_another_type_reads_that_types_bits() -> None:
    assert make((4,), nl.float32).numpy_type_of(nl.bfloat16) == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", UNPACKED, ids=str)
@pytest.mark.parametrize("precise_fp", [True, False])
def test_unwritten_elements_get_nan_or_four(dtype: DType, precise_fp: bool) -> None:
    storage = make((2, 3), dtype, precise_fp=precise_fp)
    numpy_type = storage.numpy_dtype
    array = storage.array(dense((2, 3)), numpy_type)
    array[...] = 1
    storage.written.mark(Layout((2, 1), (3, 1), 1), numpy_type.itemsize)
    storage.fill_unwritten(dense((2, 3)), dtype)
    values = array.astype(np.float32)
    expected = np.full((2, 3), INTEGER_SENTINEL if dtype.is_integer else np.nan, np.float32)
    expected[:, 1] = 1
    np.testing.assert_array_equal(values, expected)
    assert not storage.written.is_written(dense((2, 3)), numpy_type.itemsize)


def test_the_written_half_of_an_element_keeps_its_bits() -> None:
    storage = make((2,), nl.float32)
    halves = storage.array(dense((4,)), np.dtype(np.uint16))
    halves[...] = 0x1111
    storage.written.mark(Layout((1,), (1,), 1), 2)  # the upper half of element 0
    storage.fill_unwritten(dense((2,)), nl.float32)
    # float32 NaN is 0x7fc00000; little-endian, so the lower half comes first.
    assert [hex(half) for half in halves] == ["0x0", "0x1111", "0x0", "0x7fc0"]


def test_unwritten_elements_are_counted_among_those_that_matter() -> None:
    storage = make((2, 3), nl.float32)
    whole = dense((2, 3))
    storage.written.mark(Layout((1, 3), (3, 1), 0), 4)
    assert storage.count_unwritten(whole, nl.float32) == 3
    among = np.array([[True, True, True], [True, False, True]])
    assert storage.count_unwritten(whole, nl.float32, among) == 2
    assert storage.count_unwritten(whole, nl.float32, ~among) == 1
    assert storage.count_unwritten(whole, nl.float32, np.zeros((2, 3), np.bool_)) == 0


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


SHAPE = (4, 6)


def copied(source: Any, dtype: Any = None) -> Any:
    """Make a tensor in HBM with the values of an SBUF tile in a kernel, by way of another tile."""
    tile = nl.ndarray(source.shape, dtype or source.dtype)
    nisa.tensor_copy(tile, source)
    result = nl.ndarray(source.shape, tile.dtype, nl.shared_hbm)
    nisa.dma_copy(result, tile)
    return result


def nothing_written() -> Any:
    return copied(nl.ndarray(SHAPE, nl.float32))


def one_column_missing() -> Any:
    tile = nl.ndarray(SHAPE, nl.float32)
    nisa.memset(tile[:, :3], 1)
    nisa.memset(tile[:, 4:], 1)
    return copied(tile)


def every_other_column() -> Any:
    tile = nl.ndarray(SHAPE, nl.float32)
    nisa.memset(tile[:, ::2], 1)
    return copied(tile)


def through_a_permuted_view() -> Any:
    tile = nl.ndarray((4, 2, 3), nl.float32)
    nisa.memset(tile.permute((0, 2, 1))[:, 1:], 1)
    return copied(tile.reshape(SHAPE))


def half_of_an_element() -> Any:
    tile = nl.ndarray(SHAPE, nl.float32)
    nisa.memset(tile, 1)
    fresh = nl.ndarray(SHAPE, nl.float32)
    nisa.tensor_copy(fresh.view(nl.uint16)[:, 1:], tile.view(nl.uint16)[:, 1:])
    return copied(fresh)


CASES = [
    (nothing_written, 24, np.ones(SHAPE, np.bool_)),
    (one_column_missing, 4, np.arange(6) == np.full(SHAPE, 3)),
    (every_other_column, 12, np.arange(6) % 2 == np.ones(SHAPE)),
    (through_a_permuted_view, 8, np.arange(6) % 3 == np.zeros(SHAPE)),
]


@pytest.mark.parametrize(("kernel", "missing", "where"), CASES)
def test_a_read_of_unwritten_elements_is_an_error_or_nan(kernel: Any, missing: int, where: Any) -> None:
    message = without_place(refused(UninitializedReadError, lambda: run(kernel)), "nisa.tensor_copy")
    assert message == f"operand 'src': {missing} of the 24 elements of tensor [4, 6] float32 in sbuf were never written"
    np.testing.assert_array_equal(run(kernel, uninitialized="nan"), np.where(where, np.nan, np.float32(1)))


def test_an_element_of_which_a_part_was_written_is_not_written() -> None:
    message = without_place(refused(UninitializedReadError, lambda: run(half_of_an_element)), "nisa.tensor_copy")
    assert message == "operand 'src': 4 of the 24 elements of tensor [4, 6] float32 in sbuf were never written"
    assert (run(half_of_an_element, uninitialized="nan")[:, 1:] == 1).all()


def corrected_in_pieces() -> Any:
    tile = nl.ndarray(SHAPE, nl.float32)
    for column in range(6):
        nisa.memset(tile[:, column : column + 1], 1)
    return copied(tile)


def only_the_written_part_is_read() -> Any:
    tile = nl.ndarray((4, 12), nl.float32)
    nisa.memset(tile[:, ::2], 1)
    return copied(tile[:, ::2])


def through_narrower_elements() -> Any:
    tile, halves = nl.ndarray(SHAPE, nl.float32), nl.ndarray(SHAPE, nl.float32)
    nisa.memset(tile, 1)
    for half in range(2):
        nisa.tensor_copy(halves.view(nl.uint16)[:, half::2], tile.view(nl.uint16)[:, half::2])
    return copied(halves)


@pytest.mark.parametrize("kernel", [corrected_in_pieces, only_the_written_part_is_read, through_narrower_elements])
@pytest.mark.parametrize("mode", ["error", "nan"])
def test_what_was_written_in_any_way_is_read(kernel: Any, mode: str) -> None:
    np.testing.assert_array_equal(run(kernel, uninitialized=mode), np.ones(SHAPE))


@pytest.mark.parametrize("dtype", sorted(COMPUTABLE), ids=str)
@pytest.mark.parametrize("precise_fp", [True, False])
def test_the_sentinel_of_every_type(dtype: DType, precise_fp: bool) -> None:
    def kernel() -> Any:
        tile = nl.ndarray(SHAPE, dtype)
        nisa.memset(tile[:, 0:1], 1)
        return copied(tile)

    values = run(kernel, uninitialized="nan", precise_fp=precise_fp).astype(np.float32)
    assert (values[:, 0] == 1).all()
    assert (values[:, 1:] == INTEGER_SENTINEL).all() if dtype.is_integer else np.isnan(values[:, 1:]).all()
    assert INTEGER_SENTINEL == 4


def test_a_sentinel_read_does_not_count_as_written() -> None:
    def kernel() -> Any:
        tile = nl.ndarray(SHAPE, nl.float32)
        copied(tile)
        return copied(tile.view(nl.int32))

    assert (run(kernel, uninitialized="nan") == INTEGER_SENTINEL).all()


@pytest.mark.parametrize("buffer", [nl.hbm, nl.shared_hbm])
def test_memory_in_hbm_is_tracked_too(buffer: Any) -> None:
    def kernel(columns: int) -> Any:
        t = nl.ndarray(SHAPE, nl.float32, buffer)
        nisa.dma_copy(t[:, :columns], nl.full((4, columns), 1, nl.float32))
        tile = nl.ndarray(SHAPE, nl.float32)
        nisa.dma_copy(tile, t)
        return copied(tile)

    message = without_place(refused(UninitializedReadError, lambda: run(kernel, 5)), "nisa.dma_copy")
    assert message == f"operand 'src': 4 of the 24 elements of tensor [4, 6] float32 in {buffer} were never written"
    np.testing.assert_array_equal(run(kernel, 6), np.ones(SHAPE))


def test_psum_is_tracked_too() -> None:
    def kernel(writes: bool) -> Any:
        t = nl.ndarray(SHAPE, nl.float32, nl.psum)
        if writes:
            nisa.memset(t, 1)
        return copied(t)

    message = without_place(refused(UninitializedReadError, lambda: run(kernel, False)), "nisa.tensor_copy")
    assert message == "operand 'src': 24 of the 24 elements of tensor [4, 6] float32 in psum were never written"
    np.testing.assert_array_equal(run(kernel, True), np.ones(SHAPE))


def test_two_cores_track_their_shared_memory_together() -> None:
    def kernel(rows: int) -> Any:
        core = nl.program_id()
        shared = nl.ndarray(SHAPE, nl.float32, nl.shared_hbm)
        start = 2 * core
        nisa.dma_copy(shared[start : start + rows], nl.full((rows, 6), 1, nl.float32))
        return shared

    np.testing.assert_array_equal(run(kernel, 2, cores=2), np.ones(SHAPE))
    expected = (
        "kernel: the kernel returns tensor [4, 6] float32 in shared_hbm, of which 12 of 24 elements were never written"
    )
    assert refused(UninitializedReadError, lambda: run(kernel, 1, cores=2)) == expected
    half = run(kernel, 1, cores=2, uninitialized="nan")
    np.testing.assert_array_equal(half, [[1] * 6, [np.nan] * 6] * 2)


def test_the_default_is_nan() -> None:
    from nkilib.simulator import Options

    assert Options() == Options(uninitialized="ignore") == Options(uninitialized="nan")


# -- where they are, and who wrote beside them -----------------------------------------------------------------


def line_of(comment: str) -> str:
    """`file:line` of this file where a line with that comment is."""
    code = Path(__file__).read_text(encoding="utf-8").splitlines()
    (line,) = (number for number, text in enumerate(code, 1) if text.rstrip().endswith(f"# {comment}"))
    return f"{__file__}:{line}"


def said_of(kernel: Any, *arguments: Any, cores: int = 1) -> str:
    """Return what the error says behind `were never written: `."""
    with pytest.raises(UninitializedReadError) as caught:
        run(kernel, *arguments, cores=cores)
    return str(caught.value).partition("were never written: ")[2]


def test_the_first_and_the_last_element_and_the_line_that_wrote_beside_them() -> None:
    def kernel(columns: int) -> None:
        tile = nl.ndarray((4, 12), nl.float32)
        nisa.memset(tile[:, :2], 1)  # far
        nisa.memset(tile[:, 2:columns], 1)  # before the gap
        nisa.memset(tile[:, 10:], 1)  # behind the gap
        nisa.memset(tile[:, :1], 1)
        copied(tile)

    assert (
        said_of(kernel, 5)
        == f"the first is [0, 5], the last [3, 9]; {line_of('before the gap')} was the last to write near it"
    )
    run(kernel, 10)


def test_rows_that_a_loop_has_left_out() -> None:
    """The last one of equally near writes is named; indices are those of the view that is read."""

    def kernel() -> None:
        tile = nl.ndarray((64, 6), nl.float32)
        nisa.memset(tile[:32, :], 1)  # first
        nisa.memset(tile[:32, :], 2)  # again
        copied(tile[:, 2:])

    assert (
        said_of(kernel) == f"the first is [32, 0], the last [63, 3]; {line_of('again')} was the last to write near it"
    )


def test_a_tensor_that_nobody_wrote_to() -> None:
    assert said_of(nothing_written) == "the first is [0, 0], the last [3, 5]; nothing has written to this tensor"


def test_one_element_of_memory_that_the_other_core_wrote() -> None:
    def kernel(x: Any) -> Any:
        result = nl.ndarray((4, 8), nl.float32, nl.shared_hbm)
        if nl.program_id() == 0:
            nisa.dma_copy(result[:, :7], nl.full((4, 7), 1, nl.float32))  # beside it
        else:
            nisa.dma_copy(result[:3, 7:], nl.full((3, 1), 1, nl.float32))  # above it
        return result

    message = said_of(kernel, np.zeros(1, np.float32), cores=2)
    assert message == f"the element [3, 7]; {line_of('beside it')} was the last to write near it"


def test_a_view_that_nothing_is_known_of_but_that_it_was_scattered_to() -> None:
    def kernel(rows: Any) -> Any:
        result = nl.ndarray((8, 4), nl.float32, nl.shared_hbm)
        at = nl.ndarray((3, 1), nl.int32)
        nisa.dma_copy(at, rows)
        nisa.dma_copy(result.vector_select(0, at), nl.full((3, 4), 1, nl.float32))  # scattered
        return result

    message = said_of(kernel, np.array([[0], [2], [7]], np.int32))
    assert message == f"the first is [1, 0], the last [6, 3]; {line_of('scattered')} was the last to write near it"
