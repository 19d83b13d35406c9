# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts of the shared backward, each by itself: blocks of classes, memory of its streams, and the power of two of
float16.

Blocks of classes are those of a program that has room for two copies of a block and no more. Tiles of X^T of two
operand pairs lie in rings of their own, or side by side in halves of one memory. The power of two that float16
gradients carry is checked to the last digit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import linear_cross_entropy_backward
from nkilib.experimental.loss.linear.backward import geometry
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes, PairSizes
from nkilib.experimental.loss.linear.backward.gradient_block import PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan, plan_of_program, planned_blocks
from nkilib.experimental.loss.linear.backward.streams import OperandPair, StreamMemory
from nkilib.experimental.loss.linear.block_schedule import shares_of_cores
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.nki import nisa, nki, nl

POSITIONS, FEATURES = 200, 256
TILING = {"position_block": 256, "class_block": 512}


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize(("classes", "most"), [(1537, 120), (1537, 110), (3073, 110)])
def test_the_block_behind_the_loop_may_be_a_tile_longer(
    monkeypatch: pytest.MonkeyPatch, classes: int, most: int, layout: str
) -> None:
    """Cores of unlike shares have a block each behind the loop, and dW is added to a sum, which cores cannot share."""
    monkeypatch.setattr(geometry, "PROGRAM_INSTRUCTIONS", most)
    shares = shares_of_cores(classes, 2)
    sizes = BackwardSizes(POSITIONS, FEATURES, classes, 4, layout == "vd", adds_to_weight=True)
    plan = plan_of_program(BackwardPlan.of(sizes, *TILING.values()), shares, POSITIONS)
    results = [planned_blocks(plan, shares, core, POSITIONS) for core in range(2)]
    assert [len(result.blocks.rest) for result in results] == [1, 1]
    assert results[0].blocks.rest[0].size > results[0].blocks.size
    assert results[0].blocks.iterations == results[1].blocks.iterations >= 2

    rng = np.random.default_rng(classes)
    x = rng.standard_normal((POSITIONS, FEATURES), dtype=np.float32)
    weight = rng.standard_normal((classes, FEATURES), dtype=np.float32) / 8
    targets = rng.integers(0, classes, POSITIONS).astype(np.int32)
    grad_loss = rng.standard_normal(POSITIONS, dtype=np.float32)
    logits = x.astype(np.float64) @ weight.astype(np.float64).T
    lse = np.log(np.exp(logits).sum(1))
    grad_logits = np.exp(logits - lse[:, None])
    grad_logits[np.arange(POSITIONS), targets] -= 1
    grad_logits *= grad_loss[:, None].astype(np.float64)
    total = rng.standard_normal(weight.shape, dtype=np.float32)
    in_layout = (lambda array: array) if layout == "vd" else (lambda array: np.ascontiguousarray(array.T))

    grad_input, grad_weight = linear_cross_entropy_backward[2](
        x, in_layout(weight), targets, lse.astype(np.float32), grad_loss, weight_layout=layout,
        grad_weight_sum_hbm=in_layout(total).copy(), **TILING,
    )  # fmt: skip
    # Of float32 products; a block that is left out or counted twice is an error of the order of 1.
    np.testing.assert_allclose(grad_input, grad_logits @ weight, rtol=0, atol=1e-4)
    np.testing.assert_allclose(grad_weight, in_layout(total + grad_logits.T @ x), rtol=0, atol=1e-4)


STUDENT_FEATURES, TEACHER_FEATURES, ITEMSIZES = 200, 300, {"bfloat16": 2, "float32": 4}


def plan_of(dtypes: tuple[str, str], shares_memory: int) -> BackwardPlan:
    """Plan a backward for 256 positions and two tiles of X^T."""
    own, further = (ITEMSIZES[dtype] for dtype in dtypes)
    sizes = BackwardSizes(256, STUDENT_FEATURES, 256, own, further=(PairSizes(TEACHER_FEATURES, further),))
    plan = BackwardPlan.of(sizes, 256, 256)
    return replace(plan, buffers=replace(plan.buffers, shares_memory=shares_memory, input_tiles=2))


@pytest.mark.parametrize("shares_memory", [0, 1])
@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "bfloat16")])
def test_tiles_of_both_pairs_share_no_byte(dtypes: tuple[str, str], shares_memory: int) -> None:
    """Each is written with a number of its own, and all of them are read afterwards."""
    plan = plan_of(dtypes, shares_memory)

    @nki.jit
    def kernel(first_hbm: nl.NkiTensor, second_hbm: nl.NkiTensor, weights_hbm: nl.NkiTensor) -> nl.NkiTensor:
        inputs = (first_hbm, second_hbm)
        pairs = [OperandPair(LinearOperands("test", item, weights_hbm, None, None, "vd")) for item in inputs]
        rings = StreamMemory.make(plan, first_hbm.dtype).inputs(pairs)
        tiles = [tile for ring in rings for tile in ring.tiles]
        for number, tile_sbuf in enumerate(tiles):
            nisa.memset(dst=tile_sbuf, value=float(number + 1))
        found_hbm = nl.ndarray((len(tiles), 2), dtype=nl.float32, buffer=nl.shared_hbm, name="found_hbm")
        for number, tile_sbuf in enumerate(tiles):
            ends_sbuf = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.sbuf)
            for place, (depth, column) in enumerate(((0, 0), (tile_sbuf.shape[1] - 1, 127))):
                nisa.tensor_copy(dst=ends_sbuf[:, place : place + 1], src=tile_sbuf[0:1, depth, column : column + 1])
            nisa.dma_copy(dst=found_hbm[number : number + 1], src=ends_sbuf)
        return found_hbm

    operands: list[Any] = [
        np.zeros((256, features), nl_dtype(dtype))
        for features, dtype in zip((STUDENT_FEATURES, TEACHER_FEATURES), dtypes, strict=True)
    ]
    result = np.asarray(kernel[1](*operands, np.zeros((256, STUDENT_FEATURES), np.float32)))
    np.testing.assert_array_equal(result, np.repeat([[1.0], [2.0], [3.0], [4.0]], 2, axis=1))


def nl_dtype(name: str) -> Any:
    return np.dtype(nl.bfloat16) if name == "bfloat16" else np.dtype(np.float32)


def test_what_further_pairs_take_is_in_the_plan() -> None:
    sizes = BackwardSizes(256, 256, 512, 2)
    alone = BackwardPlan.of(sizes, 256, 256)
    both = BackwardPlan.of(replace(sizes, further=(PairSizes(512, 4),)), 256, 256)
    same = replace(both, buffers=alone.buffers)
    tiles = alone.class_tiles + alone.buffers.input_tiles
    assert same.sbuf_bytes - alone.sbuf_bytes == tiles * 512 * 4
    assert same.instructions(256, 256) - alone.instructions(256, 256) >= 2 * 4


@nki.jit
def powers_of(first, second):
    """Factor and inverse for two tiles [128, columns] in HBM."""
    columns_sbuf = []
    for values_hbm in (first, second):
        values_sbuf = nl.ndarray(values_hbm.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=values_sbuf, src=values_hbm)
        columns_sbuf.append(values_sbuf)
    power = PowerOfTwo.of_largest(columns_sbuf)
    results = []
    for column_sbuf in (power.factor_sbuf, power.inverse_sbuf):
        result_hbm = nl.ndarray(column_sbuf.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result_hbm, src=column_sbuf)
        results.append(result_hbm)
    return tuple(results)


@pytest.mark.parametrize(
    ("first", "second", "exponent"),
    [
        (1.0, 0.0, 0),
        (-1.5, 0.0, 0),
        (1.0, -1.0, 1),
        (1.999, 0.0, 0),
        (2.0**-30, 2.0**-40, -30),
        (3.0 * 2.0**13, 1.0, 14),
        (0.0, 0.0, -100),
        (2.0**-120, 0.0, -100),
        (1e30, 0.0, 99),
    ],
)
def test_the_largest_coefficient_becomes_2_to_the_12_to_13(first: float, second: float, exponent: int) -> None:
    """The power comes from the sum of both tiles' largest magnitudes on any partitions, taken as at least 2^-100."""
    tiles = [np.zeros((128, 3), np.float32) for _ in range(2)]
    for tile, row, value in zip(tiles, (77, 77), (first, second), strict=True):
        tile[row, 1] = value
        tile[5, 2] = value / 4
    factor, inverse = powers_of(*tiles)
    np.testing.assert_array_equal(factor, np.full((128, 1), 2.0 ** (12 - exponent), np.float32))
    np.testing.assert_array_equal(inverse, np.full((128, 1), 2.0 ** (exponent - 12), np.float32))
