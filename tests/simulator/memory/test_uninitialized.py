# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reads of elements that were never written: tracked per element, an error or a sentinel as the options say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import UninitializedReadError
from nkilib.simulator.memory.storage import INTEGER_SENTINEL
from nkilib.simulator.terms.dtypes import COMPUTABLE, DType
from tests.simulator.frame import refused, run, without_place

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
