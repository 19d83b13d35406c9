# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nonzero_with_count`: the documented loop, written out in Python, against what the instruction leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Result, engine_of, execute, refusal, run, store, tile
from ...made import Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import COPY_FIRST, must, needs, one_type, same_partitions

INT32 = nl.int32
UNINITIALIZED = nkilib.simulator.UninitializedReadError


def listed(row: Any, index_offset: int = 0, padding_val: int = -1) -> list[int]:
    """Indices of the nonzero elements, padding, and how many there are."""
    indices = [position + index_offset for position, value in enumerate(row) if value != 0]
    return [*indices, *[padding_val] * (len(row) - len(indices)), len(indices)]


def run_nonzero(source: Any, target: str = "trn2", **options: Any) -> Any:
    """Return what the instruction leaves in a tile that was full of 99."""

    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, 99)
        nisa.nonzero_with_count(dst, src, **options)

    return run(body, [source], Result((source.shape[0], source[0].size + 1), INT32), target=target)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_the_documented_example(target: str, dtype: Any) -> None:
    row = np.array([[0, 1, 1, 0, 0, 1, 0, 0]], dtype)
    result = run_nonzero(row, target, index_offset=16, padding_val=-1)
    assert result.tolist() == [[17, 18, 21, -1, -1, -1, -1, -1, 3]]


def test_indices_start_at_zero_and_are_padded_with_minus_one_by_default() -> None:
    assert run_nonzero(np.array([[5, 0, -5]], np.int32)).tolist() == [[0, 2, -1, 2]]


@pytest.mark.parametrize("partitions", [1, 16, 17, 48, 128])
def test_every_16th_partition_is_read_and_written_and_no_other(partitions: int) -> None:
    source = np.random.default_rng(partitions).integers(0, 2, (partitions, 20)).astype(np.int32)
    result = run_nonzero(source, index_offset=1000, padding_val=7)
    for partition in range(partitions):
        expected = listed(source[partition], 1000, 7) if partition % 16 == 0 else [99] * 21
        assert result[partition].tolist() == expected


@given(st.lists(st.sampled_from([0, 0, 1, -7, 2**31 - 1]), min_size=1, max_size=30))
def test_any_row(row: list[int]) -> None:
    assert run_nonzero(np.array([row], np.int32)).tolist() == [listed(row)]


def test_rows_of_zeros_and_rows_without() -> None:
    source = np.zeros((32, 3), np.float32)
    source[16] = 2
    result = run_nonzero(source)
    assert result[[0, 16]].tolist() == [[-1, -1, -1, 0], [0, 1, 2, 3]]


def test_what_counts_as_zero() -> None:
    """Both zeros do; NaN, infinities and the smallest number do not."""
    row = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -0.5]], np.float32)
    assert run_nonzero(row).tolist() == [[2, 3, 4, 5, 6, -1, -1, 5]]


def test_all_free_dimensions_are_one_row() -> None:
    source = np.random.default_rng(1).integers(0, 2, (32, 3, 4)).astype(np.float32)

    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, 99)
        nisa.nonzero_with_count(dst, src, 100)

    result = run(body, [source], Result((32, 1, 13), INT32))
    for partition in (0, 16):
        assert result[partition].reshape(-1).tolist() == listed(source[partition].reshape(-1), 100)
    assert (result[1:16] == 99).all() and (result[17:] == 99).all()


def test_strided_views_of_some_partitions() -> None:
    """Partitions count from the first one of the view."""

    def body() -> Any:
        source, result = tile(128, 8, dtype=INT32), tile(128, 12, dtype=INT32, value=99)
        nisa.memset(source[64:96, 3:6:2], 1)
        nisa.nonzero_with_count(result[64:96, 0:10:2], source[64:96, 1:8:2])
        return store(result)

    result = execute(body)
    assert result[64].tolist() == result[80].tolist() == [1, 99, 2, 99, -1, 99, -1, 99, 2, 99, 99, 99]
    assert (np.delete(result, [64, 80], axis=0) == 99).all()


def test_indices_are_exact_beyond_float32_and_wrap_at_32_bits() -> None:
    row = np.ones((1, 3), np.int32)
    assert run_nonzero(row, index_offset=2**24).tolist() == [[2**24, 2**24 + 1, 2**24 + 2, 3]]
    assert run_nonzero(row, index_offset=2**31 - 2).tolist() == [[2**31 - 2, 2**31 - 1, -(2**31), 3]]
    assert run_nonzero(row, index_offset=-5).tolist() == [[-5, -4, -3, 3]]


def test_dst_may_overlap_src() -> None:
    def body(result: Any, source: Any) -> None:
        nisa.nonzero_with_count(source[:, 0:4], source[:, 1:4])
        nisa.tensor_copy(result, source)

    assert run(body, [np.array([[9, 0, 3, 4]], np.int32)], Result((1, 4), INT32)).tolist() == [[1, 2, -1, 2]]


def _with_rows(*written: int) -> Any:
    def kernel() -> None:
        source = nl.ndarray((64, 4), nl.float32)
        for row in written:
            nisa.memset(source[row : row + 1], 1)
        nisa.nonzero_with_count(nl.ndarray((32, 5), INT32), source[0:32])

    return kernel


def test_only_every_16th_partition_must_have_been_written() -> None:
    """A kernel of which the second GpSimd core's results do not matter still makes it read partition 16."""
    message = refusal(_with_rows(0), error=UNINITIALIZED)
    assert message.startswith("nisa.nonzero_with_count: operand 'src': 4 of the 8 elements of tensor ")

    def kernel() -> None:
        source, moved = nl.ndarray((32, 4), nl.float32), nl.ndarray((16, 5), INT32)
        nisa.memset(source[0:1], 1)
        nisa.nonzero_with_count(moved, source[0:16])

    execute(kernel)


def test_by_default_a_partition_that_was_never_written_reads_as_nan() -> None:
    """Kernels with one row call the instruction on 128 partitions, and ignore the other cores' results."""

    def body(dst: Any, row: Any) -> None:
        source = nl.ndarray((128, 4), nl.float32)
        nisa.tensor_copy(source[0:1], row)
        nisa.memset(dst, 99)
        nisa.nonzero_with_count(dst, source)

    with nkilib.simulator.using(uninitialized="nan"):
        result = run(body, [np.array([[0, 5, 0, 5]], np.float32)], Result((128, 5), INT32))
    assert result[0].tolist() == [1, 3, -1, -1, 2]
    assert result[[16, 112]].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert (result[1] == 99).all()


def test_the_other_partitions_of_dst_stay_unwritten() -> None:
    def reading(partitions: slice) -> Any:
        def kernel() -> None:
            dst = nl.ndarray((16, 5), INT32)
            nisa.nonzero_with_count(dst, tile(16, 4))
            nisa.tensor_copy(tile(partitions.stop, 5, dtype=INT32), dst[partitions])

        return kernel

    execute(reading(slice(0, 1)))
    message = refusal(reading(slice(0, 2)), error=UNINITIALIZED)
    assert message.startswith("nisa.tensor_copy: operand 'src': 5 of the 10 elements of tensor ")


ONE_MORE = must("dst", "have 5 elements per partition, one more than 'src'")


@rules(
    legal(nisa.nonzero_with_count, dst=Sbuf(16, 5, dtype=INT32), src=Sbuf(16, 4)),
    broken("generation", on="trn1").says(needs("gen3", "trn1 (gen2)")),
    broken("type of src", src=Sbuf(16, 4, dtype=nl.bfloat16))
    .says(one_type("src", "float32, int32"))
    .fixed(src=Sbuf(16, 4, dtype=INT32)),
    broken("type of dst", dst=Sbuf(16, 5, dtype=nl.uint32)).says(one_type("dst", "int32")),
    broken("no room for the number", dst=Sbuf(16, 4, dtype=INT32)).says(ONE_MORE),
    broken("too much room", dst=Sbuf(16, 6, dtype=INT32)).says(ONE_MORE),
    broken("partitions", dst=Sbuf(32, 5, dtype=INT32)).says(same_partitions("src", "dst")),
    broken("index_offset", index_offset=2**31)
    .says("index_offset must be an int32, got 2147483648")
    .fixed(index_offset=2**31 - 1),
    broken("padding_val", padding_val=-0.5)
    .says("padding_val must be an int32, got -0.5")
    .fixed(padding_val=np.int64(-(2**31))),
    broken("PSUM", src=Psum(16, 4)).says(must("src", "be in sbuf", COPY_FIRST)),
    broken("dst in PSUM", dst=Psum(16, 5, dtype=INT32)).says(must("dst", "be in sbuf")),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def test_it_runs_on_gpsimd() -> None:
    assert engine_of(lambda: nisa.nonzero_with_count(tile(16, 5, dtype=INT32), tile(16, 4))) == "gpsimd"
