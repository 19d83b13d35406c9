# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of logits against float64, with bias and cap, of any depth; logits kept in HBM come back as they were."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.linear.block_schedule import Step, plan_blocks, shares_of_cores
from nkilib.experimental.loss.linear.logits import LogitsInHbm, LogitTiles
from nkilib.experimental.loss.linear.operands import Matrix, load_broadcast
from nkilib.nki import nisa, nki, nl

Array = npt.NDArray[Any]
TYPES = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)]


def logits(x: Array, w: Array, bias: Array | None, softcap: float | None, number: int = 0) -> Array:
    """z of one tile, which is number ``number`` of its rings."""
    (positions, features), classes = x.shape, w.shape[0]

    def kernel(x_hbm: Any, w_hbm: Any, bias_hbm: Any) -> Any:
        tiles = LogitTiles.make(features, softcap, bias is not None, banks=3, slots=2, classes=classes)
        operands = []
        for matrix in (Matrix(x_hbm), Matrix(w_hbm)):
            shape = (PARTITIONS, div_ceil(features, PARTITIONS), matrix.rows)
            operands.append(nl.ndarray(shape, dtype=matrix.dtype, buffer=nl.sbuf))
            matrix.load_transposed(operands[-1])
        bias_sbuf = None
        if bias_hbm is not None:
            bias_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
            load_broadcast(bias_sbuf, bias_hbm)
        scores = tiles.scores(number, *operands, bias_sbuf)
        z_sbuf = nl.ndarray((positions, classes), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=z_sbuf, data=scores, op0=nl.multiply, operand0=tiles.scale)
        z_hbm = nl.ndarray(z_sbuf.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=z_hbm, src=z_sbuf)
        return z_hbm

    result: Array = nki.jit(kernel)(x, w, bias)
    return result


@settings(max_examples=20)
@given(
    positions=st.integers(1, PARTITIONS),
    features=st.integers(1, 400),
    classes=st.integers(1, 512),
    dtype=st.sampled_from(TYPES),
    has_bias=st.booleans(),
    softcap=st.sampled_from([None, 5.0, 30.0]),
)
@example(1, 16, 1, TYPES[0], True, None)
@example(128, 384, 512, TYPES[2], True, 30.0)
def test_a_tile_is_the_product_of_its_inputs(
    positions: int, features: int, classes: int, dtype: np.dtype[Any], has_bias: bool, softcap: float | None
) -> None:
    rng = np.random.default_rng([positions, features, classes])
    x = rng.standard_normal((positions, features)).astype(dtype)
    w = rng.standard_normal((classes, features)).astype(dtype)
    bias = rng.standard_normal(classes).astype(np.float32) * 3 if has_bias else None
    result = logits(x, w, bias, softcap, positions)
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    expected, sizes = x64 @ w64.T, np.abs(x64) @ np.abs(w64).T
    if bias is not None:
        expected, sizes = expected + bias, sizes + np.abs(bias)
    allowed = (div_ceil(features, PARTITIONS) + PARTITIONS) * 2.0**-24 * sizes
    if softcap is not None:
        expected = softcap * np.tanh(expected / softcap)
        allowed = allowed + 4 * 2.0**-23 * softcap
    assert (np.abs(result - expected) <= allowed).all()


def test_a_masked_class_stays_masked_and_has_the_least_tangent_under_a_cap() -> None:
    bias = np.array([0.0, -np.inf, 1e4], np.float32)
    ones = np.ones((3, 16), np.float32)
    np.testing.assert_array_equal(logits(ones, ones, bias, None), np.tile(16 + bias, (3, 1)))
    capped = logits(ones, ones, bias, 2.0)
    np.testing.assert_allclose(capped, np.tile([2.0, -2.0, 2.0], (3, 1)), rtol=1e-6)


TILE = 128


def copied_through(most_bodies: int):
    @nki.jit
    def kernel(logits):
        """Keeps groups of two tiles of positions and then loads tile by tile."""
        positions, vocab_size = logits.shape
        result = nl.ndarray(logits.shape, logits.dtype, nl.shared_hbm)
        core, shares = nl.program_id(0), shares_of_cores(vocab_size, nl.num_programs())
        tiles = -(-positions // TILE)
        plan = plan_blocks(shares, core, 256, most_bodies)
        if shares[core].size == 0:
            return result
        kept = LogitsInHbm.make(positions, shares[core])
        group_sbuf = nl.ndarray((TILE, 2, 256), nl.float32, nl.sbuf)

        def keep(step: Step) -> None:
            for start in range(0, tiles, 2):
                for tile in range(start, min(start + 2, tiles)):
                    rows = min(TILE, positions - tile * TILE)
                    source = step.block.of(logits, 1)[tile * TILE : tile * TILE + rows]
                    nisa.dma_copy(dst=group_sbuf[0:rows, tile - start, 0 : step.block.size], src=source)
                kept.store(group_sbuf[:, 0 : min(2, tiles - start)], start, step.block)

        def give(step: Step) -> None:
            for tile in range(tiles):
                rows = min(TILE, positions - tile * TILE)
                tile_sbuf = group_sbuf[0:rows, 0, 0 : step.block.size]
                kept.load(tile_sbuf, tile, step.block)
                nisa.dma_copy(dst=step.block.of(result, 1)[tile * TILE : tile * TILE + rows], src=tile_sbuf)

        plan.run(keep)
        plan.run(give)
        return result

    return kernel


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("positions", "classes"), [(300, 2000), (512, 1031), (1, 100), (640, 130)])
def test_what_is_kept_comes_back(cores: int, positions: int, classes: int) -> None:
    logits = np.random.default_rng(0).standard_normal((positions, classes)).astype(np.float32)
    np.testing.assert_array_equal(copied_through(2)[cores](logits), logits)
