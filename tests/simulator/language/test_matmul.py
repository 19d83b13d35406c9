# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``matmul`` and ``transpose``: values, where their results are, limits, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl

from ..kernels import Result, Tile, normal, run
from ..made import Psum, Sbuf, lazily
from ..rules import Rule, broken, legal, rules
from .calls import EPSILON, call, check_call, outcome, wide

F32, BF16 = np.float32, ml_dtypes.bfloat16


def is_product(result: Any, x: Any, y: Any) -> bool:
    """Whether a float32 product of float32 sums is right: each of k terms is rounded, relative to their magnitudes."""
    budget = 2 * EPSILON * x.shape[1] ** 0.5 * 4 * (np.abs(wide(x)) @ np.abs(wide(y)))
    return bool(np.all(np.abs(wide(result) - wide(x) @ wide(y)) <= budget))


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 7), (128, 128, 512), (128, 1, 512), (1, 128, 1)])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
def test_matmul(m: int, k: int, n: int, dtype: Any) -> None:
    x, y = normal(m, k, seed=1).astype(dtype), normal(k, n, seed=2).astype(dtype)
    plain = outcome(nl.matmul, x, y)
    turned = outcome(lambda x, y: nl.matmul(x, y, transpose_x=True), np.ascontiguousarray(x.T), y)
    for got in (plain, turned):
        assert (got.dtype, got.buffer, got.values.shape) == (nl.float32, nl.psum, (m, n))
        assert is_product(got.values, x, y)


def test_the_tensor_engine_contracts_partitions() -> None:
    """Already transposed operands take one matmul, others a transpose and a copy out of PSUM before it."""
    x = normal(4, 4)
    assert outcome(lambda x: nl.matmul(x, x, transpose_x=True), x).instructions == {"nc_matmul": 1}
    plain = outcome(lambda x: nl.matmul(x, x), x)
    assert plain.instructions == {"nc_transpose": 1, "tensor_copy": 1, "nc_matmul": 1}
    assert plain.engines == {"tensor": 2, "vector": 1}


def test_matmul_example_of_the_documentation() -> None:
    def body(dst: Any, identity: Any) -> None:
        y = nl.full((128, 128), 1.0, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst, nl.matmul(identity, y, transpose_x=True))

    assert (run(body, [np.eye(128, dtype=F32)], Result((128, 128))) == 1).all()


def test_a_product_is_copied_out_of_psum_with_copy() -> None:
    x, y = normal(3, 4, seed=3), normal(3, 5, seed=4)
    got = outcome(lambda x, y: nl.copy(nl.matmul(x, y, transpose_x=True)), x, y)
    assert got.buffer == nl.sbuf and is_product(got.values, x.T, y)


def test_attention() -> None:
    """A chain of the functions, as the first version of the documentation's attention tutorial has it."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = nl.copy(nl.matmul(q, k, transpose_x=True))
        powers = nl.exp(nl.subtract(scores, nl.max(scores, axis=1)))
        weights = nl.divide(powers, nl.sum(powers, axis=1))
        return nl.matmul(weights, nl.copy(nl.transpose(v)))

    q, k, v = (normal(16, 32, seed=seed) for seed in (5, 6, 7))
    scores = wide(q).T @ wide(k)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    reference = (powers / powers.sum(axis=1, keepdims=True)) @ wide(v).T
    # Scores up to 20 are rounded by 2^-20 before the exponential.
    assert np.all(np.abs(wide(call(attention, q, k, v)) - reference) <= 2.0**-18)


@given(st.integers(1, 128), st.integers(1, 128))
def test_transposes(rows: int, columns: int) -> None:
    x = normal(rows, columns)
    got = outcome(nl.transpose, x)
    assert (got.buffer, got.dtype, got.engines) == (nl.psum, nl.float32, {"tensor": 1})
    assert got.values.tolist() == x.T.tolist()


@pytest.mark.parametrize("dtype", [F32, BF16, np.int32, np.uint8], ids=lambda dtype: dtype.__name__)
def test_transposes_keep_the_type(dtype: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    got = outcome(nl.transpose, x)
    assert got.dtype == np.dtype(dtype).name and got.values.tolist() == x.T.tolist()


def test_a_transpose_with_a_cast_and_of_a_tile_in_psum() -> None:
    x = np.array([[1.5, 257, -3]], F32)
    got = outcome(lambda x: nl.transpose(x, dtype=nl.bfloat16), Tile(x, buffer=nl.psum))
    assert (got.dtype, got.values.astype(F32).tolist()) == (nl.bfloat16, [[1.5], [256], [-3]])
    assert call(nl.transpose, Tile(x, buffer=nl.psum)).tolist() == x.T.tolist()


def test_a_transpose_moves_nan_and_infinities() -> None:
    """This holds from trn2 on; on trn1 a transpose is a product, in which they spread."""
    x = np.array([[math.inf, 1], [2, 3]], F32)
    assert call(nl.transpose, x).tolist() == [[math.inf, 2], [1, 3]]
    assert np.isnan(call(nl.transpose, x, target="trn1")).any()


def test_the_transpose_of_the_identity_is_the_identity() -> None:
    """The documentation's example."""
    x = np.eye(128, dtype=F32)
    assert call(nl.transpose, x).tolist() == x.tolist()


@rules(
    legal(nl.matmul, x=Sbuf(4, 3), y=Sbuf(3, 5)),
    broken("inner sizes", y=Sbuf(4, 5)).says("dimension 1 of x must be as large as dimension 0 of y, got {x} and {y}"),
    broken("inner sizes of a transposed operand", transpose_x=True)
    .says("dimension 0 of x must be as large as dimension 0 of y (transpose_x=True), got {x} and {y}")
    .fixed(y=Sbuf(4, 5)),
    broken("512 columns", y=Sbuf(3, 513)).says("y must have at most 512 columns, got {y}").fixed(y=Sbuf(3, 512)),
    legal(nl.matmul, x=Sbuf(4, 128), y=Sbuf(4, 5), transpose_x=True),
    broken("128 columns of x", x=Sbuf(4, 129)).says("x must have at most 128 columns, got {x}"),
    legal(nl.matmul, x=lazily(nl.copy, Psum(4, 3)), y=Sbuf(3, 5)),
    broken("operands in sbuf", x=Psum(4, 3)).says("x must be in sbuf, got {x}: copy it there first, with nl.copy"),
    broken("matrices", x=Sbuf(4, 3), y=Sbuf(3, 5, 1)).says("y must have 2 dimensions, got {y}").fixed(y=Sbuf(3, 5)),
    legal(nl.transpose, x=Sbuf(4, 128)),
    broken("a matrix to transpose", x=Sbuf(4, 3, 2)).says("x must have 2 dimensions, got {x}").fixed(x=Sbuf(4, 6)),
    broken("128 columns to transpose", x=Sbuf(4, 129)).says("x must have at most 128 columns, got {x}"),
)
def test_refusals(rule: Rule) -> None:
    check_call(rule)
