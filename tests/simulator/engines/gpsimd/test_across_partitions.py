# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nonzero_with_count`, `tensor_partition_reduce` and `sequence_bounds`, each against loops written out in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Tile, engine_of, execute, normal, refusal, run, store, tile
from ...made import Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, must, needs, one_type, out_of_reach, same_partitions

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
def test_rules_of_nonzero(rule: Rule) -> None:
    check_rule(rule)


def test_nonzero_runs_on_gpsimd() -> None:
    assert engine_of(lambda: nisa.nonzero_with_count(tile(16, 5, dtype=INT32), tile(16, 4))) == "gpsimd"


# `tensor_partition_reduce`: each free element reduced over the partitions.

DATA = np.array([[1, -2, 3], [4, 6, -8], [-3, 0, 1], [2, 2, 2]], np.float32)


def reduced(op: Any, data: Any, result: Result | None = None, target: str = "trn2") -> Any:
    array = data.array if isinstance(data, Tile) else data
    return run(
        lambda dst, data: nisa.tensor_partition_reduce(dst, op, data),
        [data],
        result or Result((1, *array.shape[1:])),
        target=target,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [4, 6, -2]),
        ("mean", [1, 1.5, -0.5]),
        ("average", [1, 1.5, -0.5]),
        ("max", [4, 6, 3]),
        ("maximum", [4, 6, 3]),
    ],
)
def test_arithmetic(name: str, expected: Any) -> None:
    assert reduced(getattr(nl, name), DATA).tolist() == [expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("bitwise_or", [0b1111, 0b0110]), ("bitwise_and", [0b0001, 0b0010]), ("bitwise_xor", [0b1111, 0b0110])],
)
@pytest.mark.parametrize("dtype", [nl.int8, nl.uint8, nl.int16, nl.uint16, nl.int32, nl.uint32])
def test_bits(name: str, expected: Any, dtype: Any) -> None:
    data = np.array([[0b0101, 0b0110], [0b0011, 0b0010], [0b1001, 0b0010]]).astype(dtype.numpy)
    assert reduced(getattr(nl, name), data, Result((1, 2), dtype)).tolist() == [expected]


def test_bits_that_float32_cannot_hold_are_exact() -> None:
    data = np.array([[2**30 + 1], [2**24 + 2]], np.int32)
    assert reduced(nl.bitwise_or, data, Result((1, 1), nl.int32)).tolist() == [[2**30 + 2**24 + 3]]


def test_bits_may_go_into_the_other_type_of_one_width() -> None:
    data = np.array([[-1], [-2]], np.int16)
    assert reduced(nl.bitwise_and, data, Result((1, 1), nl.uint16)).tolist() == [[2**16 - 2]]


def test_one_partition_stays_what_it_is() -> None:
    for op in (nl.add, nl.mean, nl.max):
        assert reduced(op, DATA[1:2]).tolist() == [[4, 6, -8]]


def test_several_free_dimensions_keep_their_order() -> None:
    """Also where dst has another shape for the same number of elements."""
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert reduced(nl.add, data).tolist() == [(data[0] + data[1]).tolist()]
    flat = run(lambda dst, data: nisa.tensor_partition_reduce(dst, nl.add, data), [data], Result((1, 12)))
    assert flat.tolist() == [(2 * np.arange(12) + 12).tolist()]


def test_strided_views() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.memset(dst, 7)
        nisa.tensor_partition_reduce(dst[32:33, 1::2], nl.add, data[:, 0::2])

    result = run(body, [DATA], Result((64, 4)))
    assert result[31:34].tolist() == [[7] * 4, [7, 4, 7, -2], [7] * 4]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(nl.float32, 514), (nl.bfloat16, 512), (nl.int8, 127), (nl.uint8, 255), (nl.int16, 514), (nl.int32, 514)],
)
def test_sums_are_of_float32_and_cast_to_the_type_of_dst(dtype: Any, expected: int) -> None:
    """257 as float16; the sum of the two is no bfloat16."""
    data = Tile(np.full((2, 1), 257, np.float32), nl.float16)
    assert reduced(nl.add, data, Result((1, 1), dtype)).astype(np.float32).tolist() == [[expected]]


def test_a_sum_of_low_precision_data_does_not_round_on_the_way() -> None:
    """128 times 3 is 384; a bfloat16 sum would lose ones above 256."""
    assert reduced(nl.add, Tile(np.full((128, 1), 3, np.float32), nl.bfloat16)).tolist() == [[384]]


def test_arithmetic_on_integers_is_of_float32() -> None:
    """2^24 + 1 is rounded as it is read."""
    data = np.array([[2**24 + 1], [-(2**24)]], np.int32)
    assert reduced(nl.add, data, Result((1, 1), nl.int32)).tolist() == [[0]]


def test_nan_and_infinity() -> None:
    data = np.array([[np.nan, np.inf, 1], [1, 1, -np.inf]], np.float32)
    assert np.array_equal(reduced(nl.max, data), [[np.nan, np.inf, 1]], equal_nan=True)
    assert np.array_equal(reduced(nl.add, data), [[np.nan, np.inf, -np.inf]], equal_nan=True)


def test_dst_may_lie_in_data() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.tensor_partition_reduce(data[0:1], nl.add, data)
        nisa.tensor_copy(dst, data)

    assert run(body, [DATA], Result((4, 3))).tolist() == [[4, 6, -2], *DATA[1:].tolist()]


@given(st.sampled_from([1, 2, 33, 128]), st.integers(1, 40), st.integers(0, 99))
def test_any_shape(partitions: int, columns: int, seed: int) -> None:
    """The sum of P float32 values errs by at most P roundings of a partial sum below P * 5."""
    data = normal(partitions, columns, seed=seed)
    wide = data.astype(np.float64)
    bound = partitions * partitions * 5 * 2.0**-24
    np.testing.assert_allclose(reduced(nl.add, data)[0], wide.sum(axis=0), rtol=0, atol=bound)
    np.testing.assert_allclose(reduced(nl.mean, data)[0], wide.mean(axis=0), rtol=0, atol=bound / partitions + 1e-6)
    assert (reduced(nl.max, data)[0] == data.max(axis=0)).all()


def reduction(op: Any) -> Body:
    """A kernel that reduces a tile of float32."""
    return lambda: nisa.tensor_partition_reduce(tile(1, 2), op, tile(3, 2))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_it_runs_on_the_gpsimd_engine_of_every_generation(target: str) -> None:
    assert engine_of(reduction(nl.add), target) == "gpsimd"


@rules(
    legal_kernel("nisa.tensor_partition_reduce", reduction, op=nl.max),
    *(
        broken(f"operator {op!r}", op=op).says(
            f"op must be nl.add, nl.mean, nl.max, nl.bitwise_or, nl.bitwise_and or nl.bitwise_xor, got {op!r}"
        )
        for op in (nl.min, nl.multiply, nl.subtract, nl.logical_and, nl.left_shift)
    ),
    legal(nisa.tensor_partition_reduce, dst=Sbuf(1, 2), op=nl.max, data=Sbuf(3, 2)[0:1]),
    broken("rank", data=Sbuf(3, 2).reshape((3, 1, 1, 1, 1, 2)))
    .says("operand 'data': at most 4 free dimensions, got {data}")
    .fixed(data=Sbuf(3, 1, 1, 1, 2)),
    broken("no partitions", data=Sbuf(3, 2)[0:0]).says(must("data", "have partitions to reduce")),
    legal(nisa.tensor_partition_reduce, dst=Sbuf(1, 2), op=nl.add, data=Sbuf(3, 2)),
    broken("bits of floats", op=nl.bitwise_or)
    .says(must("dst", "be an integer tensor with a bit-wise operator"))
    .fixed(dst=Sbuf(1, 2, dtype=nl.int32), data=Sbuf(3, 2, dtype=nl.int32)),
    broken("widths", dst=Sbuf(1, 2, dtype=nl.int32), op=nl.bitwise_or, data=Sbuf(3, 2, dtype=nl.int8))
    .says("bit-wise operators cast nothing: the operands must have one width, got {dst}, {data}")
    .fixed(op=nl.add),
    broken("partitions of dst", dst=Sbuf(3, 2))
    .says(must("dst", "have 1 partition and the 2 elements per partition of 'data'"))
    .fixed(dst=Sbuf(3, 2)[0:1]),
    broken("size of dst", dst=Sbuf(1, 3))
    .says(must("dst", "have 1 partition and the 2 elements per partition of 'data'"))
    .fixed(dst=Sbuf(1, 3)[:, 0:2]),
    broken("data in PSUM", data=Psum(3, 2)).says(out_of_reach("data")),
    broken("dst in PSUM", dst=Psum(1, 2)).says(out_of_reach("dst")),
)
def test_rules_of_partition_reduce(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("name", ["mean", "average"])
def test_the_mean_is_an_operator_of_this_instruction_alone(name: str) -> None:
    """`nl.average` is its name until NKI 0.6."""
    op = getattr(nl, name)
    with pytest.raises(nisa.NkiValidationError, match=f"op=nl.{name} is no binary operator of tensor_tensor"):
        run(lambda dst: nisa.tensor_tensor(dst, tile(2, 2), tile(2, 2), op), [], Result((2, 2)))


# `sequence_bounds`: against a walk in Python from each element to the two ends of its segment.


def bounds(ids: list[int]) -> list[list[int]]:
    """Where the run of equal ids around each element starts and where the next one starts; n and -1 for id 0."""
    starts, ends = [], []
    for position, number in enumerate(ids):
        start = end = position
        while start > 0 and ids[start - 1] == number:
            start -= 1
        while end < len(ids) and ids[end] == number:
            end += 1
        starts.append(start if number else len(ids))
        ends.append(end if number else -1)
    return [starts, ends]


def run_bounds(ids: Any, dtype: Any = INT32, target: str = "trn2") -> Any:
    return run(nisa.sequence_bounds, [ids], Result((1, 2, ids.shape[1]), dtype), target=target)[0].tolist()


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("given_type", [np.float32, np.int32])
@pytest.mark.parametrize("dtype", [nl.float32, INT32])
def test_starts_and_ends_of_segments_between_padding(given_type: Any, dtype: Any, target: str) -> None:
    result = run_bounds(np.array([[0, 7, 7, 2, 2, 2, 0, 3, 3]], given_type), dtype, target)
    assert result == [[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([5], [[0], [1]]),
        ([0], [[1], [-1]]),
        ([0, 0, 0], [[3, 3, 3], [-1, -1, -1]]),
        ([4, 4, 4], [[0, 0, 0], [3, 3, 3]]),
        ([1, 2, 3], [[0, 1, 2], [1, 2, 3]]),
        ([3, 3, 1], [[0, 0, 2], [2, 2, 3]]),
        ([0, 0, 1], [[3, 3, 2], [-1, -1, 3]]),
    ],
)
def test_small_sequences(ids: list[int], expected: Any) -> None:
    assert run_bounds(np.array([ids], np.int32)) == expected


def test_an_id_that_comes_again_is_another_segment() -> None:
    assert run_bounds(np.array([[1, 1, 0, 1, 2, 1]], np.int32)) == [[0, 0, 6, 3, 4, 5], [2, 2, -1, 4, 5, 6]]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_any_sequence(ids: list[int]) -> None:
    assert run_bounds(np.array([ids], np.float32)) == bounds(ids)


def test_a_long_sequence() -> None:
    ids = np.sort(np.random.default_rng(0).integers(0, 300, 4096)).tolist()
    assert run_bounds(np.array([ids], np.int32), nl.float32) == bounds(ids)


def test_int32_ids_are_compared_exactly() -> None:
    """2^24 and 2^24 + 1 are one float32 and two segments."""
    ids = [2**24, 2**24 + 1, 2**31 - 1, 2**31 - 2]
    assert run_bounds(np.array([ids], np.int32)) == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_strided_views_of_another_partition() -> None:
    def body(result: Any, inputs: Any) -> None:
        nisa.memset(result, 99)
        ids = tile(64, 8, value=-1)
        nisa.dma_copy(ids[32:33, 0:8:2], inputs)
        nisa.sequence_bounds(result[32:33, :, 1:8:2], ids[32:33, 0:8:2])

    result = run(body, [np.array([[6, 6, 0, 6]], np.float32)], Result((64, 2, 8), INT32))
    assert result[32, :, 1::2].tolist() == [[0, 0, 4, 3], [2, 2, -1, 4]]
    assert (result[32, :, 0::2] == 99).all() and (np.delete(result, 32, axis=0) == 99).all()


def test_dst_may_overlap_the_ids() -> None:
    def body(result: Any, inputs: Any) -> None:
        ids = inputs[:, 0, 0:4].reshape((1, 4))
        nisa.sequence_bounds(inputs, ids)
        nisa.tensor_copy(result, inputs)

    array = np.array([[[1, 1, 2, 0], [0, 0, 0, 0]]], np.float32)
    assert run(body, [array], Result((1, 2, 4))).tolist() == [bounds([1, 1, 2, 0])]


def refused_ids(*ids: float, dtype: Any = nl.float32) -> Any:
    """A kernel with these ids."""

    def kernel() -> None:
        argument = tile(1, len(ids), dtype=dtype)
        for position, number in enumerate(ids):
            nisa.memset(argument[:, position : position + 1], number)
        nisa.sequence_bounds(tile(1, 2, len(ids), dtype=INT32), argument)

    return kernel


@rules(
    legal_kernel("nisa.sequence_bounds", refused_ids, 1, 2),
    broken("negative id", 0, 3, -1, -2)
    .says("operand 'segment_ids' must hold non-negative integers, got -1.0 at index 2")
    .fixed(0, 3, 1, 2),
    broken("negative int32 id", -4, 3, dtype=INT32)
    .says("operand 'segment_ids' must hold non-negative integers, got -4 at index 0")
    .fixed(4, 3),
    broken("fractional id", 1, 1.5).says("operand 'segment_ids' must hold non-negative integers, got 1.5 at index 1"),
    legal_kernel("nisa.sequence_bounds", refused_ids, -0.0, 2),
    broken("infinite id", 1, 2, float("inf"))
    .says("operand 'segment_ids' must hold non-negative integers, got inf at index 2")
    .fixed(1, 2, 3e38),
    broken("NaN", float("nan"), 2).says("operand 'segment_ids' must hold non-negative integers, got nan at index 0"),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 4)),
    broken("partitions", dst=Sbuf(2, 2, 4), segment_ids=Sbuf(2, 4)).says(must("segment_ids", "have shape (1, n)")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 2, 2).reshape((1, 4))),
    broken("dimensions of segment_ids", segment_ids=Sbuf(1, 2, 2)).says(must("segment_ids", "have shape (1, n)")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 4, 2).permute((0, 2, 1)), segment_ids=Sbuf(1, 4)),
    broken("shape of dst", dst=Sbuf(1, 4, 2)).says(must("dst", "have shape (1, 2, 4)")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4, dtype=INT32), segment_ids=Sbuf(1, 4)),
    broken("length of dst", dst=Sbuf(1, 2, 5)).says(must("dst", "have shape (1, 2, 4)")).fixed(segment_ids=Sbuf(1, 5)),
    broken("type of segment_ids", dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 4, dtype=nl.bfloat16))
    .says(one_type("segment_ids", "float32, int32"))
    .fixed(segment_ids=Sbuf(1, 4, dtype=INT32)),
    broken("type of dst", dst=Sbuf(1, 2, 4, dtype=nl.uint32)).says(one_type("dst", "float32, int32")),
    legal(nisa.sequence_bounds, dst=Sbuf(1, 2, 4), segment_ids=Sbuf(1, 4)),
    broken("PSUM", segment_ids=Psum(1, 4)).says(must("segment_ids", "be in sbuf", COPY_FIRST)),
    broken("dst in PSUM", dst=Psum(1, 2, 4)).says(must("dst", "be in sbuf")),
)
def test_rules_of_sequence_bounds(rule: Rule) -> None:
    check_rule(rule)


def test_sequence_bounds_runs_on_gpsimd() -> None:
    assert engine_of(lambda: nisa.sequence_bounds(tile(1, 2, 4), tile(1, 4))) == "gpsimd"
