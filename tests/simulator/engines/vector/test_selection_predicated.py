# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tensor_copy_predicated`: what it copies, what it leaves alone, and what it remembers to have written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Result, Tile, engine_of, execute, normal, refusal, run, store, tile
from ...made import Hbm, Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import fewer_dimensions, must, not_both_in_psum, one_type, same_elements, same_partitions

SOURCE = np.array([[1, -2, 3, 0.5], [4, 5, -6, 2]], np.float32)
PREDICATE = np.array([[1, 0, 0, 2], [0, 255, 1, 0]], np.uint8)


def copied(source: Any, predicate: Any, before: float = 7, **options: Any) -> Any:
    """Return what `dst` holds after it was filled with `before`; `source` is an array, a `Tile` or a number."""
    tiles = [predicate] if isinstance(source, int | float) else [predicate, source]

    def body(dst: Any, predicate: Any, src: Any = source) -> None:
        nisa.memset(dst, before)
        nisa.tensor_copy_predicated(dst, src, predicate, **options)

    dtype = nl.float32 if not isinstance(source, Tile) else source.dtype
    return run(body, tiles, Result((2, 4), dtype))


def test_it_copies_where_the_predicate_is_not_zero() -> None:
    assert copied(SOURCE, PREDICATE).tolist() == [[1, 7, 7, 0.5], [7, 5, -6, 7]]


def test_reverse_pred_copies_a_number_where_the_predicate_is_zero() -> None:
    assert copied(-1.5, PREDICATE, reverse_pred=True).tolist() == [[7, -1.5, -1.5, 7], [-1.5, 7, 7, -1.5]]


@pytest.mark.parametrize("number", [2.5, -3.0, float("-inf"), np.float32(1.5)])
def test_a_number_is_copied_to_every_chosen_element(number: Any) -> None:
    def body(dst: Any, predicate: Any) -> None:
        nisa.memset(dst, 7)
        nisa.tensor_copy_predicated(dst, number, predicate)

    result = run(body, [PREDICATE], Result((2, 4)))
    assert result.tolist() == [[number, 7, 7, number], [7, number, number, 7]]


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        (nl.bfloat16, 257.0, 256),
        (nl.float8_e4m3, np.float64(-3.1), -3),
        (nl.int8, 300, 127),
        (nl.uint8, -1, 0),
        (nl.uint16, np.int8(5), 5),
        (nl.uint32, 2**31, 2**31),
    ],
)
def test_a_number_is_cast_to_the_type_of_dst(dtype: Any, number: Any, expected: float) -> None:
    def body(dst: Any, predicate: Any) -> None:
        nisa.memset(dst, 1)
        nisa.tensor_copy_predicated(dst, number, predicate)

    result = run(body, [np.array([[0, 1]], np.uint8)], Result((1, 2), dtype))
    assert result.astype(np.float32).tolist() == [[1, expected]]


def test_an_integer_that_float32_cannot_hold_is_exact() -> None:
    def body(dst: Any, predicate: Any) -> None:
        nisa.memset(dst, 1)
        nisa.tensor_copy_predicated(dst, 2**24 + 1, predicate)

    assert run(body, [np.array([[0, 1]], np.uint8)], Result((1, 2), nl.int32)).tolist() == [[1, 2**24 + 1]]


@pytest.mark.parametrize("dtype", [nl.uint8, nl.uint16, nl.uint32])
def test_predicate_types(dtype: Any) -> None:
    """Any element other than 0 is true; the highest bit alone as well."""
    highest = 1 << (8 * dtype.itemsize - 1)
    predicate = np.array([[highest, 0, 1, 0], [0, highest, 0, 0]]).astype(dtype.numpy)
    assert copied(SOURCE, predicate).tolist() == [[1, 7, 3, 7], [7, 5, 7, 7]]


@pytest.mark.parametrize("dtype", [nl.int32, nl.uint32])
def test_integers_that_float32_cannot_hold_are_copied_exactly(dtype: Any) -> None:
    source = np.array([[2**24 + 1, 2**30 + 3]]).astype(dtype.numpy)
    result = run(
        lambda dst, src: (
            nisa.memset(dst, 0),
            nisa.tensor_copy_predicated(dst, src, tile(1, 2, dtype=nl.uint8, value=1)),
        ),
        [source],
        Result((1, 2), dtype),
    )
    assert result.tolist() == source.tolist()


@pytest.mark.parametrize(
    "dtype",
    [nl.bfloat16, nl.float16, nl.float32, nl.tfloat32, nl.float8_e4m3, nl.float8_e5m2, nl.int8, nl.int16, nl.uint16],
)
def test_types_of_src_and_dst(dtype: Any) -> None:
    values = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    result = copied(Tile(values, dtype), PREDICATE, before=2)
    assert result.astype(np.float32).tolist() == [[1, 2, 2, 4], [2, 6, 7, 2]]


def test_bits_are_kept() -> None:
    """A NaN keeps its payload and a zero its sign, which a cast through float32 would not promise."""
    bits = np.array([[0x7FC1, 0x8000]], np.uint16)
    result = run(
        lambda dst, src: (
            nisa.memset(dst, 1),
            nisa.tensor_copy_predicated(dst, src, tile(1, 2, dtype=nl.uint8, value=1)),
        ),
        [bits.view(ml_dtypes.bfloat16)],
        Result((1, 2), nl.bfloat16),
    )
    assert result.view(np.uint16).tolist() == bits.tolist()


@pytest.mark.parametrize("places", [(nl.sbuf, nl.sbuf), (nl.psum, nl.sbuf), (nl.sbuf, nl.psum)], ids=str)
@pytest.mark.parametrize("target", [nl.sbuf, nl.psum])
def test_memories(places: Any, target: Any) -> None:
    def body(dst: Any, src: Any, predicate: Any) -> None:
        nisa.memset(dst, 7)
        nisa.tensor_copy_predicated(dst, src, predicate)

    result = run(
        body, [Tile(SOURCE, buffer=places[0]), Tile(PREDICATE, buffer=places[1])], Result((2, 4), buffer=target)
    )
    assert result.tolist() == [[1, 7, 7, 0.5], [7, 5, -6, 7]]


def test_shapes_may_differ_in_their_free_dimensions() -> None:
    def body(dst: Any, src: Any, predicate: Any) -> None:
        nisa.memset(dst, 7)
        nisa.tensor_copy_predicated(dst, src, predicate.reshape((2, 4, 1)))

    result = run(body, [SOURCE.reshape(2, 4), PREDICATE], Result((2, 2, 2)))
    assert result.tolist() == [[[1, 7], [7, 0.5]], [[7, 5], [-6, 7]]]


def test_strided_views() -> None:
    def body(dst: Any, src: Any, predicate: Any) -> None:
        nisa.memset(dst, 7)
        nisa.tensor_copy_predicated(dst[:, 1::2], src[:, 0::2], predicate[:, 1::2])

    result = run(body, [SOURCE, PREDICATE], Result((2, 4)))
    assert result.tolist() == [[7, 7, 7, 3], [7, 4, 7, 7]]


def test_src_may_overlap_dst() -> None:
    def body(dst: Any, src: Any, predicate: Any) -> None:
        nisa.tensor_copy(dst, src)
        nisa.tensor_copy_predicated(dst[:, 1:4], dst[:, 0:3], predicate[:, 0:3])

    every = np.ones((2, 4), np.uint8)
    assert run(body, [SOURCE, every], Result((2, 4))).tolist() == [[1, 1, -2, 3], [4, 4, 5, -6]]


def test_the_predicate_may_be_dst_itself() -> None:
    """The predicate is the very tile that is overwritten: 0 becomes 9, everything else stays."""

    def body(dst: Any, predicate: Any) -> None:
        nisa.tensor_copy(dst, predicate)
        nisa.tensor_copy_predicated(dst, 9, dst, reverse_pred=True)

    assert run(body, [PREDICATE], Result((2, 4), nl.uint8)).tolist() == [[1, 9, 9, 2], [9, 255, 1, 9]]


@given(st.sampled_from([1, 32, 128]), st.integers(1, 40), st.integers(0, 99))
def test_any_shape(partitions: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, source = normal(partitions, columns, seed=seed), normal(partitions, columns, seed=seed + 1)
    predicate = rng.integers(0, 3, (partitions, columns)).astype(np.uint16)

    def body(dst: Any, before: Any, source: Any, predicate: Any) -> None:
        nisa.tensor_copy(dst, before)
        nisa.tensor_copy_predicated(dst, source, predicate)

    result = run(body, [before, source, predicate], Result((partitions, columns)))
    expected = before.copy()
    expected[predicate > 0] = source[predicate > 0]
    assert np.array_equal(result, expected)


# -- what was written ------------------------------------------------------------------------------------------------


def predicated_into_new_tile(predicate: Any, **options: Any) -> Any:
    """A new tile into which 5 was copied under a predicate tile of two rows."""
    dst = nl.ndarray((2, 4), nl.float32)
    nisa.tensor_copy_predicated(dst, 5.0, predicate, **options)
    return dst


def test_elements_that_were_not_chosen_stay_unwritten() -> None:
    def body() -> None:
        predicate = tile(2, 4, dtype=nl.uint8)
        nisa.memset(predicate[:, 1:3], 1)
        nisa.tensor_copy(tile(2, 4), predicated_into_new_tile(predicate))

    assert refusal(body, error=nkilib.simulator.UninitializedReadError) == (
        "nisa.tensor_copy: operand 'src': 4 of the 8 elements of tensor [2, 4] float32 in sbuf were never written"
    )


def test_elements_that_were_chosen_are_written() -> None:
    def body() -> Any:
        predicate = tile(2, 4, dtype=nl.uint8)
        nisa.memset(predicate[:, 1:3], 1)
        return store(predicated_into_new_tile(predicate)[:, 1:3])

    assert execute(body).tolist() == [[5, 5], [5, 5]]


def test_two_copies_with_opposite_predicates_write_everything() -> None:
    def body() -> Any:
        predicate = tile(2, 4, dtype=nl.uint8)
        nisa.memset(predicate[:, 1:3], 1)
        dst = predicated_into_new_tile(predicate)
        nisa.tensor_copy_predicated(dst, -1.0, predicate, reverse_pred=True)
        return store(dst)

    assert execute(body).tolist() == [[-1, 5, 5, -1]] * 2


def test_a_tile_copied_whole_is_written_whole() -> None:
    assert (
        execute(lambda: store(predicated_into_new_tile(tile(2, 4, dtype=nl.uint8, value=1)))).tolist() == [[5] * 4] * 2
    )


def test_src_must_be_written_even_where_it_is_not_copied() -> None:
    def body() -> None:
        nisa.tensor_copy_predicated(tile(2, 4), nl.ndarray((2, 4), nl.float32), tile(2, 4, dtype=nl.uint8))

    assert refusal(body, error=nkilib.simulator.UninitializedReadError) == (
        "nisa.tensor_copy_predicated: operand 'src': 8 of the 8 elements of tensor [2, 4] float32 in sbuf were never "
        "written"
    )


def test_a_matmul_adds_to_what_was_not_copied_over_and_overwrites_the_rest() -> None:
    """ones.T @ ones over 2 rows is 2; the copied element is no matmul result any more, the others are."""

    def body() -> Any:
        ones, predicate = tile(2, 2, value=1), tile(2, 2, dtype=nl.uint8)
        nisa.memset(predicate[:, 1:2], 1)
        result = nl.ndarray((2, 2), nl.float32, nl.psum)
        nisa.nc_matmul(result, ones, ones)
        nisa.tensor_copy_predicated(result, 100.0, predicate)
        nisa.nc_matmul(result, ones, ones)
        return store(result)

    assert execute(body).tolist() == [[4, 2], [4, 2]]


# -- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_it_runs_on_the_vector_engine_of_every_generation(target: str) -> None:
    body = lambda: nisa.tensor_copy_predicated(tile(2, 2), tile(2, 2), tile(2, 2, dtype=nl.uint8))  # noqa: E731
    assert engine_of(body, target) == "vector"


RANK_4 = {"dst": Sbuf(2, 2, 1, 2), "src": Sbuf(2, 2, 1, 2), "predicate": Sbuf(2, 2, 1, 2, dtype=nl.uint8)}
RANK_5 = {"dst": Sbuf(2, 2, 1, 1, 2), "src": Sbuf(2, 2, 1, 1, 2), "predicate": Sbuf(2, 2, 1, 1, 2, dtype=nl.uint8)}


@rules(
    legal(nisa.tensor_copy_predicated, dst=Sbuf(2, 2), src=Sbuf(2, 2), predicate=Sbuf(2, 2, dtype=nl.uint32)),
    broken("predicate type", predicate=Sbuf(2, 2, dtype=nl.int32)).says(one_type("predicate", "uint16, uint32, uint8")),
    legal(nisa.tensor_copy_predicated, dst=Sbuf(2, 2), src=1.0, predicate=Sbuf(2, 2, dtype=nl.uint8)),
    broken("types of src and dst", src=Sbuf(2, 2, dtype=nl.bfloat16))
    .says("operands 'dst' and 'src' must have one type, got {dst} and {src}; cast with nisa.tensor_copy first")
    .fixed(dst=Sbuf(2, 2, dtype=nl.bfloat16)),
    broken("a tile where the predicate is not set", src=Sbuf(2, 2), reverse_pred=True)
    .says(
        "reverse_pred=True is for a number as 'src', got {src}; invert the predicate, for instance with "
        "nisa.tensor_scalar and op0=nl.equal, operand0=0"
    )
    .fixed(src=1.0),
    broken("an integer for floats", src=9)
    .says("operand 'src': an integer needs an integer type of 'dst', got 9 for {dst}; pass 9.0")
    .fixed(src=9.0),
    broken("a float for integers", dst=Sbuf(2, 2, dtype=nl.int16), src=9.0)
    .says("operand 'src': a float needs a float type of 'dst', got 9.0 for {dst}; pass an integer")
    .fixed(src=9),
    broken("both in PSUM", src=Psum(2, 2), predicate=Psum(2, 2, dtype=nl.uint8))
    .says(not_both_in_psum("src", "predicate"))
    .fixed(dst=Psum(2, 2), predicate=Sbuf(2, 2, dtype=nl.uint8)),
    broken("partitions of src", src=Sbuf(1, 2)).says(same_partitions("dst", "src")).fixed(src=Sbuf(2, 2)),
    broken("size of src", src=Sbuf(2, 3)).says(same_elements("dst", "src")).fixed(src=Sbuf(2, 3)[:, 0:2]),
    broken("size of predicate", predicate=Sbuf(2, 1, dtype=nl.uint8)).says(same_elements("dst", "predicate")),
    broken("predicate is a tile", src=Sbuf(2, 2), predicate=True)
    .says("operand 'predicate' must be a tensor, got True")
    .fixed(predicate=Sbuf(2, 2, dtype=nl.uint8, value=1)),
    broken("HBM", dst=Hbm(2, 2)).says(must("dst", "be in psum or sbuf")),
    legal(nisa.tensor_copy_predicated, **RANK_4),
    *(
        broken(f"rank of operand {number}", **{name: made}).says(fewer_dimensions(name, 4))
        for number, (name, made) in enumerate(RANK_5.items())
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)
