# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of products in PSUM wait for their readers: they hold what the instructions one by one would have left."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, recording
from nkilib.simulator.engines.tensor import accumulation as sums
from nkilib.simulator.engines.tensor import matmul
from nkilib.simulator.numerics.products import transposed_product

DEPTH, TILES, ROWS, COLUMNS = 16, 4, 8, 12
BF16 = np.dtype(ml_dtypes.bfloat16)

# Rows and columns of the sums that an instruction works on: all, or a part.
PLACES = st.sampled_from([(0, ROWS, 0, COLUMNS), (0, ROWS, 0, 6), (0, ROWS, 6, COLUMNS), (0, 4, 0, COLUMNS)])
TILE = st.integers(0, TILES - 1)
MATMULS = st.tuples(st.just("matmul"), PLACES, TILE, st.sampled_from([None, False, True, True]))
STEPS = st.one_of(
    MATMULS,
    MATMULS,
    st.tuples(st.just("read"), PLACES),
    st.tuples(st.just("fill"), PLACES),
    st.tuples(st.just("change"), st.sampled_from(["stationary", "moving"]), TILE, st.integers(-3, 3)),
    st.tuples(st.just("load"), TILE, TILE),
)


@nki.jit
def run(left: Any, right: Any, steps: list[Any]) -> Any:
    """The steps one after the other; what each of them reads, and at the end all of it, is a result."""
    tiles = {}
    for name, source in (("stationary", left), ("moving", right)):
        tiles[name] = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tiles[name], src=source)
    total = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
    first_left, first_right = tiles["stationary"][:, 0, :], tiles["moving"][:, 0, :]
    nisa.nc_matmul(dst=total, stationary=first_left, moving=first_right, accumulate=False)
    results = []
    for kind, *what in [*steps, ("read", (0, ROWS, 0, COLUMNS))]:
        if kind == "matmul":
            (top, bottom, start, end), tile, accumulate = what
            nisa.nc_matmul(
                dst=total[top:bottom, start:end],
                stationary=tiles["stationary"][:, tile, top:bottom],
                moving=tiles["moving"][:, tile, start:end],
                accumulate=accumulate,
            )
        elif kind == "read":
            top, bottom, start, end = what[0]
            read = nl.ndarray((bottom - top, end - start), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=read, src=total[top:bottom, start:end])
            results.append(nl.ndarray(read.shape, dtype=nl.float32, buffer=nl.shared_hbm))
            nisa.dma_copy(dst=results[-1], src=read)
        elif kind == "fill":
            top, bottom, start, end = what[0]
            nisa.memset(dst=total[top:bottom, start:end], value=7.0)
        elif kind == "change":
            name, tile, value = what
            nisa.memset(dst=tiles[name][:, tile, :], value=float(value))
        else:
            tile, source_tile = what
            nisa.dma_copy(dst=tiles["moving"][:, tile, :], src=right[:, source_tile, :])
    return tuple(results)


def outcome(left: Any, right: Any, steps: list[Any]) -> Any:
    """The results, or what the error says."""
    try:
        return [result.tolist() for result in run(left, right, steps)]
    except NkiValidationError as error:
        return str(error)


def integers(*shape: int) -> Any:
    """Small ones: their products and sums are exact in float32, in any order."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype(BF16)


LEFT, RIGHT = integers(DEPTH, TILES, ROWS), integers(DEPTH, TILES, COLUMNS)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_any_steps_give_what_the_instructions_give_one_by_one(steps: list[Any]) -> None:
    waiting = outcome(LEFT, RIGHT, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "defer_product", lambda *_: False)
        assert outcome(LEFT, RIGHT, steps) == waiting


def reference(left: Any, right: Any, tiles: int) -> Any:
    return np.einsum("pkm,pkn->mn", left[:, :tiles].astype(np.float64), right[:, :tiles].astype(np.float64))


@pytest.mark.parametrize("name", ["stationary", "moving"])
@pytest.mark.parametrize("is_read", [False, True])
def test_an_operand_that_changes_counts_as_it_was_and_then_as_it_is(name: str, is_read: bool) -> None:
    """The float32 copy of the operand is recomputed, whether the sum was read before the change or because of it."""
    every = (0, ROWS, 0, COLUMNS)
    read = [("read", every)] if is_read else []
    *_, result = run(LEFT, RIGHT, [*read, ("change", name, 0, 3), ("matmul", every, 0, True)])
    changed = {"stationary": LEFT, "moving": RIGHT} | {name: np.full_like(LEFT if name == "stationary" else RIGHT, 3)}
    assert (result == reference(LEFT, RIGHT, 1) + reference(changed["stationary"], changed["moving"], 1)).all()


@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["bf16", "fp32"])
def test_neighbours_are_cast_once_and_multiplied_tile_by_tile(dtype: Any, monkeypatch: Any) -> None:
    """Four tiles side by side: one float32 matrix of all of them, and a product for each."""
    factors = []

    def product(left: Any, right: Any, *out: Any) -> Any:
        factors.append((left, right))
        return transposed_product(left, right, *out)

    monkeypatch.setattr(sums, "transposed_product", product)
    every = (0, ROWS, 0, COLUMNS)
    with recording() as record:
        (result,) = run(LEFT.astype(dtype), RIGHT.astype(dtype), [("matmul", every, tile, True) for tile in (1, 2, 3)])
    assert [(left.shape, right.shape) for left, right in factors] == [((DEPTH, ROWS), (DEPTH, COLUMNS))] * TILES
    for side in zip(*factors, strict=True):
        assert all(np.may_share_memory(side[0], factor) for factor in side)
    assert record.instruction_counts["nc_matmul"] == TILES
    assert result.tolist() == reference(LEFT, RIGHT, TILES).tolist()


def test_each_product_is_summed_by_itself() -> None:
    """Sums are as in PSUM: 2^24 is too large for a 1 to be added to, and not for the sums of 16 ones."""
    left, right = np.ones_like(LEFT), np.ones_like(RIGHT)
    for factor in (left, right):
        factor[:, 0] = 0.0
        factor[0, 0] = 2.0**12
    every = (0, ROWS, 0, COLUMNS)
    (result,) = run(left, right, [("matmul", every, tile, True) for tile in (1, 2, 3)])
    assert (result == 2.0**24 + (TILES - 1) * DEPTH).all()


@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_spreads_over_its_row_and_column(factor: float) -> None:
    """Also where it is multiplied by 0, in one of the products of a sum."""
    left, right = LEFT.copy(), RIGHT.copy()
    left[3, 2, 5] = factor
    right[3, 2, 4] = 0
    every = (0, ROWS, 0, COLUMNS)
    (result,) = run(left, right, [("matmul", every, tile, True) for tile in (1, 2, 3)])
    with np.errstate(invalid="ignore"):
        expected = reference(left, right, TILES)
    assert np.isnan(result[5, 4])
    np.testing.assert_array_equal(result, expected)


@nki.jit
def two_sums(left: Any, right: Any, spoils: bool) -> Any:
    """Sum products on each core; operands overwritten between the products (`spoils`) count for later ones only."""
    result = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.private_hbm)
    a = nl.ndarray(left.shape, dtype=left.dtype, buffer=nl.sbuf)
    b = nl.ndarray(right.shape, dtype=right.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=left)
    nisa.dma_copy(dst=b, src=right)
    total = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
    for tile in range(TILES):
        nisa.nc_matmul(dst=total, stationary=a[:, tile, :], moving=b[:, tile, :], accumulate=tile > 0)
        if spoils:
            nisa.memset(dst=b[:, tile, :], value=9.0)
    read = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=read, src=total)
    shared = nl.ndarray((nl.num_programs(), ROWS, COLUMNS), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=read)
    nisa.dma_copy(dst=shared[nl.program_id(0)], src=read)
    return shared


def normal(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(BF16)


def test_the_bits_are_the_same_on_both_cores_and_on_every_run() -> None:
    left, right = normal(DEPTH, TILES, ROWS), normal(DEPTH, TILES, COLUMNS)
    one = two_sums[1](left, right, False)[0]
    for _ in range(3):
        for result in two_sums[2](left, right, False):
            assert result.tobytes() == one.tobytes()
    np.testing.assert_allclose(one, reference(left, right, TILES), rtol=0, atol=1e-5)


def test_operands_may_be_overwritten_between_the_products() -> None:
    assert (two_sums[2](LEFT, RIGHT, True) == reference(LEFT, RIGHT, TILES)).all()
