# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`topk`: against a sort in Python of the sequence that is read, element by element, from the partitions' snake."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Result, Tile, engine_of, execute, normal, refusal, run, store, tile
from ...made import Psum, Sbuf
from ...rules import LEFT_OUT, Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, must, one_type, same_partitions

BFLOAT16, UINT32 = nl.bfloat16, nl.uint32
UNINITIALIZED = nkilib.simulator.UninitializedReadError
INF = math.inf


def snake(sequence: Any, columns: int, rest: float = 0) -> np.ndarray[Any, Any]:
    """16 partitions over which a sequence is wound; `rest` behind its end."""
    wound = np.full((16, columns), rest, ml_dtypes.bfloat16)
    for position, value in enumerate(sequence):
        wound[position % 16, position // 16] = value
    return wound


def unwound(partitions: np.ndarray[Any, Any], elements: int) -> list[Any]:
    """The first elements of the sequence that is wound over 16 partitions."""
    return [partitions[position % 16, position // 16].item() for position in range(elements)]


def largest(sequence: Any, k: int, descending: bool = False) -> tuple[list[float], list[int]]:
    """Values and positions of the k largest, ascending; of equal ones the lower position is taken and stands higher."""
    positions = sorted(range(len(sequence)), key=lambda position: (sequence[position], -position))[-k:]
    if descending:
        positions.reverse()
    return [sequence[position] for position in positions], positions


def run_topk(source: Any, n: int, k: int, target: str = "trn2", **options: Any) -> Any:
    """Return the columns of `val_dst` and `idx_dst` that hold results of `topk`.

    Elements of the last of these columns that hold no result read as NaN, or 4.
    """
    shape = (source.array.shape[0] if isinstance(source, Tile) else source.shape[0], -(-k // 16))

    def body(values: Any, indices: Any, source: Any) -> None:
        val_dst, idx_dst = tile(source.shape[0], k, dtype=BFLOAT16), tile(source.shape[0], k, dtype=UINT32)
        nisa.topk(val_dst, idx_dst, source, n, **options)
        nisa.tensor_copy(values, val_dst[:, 0 : shape[1]])
        nisa.tensor_copy(indices, idx_dst[:, 0 : shape[1]])

    with nkilib.simulator.using(uninitialized="nan"):
        return run(body, [source], Result(shape, BFLOAT16), Result(shape, UINT32), target=target)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_the_largest_in_ascending_order_with_their_positions(target: str) -> None:
    """42 elements in 3 columns, of which the last is not full."""
    sequence = [float((17 * position) % 42) for position in range(42)]
    values, indices = run_topk(snake(sequence, 3, rest=INF), 42, 8, target)
    assert unwound(values, 8) == [34, 35, 36, 37, 38, 39, 40, 41]
    assert [(17 * position) % 42 for position in unwound(indices, 8)] == [34, 35, 36, 37, 38, 39, 40, 41]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_sorted_the_largest_comes_first(target: str) -> None:
    """Result j is in partition j % 16 and column j // 16, as ever: 20 of them in two columns."""
    sequence = [float((17 * position) % 42) for position in range(42)]
    values, indices = run_topk(snake(sequence, 3, rest=INF), 42, 20, target, sorted=True)
    assert unwound(values, 20) == list(range(41, 21, -1))
    assert values[:, 0].tolist() == list(range(41, 25, -1)) and values[:4, 1].tolist() == [25, 24, 23, 22]
    assert [(17 * position) % 42 for position in unwound(indices, 20)] == list(range(41, 21, -1))


@given(st.lists(st.integers(-8, 8), min_size=8, max_size=60), st.booleans(), st.data())
def test_any_sequence(sequence: list[int], is_sorted: bool, data: Any) -> None:
    """Sequences have ties, any K up to the number of elements, and columns behind them that are ignored."""
    k = data.draw(st.integers(1, len(sequence)))
    columns = -(-len(sequence) // 16) + data.draw(st.integers(0, 2))
    values, indices = run_topk(snake(sequence, columns, rest=100), len(sequence), k, sorted=is_sorted)
    assert (unwound(values, k), unwound(indices, k)) == largest(sequence, k, descending=is_sorted)


def test_every_16_partitions_are_a_snake_of_their_own() -> None:
    """Up to 8 top-k run at once."""
    sequences = [normal(100, seed=seed).astype(ml_dtypes.bfloat16).tolist() for seed in range(8)]
    values, indices = run_topk(np.concatenate([snake(sequence, 7) for sequence in sequences]), 100, 20)
    for core, sequence in enumerate(sequences):
        rows = slice(16 * core, 16 * core + 16)
        assert (unwound(values[rows], 20), unwound(indices[rows], 20)) == largest(sequence, 20)


def test_of_equal_elements_the_lowest_positions_are_taken_and_stand_higher() -> None:
    values, indices = run_topk(snake([5, 7, 5, 5, 9, 5, 7, 5], 1), 8, 5)
    assert unwound(values, 5) == [5, 5, 7, 7, 9]
    assert unwound(indices, 5) == [2, 0, 6, 1, 4]


def test_a_row_that_was_loaded_in_contiguous_runs() -> None:
    """Kernels call it so: partition p holds elements [63 p, 63 p + 63) of 1000, and padding that never wins.

    Position i of the snake then holds element i % 16 * 63 + i // 16.
    """
    row = np.full(16 * 63, -3e38, ml_dtypes.bfloat16)
    row[:1000] = normal(1000, seed=7)
    values, indices = run_topk(row.reshape(16, 63), 16 * 63, 24)
    elements = [position % 16 * 63 + position // 16 for position in unwound(indices, 24)]
    assert unwound(values, 24) == sorted(row.tolist())[-24:]
    assert row[elements].tolist() == unwound(values, 24)
    assert len(set(elements)) == 24 and max(elements) < 1000


def test_special_values() -> None:
    """Infinities in their places, the two zeros equal, NaN above everything."""
    values, indices = run_topk(snake([0, -INF, np.nan, INF, -0.0, 1, -1, -INF, np.nan], 1), 9, 9)
    assert unwound(indices, 9) == [7, 1, 6, 4, 0, 5, 3, 8, 2]
    assert np.isnan(unwound(values, 9)[-2:]).all()
    assert unwound(values, 7) == [-INF, -INF, -1, 0, 0, 1, INF]


def test_it_writes_whole_columns_and_nothing_else() -> None:
    """K = 20 results are column 0 and the first four partitions of column 1, whose others are lost: NaN, or 4, here."""

    def body(values: Any, indices: Any, source: Any) -> None:
        nisa.memset(values, -3)
        nisa.memset(indices, 7)
        nisa.topk(values, indices, source, 32)

    source = np.concatenate([snake(range(32), 2), snake(range(100, 132), 2)])
    with nkilib.simulator.using(uninitialized="nan"):
        values, indices = run(body, [source], Result((32, 20), BFLOAT16), Result((32, 20), UINT32))
    for rows, first in ((slice(0, 16), 0), (slice(16, 32), 100)):
        assert unwound(values[rows], 20) == list(range(first + 12, first + 32))
        assert unwound(indices[rows], 20) == list(range(12, 32))
        assert np.isnan(values[rows][4:, 1]).all() and (values[rows][:, 2:] == -3).all()
        assert (indices[rows][4:, 1] == 4).all() and (indices[rows][:, 2:] == 7).all()


def _reading(results: str, partitions: int, columns: slice, is_filled_before: bool = False) -> Any:
    """A kernel that reads a part of K = 20 results, of their values or their indices."""

    def kernel() -> None:
        values, indices = nl.ndarray((32, 20), BFLOAT16), nl.ndarray((32, 20), UINT32)
        if is_filled_before:
            nisa.memset(values, 0)
            nisa.memset(indices, 0)
        nisa.topk(values, indices, tile(32, 2, dtype=BFLOAT16), 32)
        shape = (partitions, columns.stop - columns.start)
        read = {"values": values, "indices": indices}[results][0:partitions, columns]
        nisa.tensor_copy(nl.ndarray(shape, read.dtype), read)

    return kernel


@pytest.mark.parametrize("results", ["values", "indices"])
def test_what_follows_the_results_in_their_last_column_is_lost(results: str) -> None:
    """The columns behind it keep what they held."""
    execute(_reading(results, 4, slice(0, 20), is_filled_before=True))
    execute(_reading(results, 32, slice(2, 20), is_filled_before=True))
    message = refusal(_reading(results, 32, slice(0, 3), is_filled_before=True), error=UNINITIALIZED)
    assert message.startswith("nisa.tensor_copy: operand 'src': 24 of the 96 elements of ")


@pytest.mark.parametrize("results", ["values", "indices"])
def test_elements_that_are_no_result_stay_unwritten(results: str) -> None:
    execute(_reading(results, 32, slice(0, 1)))
    execute(_reading(results, 4, slice(0, 2)))
    message = refusal(_reading(results, 32, slice(1, 2)), error=UNINITIALIZED)
    assert message.startswith("nisa.tensor_copy: operand 'src': 24 of the 32 elements of ")
    message = refusal(_reading(results, 4, slice(1, 3)), error=UNINITIALIZED)
    assert message.startswith("nisa.tensor_copy: operand 'src': 4 of the 8 elements of ")


def _partly_written(elements: int) -> Any:
    def kernel() -> None:
        source = nl.ndarray((16, 3), BFLOAT16)
        nisa.memset(source[:, 0:2], 1)
        nisa.memset(source[0:4, 2:3], 2)
        nisa.topk(tile(16, 8, dtype=BFLOAT16), tile(16, 8, dtype=UINT32), source, elements)

    return kernel


def test_it_reads_the_sequence_and_nothing_else() -> None:
    execute(_partly_written(32))
    execute(_partly_written(36))
    message = refusal(_partly_written(38), error=UNINITIALIZED)
    assert message.startswith("nisa.topk: operand 'src': 2 of the 6 elements of tensor ")


def test_strided_views_of_some_partitions() -> None:
    def body() -> Any:
        source, values, indices = tile(64, 8, dtype=BFLOAT16), tile(64, 4, dtype=BFLOAT16), tile(64, 4, dtype=UINT32)
        nisa.iota(source[32:64, 1:7:2], [[1, 3]], 0, 3)
        nisa.topk(values[32:64, 1:4:2], indices[32:64, 0:4:2], source[32:64, 1:7:2], 48)
        return store(values), store(indices)

    with nkilib.simulator.using(uninitialized="nan"):
        values, indices = execute(body)
    # Partition p holds 3p, 3p + 1, 3p + 2: of 48 elements the last partition's last two are the largest.
    expected_values, expected_indices = np.zeros((64, 4)), np.zeros((64, 4))
    expected_values[32:64, 1], expected_indices[32:64, 0] = np.nan, 4  # the rest of their columns
    expected_values[[32, 33, 48, 49], 1] = [46, 47, 94, 95]
    expected_indices[[32, 33, 48, 49], 0] = [31, 47, 31, 47]
    assert np.array_equal(values.astype(np.float64), expected_values, equal_nan=True)
    assert np.array_equal(indices, expected_indices)


def test_val_dst_may_be_src() -> None:
    sequence = [(5 * position) % 32 for position in range(32)]

    def body(values: Any, indices: Any, source: Any) -> None:
        nisa.memset(indices, 99)
        nisa.topk(source, indices, source, 32)
        nisa.tensor_copy(values, source)

    with nkilib.simulator.using(uninitialized="nan"):
        values, indices = run(body, [snake(sequence, 2)], Result((16, 2), BFLOAT16), Result((16, 2), UINT32))
    assert unwound(values, 2) == [30, 31]
    assert unwound(indices, 2) == [6, 19] and (indices[:, 1] == 99).all()
    assert values[:, 1].tolist() == snake(sequence, 2)[:, 1].tolist()


def test_the_most_elements() -> None:
    """The last of 65535 elements, in a column that is not full, and the first are the largest."""
    sequence = normal(65535, seed=5)
    sequence[0], sequence[65534], sequence[70] = 100, 200, 50
    source = np.zeros(65536, ml_dtypes.bfloat16)
    source[:-1], source[-1] = sequence, 1000
    values, indices = run_topk(source.reshape(4096, 16).T.copy(), 65535, 3)
    assert unwound(values, 3) == [50, 100, 200]
    assert unwound(indices, 3) == [70, 0, 65534]


def test_the_largest_k() -> None:
    """All of 32767 elements, which leaves the whole sequence sorted."""
    sequence = normal(32767, seed=6).astype(ml_dtypes.bfloat16)
    source = np.zeros(32768, ml_dtypes.bfloat16)
    source[:-1] = sequence

    def body(values: Any, indices: Any, source: Any) -> None:
        val_dst, idx_dst = nl.ndarray((16, 32767), BFLOAT16), nl.ndarray((16, 32767), UINT32)
        nisa.topk(val_dst, idx_dst, source, 32767)
        nisa.tensor_copy(values, val_dst[0:15, 0:2048])
        nisa.tensor_copy(indices, idx_dst[0:15, 0:2048])

    values, indices = run(
        body, [source.reshape(2048, 16).T.copy()], Result((15, 2048), BFLOAT16), Result((15, 2048), UINT32)
    )
    # Without the last partition: every 16th result is missing.
    is_kept = np.arange(32767) % 16 < 15
    assert (values.T.reshape(-1) == np.sort(sequence)[is_kept]).all()
    assert (sequence[indices.T.reshape(-1)] == np.sort(sequence)[is_kept]).all()
    assert len(set(indices.reshape(-1).tolist())) == 15 * 2048


def sizes(n: Any, k: int, columns: int = 4, partitions: int = 16, **options: Any) -> Any:
    """A kernel that calls `topk` with tiles of these sizes."""
    return lambda: nisa.topk(
        tile(partitions, k, dtype=BFLOAT16),
        tile(partitions, k, dtype=UINT32),
        tile(partitions, columns, dtype=BFLOAT16),
        n,
        **options,
    )


# The operands of a call that is legal.
LEGAL = {
    "val_dst": Sbuf(16, 8, dtype=BFLOAT16),
    "idx_dst": Sbuf(16, 8, dtype=UINT32),
    "src": Sbuf(16, 2, dtype=BFLOAT16),
    "n": 16,
}
NOTHING, NO_INDEX = Sbuf(16, 1, dtype=BFLOAT16)[:, 0:0], Sbuf(16, 1, dtype=UINT32)[:, 0:0]
SIZES = (
    "operand 'val_dst' must have K columns, 1 <= K < 32768 and K <= n, got tensor [16, {k}] bfloat16 in sbuf with n={n}"
)


@rules(
    legal_kernel("nisa.topk", sizes, n=8, k=1),
    broken("n", n=7).says("n must be an integer of 8 to 65535, got 7"),
    broken("largest n", n=65536, columns=4096).says("n must be an integer of 8 to 65535, got 65536").fixed(n=65535),
    broken("type of n", n=16.0).says("n must be an integer of 8 to 65535, got 16.0").fixed(n=np.int64(16)),
    broken("columns of src", n=65, k=8)
    .says("operand 'src' needs 5 columns for n=65 elements, got tensor [16, 4] bfloat16 in sbuf")
    .fixed(n=64),
    broken("K and n", k=9).says(SIZES).fixed(n=9),
    broken("largest K", n=40000, k=32768, columns=2500).says(SIZES).fixed(k=32767),
    broken("largest K sorted", n=9000, k=8193, columns=563, sorted=True)
    .says("operand 'val_dst' must have at most 8192 columns with sorted=True, got tensor [16, 8193] bfloat16 in sbuf")
    .fixed(k=8192),
    broken("number of partitions", partitions=24)
    .says("operand 'val_dst' must have two dimensions, the first a multiple of 16, got tensor [24, 1] bfloat16 in sbuf")
    .fixed(partitions=48),
    legal(nisa.topk, **LEGAL),
    broken("smallest K", val_dst=NOTHING, idx_dst=NO_INDEX, src=Sbuf(16, 4, dtype=BFLOAT16), n=8)
    .says("operand 'val_dst' must have K columns, 1 <= K < 32768 and K <= n, got {val_dst} with n=8")
    .instead(sizes(8, 1)),
    broken("the name, fifth until NKI 0.6", sorted="the name")
    .says("sorted must be True or False, got 'the name'")
    .fixed(name="the name", sorted=LEFT_OUT),
    broken("dimensions", src=Sbuf(16, 2, 2, dtype=BFLOAT16))
    .says(must("src", "have two dimensions, the first a multiple of 16"))
    .fixed(src=Sbuf(16, 2, 2, dtype=BFLOAT16)[:, 1]),
    broken("partitions of val_dst", idx_dst=Sbuf(32, 8, dtype=UINT32), src=Sbuf(32, 2, dtype=BFLOAT16))
    .says(same_partitions("src", "val_dst"))
    .fixed(val_dst=Sbuf(32, 8, dtype=BFLOAT16)),
    broken("columns of idx_dst", idx_dst=Sbuf(16, 9, dtype=UINT32))
    .says("operand 'idx_dst' must have the shape of 'val_dst', got {idx_dst} and {val_dst}")
    .fixed(val_dst=Sbuf(16, 9, dtype=BFLOAT16)),
    broken("type of src", src=Sbuf(16, 2)).says(one_type("src", "bfloat16")),
    broken("type of val_dst", val_dst=Sbuf(16, 8)).says(one_type("val_dst", "bfloat16")),
    broken("type of idx_dst", idx_dst=Sbuf(16, 8, dtype=nl.int32)).says(one_type("idx_dst", "uint32")),
    broken("val_dst in PSUM", val_dst=Psum(16, 8, dtype=BFLOAT16)).says(must("val_dst", "be in sbuf")),
    broken("idx_dst in PSUM", idx_dst=Psum(16, 8, dtype=UINT32)).says(must("idx_dst", "be in sbuf")),
    broken("PSUM", src=Psum(16, 2, dtype=BFLOAT16)).says(must("src", "be in sbuf", COPY_FIRST)),
)
def test_topk_rules(rule: Rule) -> None:
    check_rule(rule)


def test_with_precise_fp_off_values_are_not_rounded_to_bfloat16() -> None:
    """Then a bfloat16 tile is held in float32, and 1 + 14 / 2^20 is less than 1 + 15 / 2^20."""
    sequence = 1 + np.arange(16, dtype=np.float32)[:, None] / 2**20
    with nkilib.simulator.using(precise_fp=False):
        values, indices = run_topk(Tile(sequence, BFLOAT16), 16, 2)
    assert unwound(indices, 2) == [14, 15]
    assert unwound(values, 2) == [1 + 14 / 2**20, 1 + 15 / 2**20]


def test_it_runs_on_gpsimd() -> None:
    assert engine_of(sizes(16, 8)) == "gpsimd"
