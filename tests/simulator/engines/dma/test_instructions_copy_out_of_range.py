# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`dma_copy` with indices that are out of range, which are refused or skipped, and with elements never written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import explain_index, nisa, nl

from ...kernels import Body, execute, hbm, launch, refusal, sbuf, tile
from ...rules import Rule, broken, check_rule, legal_kernel, rules
from .test_instructions_copy import gathering, indices, rows, scattering

OUT_OF_RANGE = nkilib.simulator.OutOfRangeError
UNINITIALIZED = nkilib.simulator.UninitializedReadError
SKIP = nisa.oob_mode.skip


def selecting(value: int, **options: Any) -> Body:
    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(hbm(1, 2), data.select(0, indices(value)), **options)

    return kernel


def gathering_with_offset(*values: int) -> Body:
    """Two rows at a time from row 1 on: the last index that stays inside the four rows is 2."""

    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        view = data.ap([[2, len(values)], [1, 2]], offset=2, vector_offset=indices(*values))
        nisa.dma_copy(sbuf(len(values), 2), view)

    return kernel


def far_pattern(value: int) -> Body:
    """A pattern of two rows whose scalar offset moves it."""

    def kernel() -> None:
        data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(sbuf(2, 2), data.ap([[2, 2], [1, 2]], scalar_offset=indices(value)))

    return kernel


# Of an operand: the index, its partition, how many indices there are, and for how many rows.
OUTSIDE = (
    "operand {!r}: index {} in partition {} of tensor [{}, 1] int32 in sbuf is out of range [0, {}) of tensor [4, 2] "
    "float32 in private_hbm"
)


@rules(
    legal_kernel("nisa.dma_copy", gathering, 0, 3, 1),
    broken("gather", 0, 4, 1, error=OUT_OF_RANGE).says(OUTSIDE.format("src", 4, 1, 3, 4)),
    broken("negative index", 0, 1, -1, error=OUT_OF_RANGE).says(OUTSIDE.format("src", -1, 2, 3, 4)).fixed(0, 1, 0),
    legal_kernel("nisa.dma_copy", scattering, 3, 2),
    broken("scatter", 3, 9, error=OUT_OF_RANGE).says(OUTSIDE.format("dst", 9, 1, 2, 4)),
    broken("oob_mode=error", 3, 9, error=OUT_OF_RANGE, oob_mode=nisa.oob_mode.error)
    .says(OUTSIDE.format("dst", 9, 1, 2, 4))
    .fixed(oob_mode=SKIP),
    legal_kernel("nisa.dma_copy", gathering_with_offset, 0, 2),
    broken("offset of the pattern", 0, 3, error=OUT_OF_RANGE).says(OUTSIDE.format("src", 3, 1, 2, 3)),
    legal_kernel("nisa.dma_copy", selecting, value=3),
    broken("scalar offset", error=OUT_OF_RANGE, value=4).says(OUTSIDE.format("src", 4, 0, 1, 4)),
    legal_kernel("nisa.dma_copy", far_pattern, value=2),
    broken("scalar offset that moves the end of the pattern out", error=OUT_OF_RANGE, value=3).says(
        "operand 'src': index 3 moves tensor [2, 2] float32 in private_hbm to elements 6 to 9 of a storage of 8"
    ),
)
def test_out_of_range(rule: Rule) -> None:
    check_rule(rule)


def test_a_pattern_may_end_with_the_last_element_and_not_after_it() -> None:
    def body(value: int) -> Body:
        def kernel() -> None:
            data = nl.zeros((8, 1), nl.float32, nl.private_hbm)
            nisa.dma_copy(sbuf(1, 2), data.ap([[1, 2]], scalar_offset=indices(value)))

        return kernel

    execute(body(6))
    assert refusal(body(7), error=OUT_OF_RANGE) == (
        "nisa.dma_copy: operand 'src': index 7 moves tensor [2] float32 in private_hbm to elements 7 to 8 of a storage "
        "of 8"
    )


def test_an_out_of_range_error_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        execute(gathering(4))


def test_nothing_is_written_when_an_index_is_out_of_range() -> None:
    def body(output: Any, data: Any) -> Any:
        nisa.dma_copy(output.vector_select(0, indices(0, 3)), data)

    output = np.full((3, 2), -1, np.float32)
    with pytest.raises(OUT_OF_RANGE):
        launch(body, output, rows(2, 2))
    assert (output == -1).all()


def test_an_explained_index_says_which_row_is_wrong() -> None:
    def kernel() -> None:
        index, target = indices(1, 9), indices(7, 8)
        explain_index(index, "target", target, first_row=100, row_step=2, limit=5)
        nisa.dma_copy(sbuf(2, 2), nl.zeros((4, 2), nl.float32, nl.private_hbm).vector_select(0, index))

    assert refusal(kernel, error=OUT_OF_RANGE) == (
        "nisa.dma_copy: operand 'src': row 102 has target 8, outside [0, 5): index 9 in partition 1 of "
        "tensor [2, 1] int32 in sbuf is out of range [0, 4) of tensor [4, 2] float32 in private_hbm"
    )


def test_skip_leaves_untouched_what_a_gather_would_have_written() -> None:
    def body(data: Any) -> Any:
        gathered, result = tile(4, 2, value=-1), hbm(4, 2)
        nisa.dma_copy(gathered, data.vector_select(0, indices(1, 99, -1, 0)), oob_mode=SKIP)
        nisa.dma_copy(result, gathered)
        return result

    assert launch(body, rows(3, 2)).tolist() == [[10, 11], [-1, -1], [-1, -1], [0, 1]]


def test_a_mode_may_be_given_by_its_value() -> None:
    """Published kernels do so: 1 is to skip, and software descriptors; 2 is hardware, which casts nothing."""

    def gather(data: Any) -> Any:
        gathered, result = tile(2, 2, value=-1), hbm(2, 2)
        nisa.dma_copy(gathered, data.vector_select(0, indices(1, 99)), oob_mode=1, dge_mode=1)
        nisa.dma_copy(result, gathered, dge_mode=3)
        return result

    assert launch(gather, rows(3, 2)).tolist() == [[10, 11], [-1, -1]]
    cast = refusal(lambda: nisa.dma_copy(hbm(1, 2, dtype=nl.bfloat16), tile(1, 2), dge_mode=2))
    assert cast.startswith("nisa.dma_copy: dge_mode=hwdge moves bytes and casts nothing")


@pytest.mark.parametrize(
    "source",
    [lambda data, last: data.vector_select(0, indices(1, last)), lambda data, last: data.select(0, indices(last))],
    ids=["a row", "all"],
)
def test_what_skip_leaves_in_a_placed_tile_was_needed_until_then(source: Any) -> None:
    """Another tile in the same place would have destroyed it; a copy that leaves nothing needs nothing."""

    def body(data: Any, last: int) -> None:
        src = source(data, last)
        first, second = (nl.ndarray((src.size // 2, 2), nl.float32, address=(0, 8192)) for _ in range(2))
        nisa.memset(first, 1)
        nisa.memset(second, 2)
        nisa.dma_copy(first, src, oob_mode=SKIP)

    launch(lambda data: body(data, 2), rows(3, 2))
    with pytest.raises(nkilib.simulator.CapacityError):
        launch(lambda data: body(data, 99), rows(3, 2))


def test_skip_leaves_untouched_what_a_scatter_would_have_missed() -> None:
    def body(output: Any, data: Any) -> Any:
        nisa.dma_copy(output.vector_select(0, indices(3, 1, -5)), data, oob_mode=SKIP)

    output = np.full((3, 2), -1, np.float32)
    launch(body, output, rows(3, 2))
    assert output.tolist() == [[-1, -1], [10, 11], [-1, -1]]


def test_skip_drops_a_whole_copy_with_a_scalar_offset() -> None:
    def body(output: Any, data: Any) -> Any:
        for value in (1, 3):
            nisa.dma_copy(output.select(0, indices(value)), data, oob_mode=SKIP)

    output = np.full((3, 2), -1, np.float32)
    launch(body, output, np.array([[5, 6]], np.float32))
    assert output.tolist() == [[-1, -1], [5, 6], [-1, -1]]


@pytest.mark.parametrize(
    ("index", "offset", "moved"),
    [
        (2, 0, {0: 2, 1: 3, 2: 4}),
        (4, 0, {0: 4}),
        (5, 0, {}),
        (-1, 0, {1: 0, 2: 1}),
        (-3, 0, {}),
        (3, 1, {0: 4}),
        (-1, 1, {0: 0, 1: 1, 2: 2}),
        (2**31 - 1, 0, {}),
    ],
)
@pytest.mark.parametrize("side", ["dst", "src"])
def test_skip_moves_the_rows_that_a_scalar_offset_leaves_inside(
    side: str, index: int, offset: int, moved: dict[int, int]
) -> None:
    """Three rows from row `offset + index` of five on: public kernels let a block hang over the end of its tensor."""

    def body(five: Any, three: Any) -> None:
        at = tile(1, 1, dtype=nl.int32, value=index)
        view = five.ap([[2, 3], [1, 2]], offset=2 * offset, scalar_offset=at, indirect_dim=0)
        ends = (view, three) if side == "dst" else (three, view)
        nisa.dma_copy(*ends, oob_mode=SKIP)

    five, three = rows(5, 2), -rows(3, 2) - 1
    expected_five, expected_three = five.copy(), three.copy()
    for row_of_three, row_of_five in moved.items():
        if side == "dst":
            expected_five[row_of_five] = three[row_of_three]
        else:
            expected_three[row_of_three] = five[row_of_five]
    launch(body, five, three)
    assert five.tolist() == expected_five.tolist() and three.tolist() == expected_three.tolist()


@pytest.mark.parametrize(("index", "moved"), [(2, {2: 0, 3: 1}), (4, {4: 0, 5: 1}), (5, {5: 0}), (6, {}), (-3, {})])
def test_skip_goes_by_the_end_of_the_tensor_and_not_of_the_dimension(index: int, moved: dict[int, int]) -> None:
    """Public kernels count the slots of a cache [blocks, slots, ...] over all blocks; without skip it is refused."""

    def body(mode: Any) -> Any:
        def kernel(cache: Any, data: Any) -> None:
            at = tile(1, 1, dtype=nl.int32, value=index)
            view = cache.ap([[2, 2], [1, 2]], scalar_offset=at, indirect_dim=1)
            nisa.dma_copy(view, data, oob_mode=mode)

        return kernel

    cache = np.full((3, 2, 2), -1, np.float32)
    launch(body(SKIP), cache, rows(2, 2))
    slots = cache.reshape(6, 2)
    expected = np.full((6, 2), -1, np.float32)
    for slot, row in moved.items():
        expected[slot] = rows(2, 2)[row]
    assert slots.tolist() == expected.tolist()
    with pytest.raises(nkilib.simulator.OutOfRangeError, match=rf"index {index} .* is out of range \[0, 2\)"):
        launch(body(nisa.oob_mode.error), cache, rows(2, 2))


@pytest.mark.parametrize(("offset", "is_moved"), [(0, True), (1, False), (2, False)])
def test_skip_drops_all_that_hangs_over_the_end_where_the_index_does_not_count_rows(
    offset: int, is_moved: bool
) -> None:
    """Four elements from `offset + 2` of six on: rows of the view are no steps of the index, which may pass its end."""

    def body(output: Any, data: Any) -> None:
        at = tile(1, 1, dtype=nl.int32, value=2)
        view = output.ap([[2, 2], [1, 2]], offset=offset, scalar_offset=at, indirect_dim=1)
        nisa.dma_copy(view, data, oob_mode=SKIP)

    output = np.full((3, 2), -1, np.float32)
    launch(body, output, rows(2, 2))
    assert output[0].tolist() == [-1, -1]
    assert output[1:].tolist() == (rows(2, 2) if is_moved else np.full((2, 2), -1)).tolist()


def test_skip_drops_a_row_of_which_one_element_is_outside() -> None:
    """Rows 2, 3 and 4 of five, all of them one element further on; without that, row 4 would be inside."""

    def body(offset: int) -> Any:
        def kernel(output: Any, data: Any) -> None:
            at = tile(1, 1, dtype=nl.int32, value=2)
            view = output.ap([[2, 3], [1, 2]], offset=offset, scalar_offset=at, indirect_dim=0)
            nisa.dma_copy(view, data, oob_mode=SKIP)

        return kernel

    for offset, moved in ((0, 3), (1, 2)):
        output = np.full((5, 2), -1, np.float32)
        launch(body(offset), output, rows(3, 2))
        expected = np.full(10, -1, np.float32)
        expected[4 + offset : 4 + offset + 2 * moved] = rows(moved, 2).reshape(-1)
        assert output.reshape(-1).tolist() == expected.tolist()


def test_skip_needs_equally_many_rows_where_some_are_left_out() -> None:
    def body(value: int) -> Body:
        def kernel() -> None:
            data = nl.zeros((5, 2), nl.float32, nl.private_hbm)
            view = data.ap([[2, 3], [1, 2]], scalar_offset=tile(1, 1, dtype=nl.int32, value=value))
            nisa.dma_copy(sbuf(1, 6), view, oob_mode=SKIP)

        return kernel

    assert refusal(body(3)) == (
        "nisa.dma_copy: where rows are chosen or skipped 'dst' and 'src' must have equally many of them, got 1 of "
        "tensor [1, 6] float32 in sbuf and 3 of tensor [2, 2] float32 in private_hbm"
    )
    execute(body(2))


def test_rows_that_skip_drops_do_not_count_as_written() -> None:
    def body(*values: int) -> Body:
        def kernel() -> None:
            gathered = sbuf(2, 2)
            data = nl.zeros((4, 2), nl.float32, nl.private_hbm)
            nisa.dma_copy(gathered, data.vector_select(0, indices(*values)), oob_mode=SKIP)
            nisa.dma_copy(hbm(2, 2), gathered)

        return kernel

    assert refusal(body(0, 4), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 4 elements of tensor [2, 2] float32 in sbuf were never written"
    )
    execute(body(0, 3))


def test_a_gather_of_rows_that_were_never_written() -> None:
    def body(row: int) -> Body:
        def kernel() -> None:
            data = hbm(4, 2)
            nisa.dma_copy(data[0:2], nl.zeros((2, 2), nl.float32, nl.private_hbm))
            nisa.dma_copy(sbuf(2, 2), data.vector_select(0, indices(0, row)))

        return kernel

    assert refusal(body(2), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 4 elements gathered from tensor [4, 2] float32 in private_hbm were "
        "never written"
    )
    execute(body(1))


def test_a_row_selected_at_run_time_that_was_never_written() -> None:
    def body(row: int) -> Body:
        def kernel() -> None:
            data = hbm(4, 2)
            nisa.dma_copy(data[0:2], nl.zeros((2, 2), nl.float32, nl.private_hbm))
            nisa.dma_copy(sbuf(1, 2), data.select(0, indices(row)))

        return kernel

    assert refusal(body(2), error=UNINITIALIZED) == (
        "nisa.dma_copy: operand 'src': 2 of the 2 elements of tensor [2] float32 in private_hbm were never written"
    )
    execute(body(1))


def test_rows_that_were_never_written_read_as_nan_or_4_unless_that_is_an_error() -> None:
    def body() -> Any:
        results = []
        for dtype in (nl.float32, nl.int32):
            data, result = hbm(4, 2, dtype=dtype), hbm(2, 2, dtype=dtype)
            nisa.dma_copy(data[0:2], nl.ones((2, 2), dtype, nl.private_hbm))
            nisa.dma_copy(result, data.vector_select(0, indices(1, 3)))
            results.append(result)
        return results

    with nkilib.simulator.using(uninitialized="nan"):
        floats, integers = launch(body)
    assert floats[0].tolist() == [1, 1] and np.isnan(floats[1]).all()
    assert integers.tolist() == [[1, 1], [4, 4]]


def test_an_index_that_was_never_written_is_always_an_error() -> None:
    """A sentinel is no address, whatever the option says."""

    def kernel() -> None:
        data = nl.zeros((8, 2), nl.float32, nl.private_hbm)
        nisa.dma_copy(sbuf(2, 2), data.vector_select(0, sbuf(2, 1, dtype=nl.int32)))

    message = "nisa.dma_copy: index tensor [2, 1] int32 in sbuf is read before it was written"
    for option in ("nan", "error"):
        with nkilib.simulator.using(uninitialized=option):
            assert refusal(kernel, error=UNINITIALIZED) == message
