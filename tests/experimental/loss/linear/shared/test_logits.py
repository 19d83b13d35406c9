# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy.logits``: a tile against float64, with bias and cap, of any depth."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.logits import LogitTiles
from nkilib.experimental.loss.linear.shared.operands import Matrix, load_broadcast
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
