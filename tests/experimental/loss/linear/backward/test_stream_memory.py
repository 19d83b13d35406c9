# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where tiles of X^T of two operand pairs stand: in rings of their own, or side by side in halves of one memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.operand_pair import OperandPair, PairSizes
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.stream_memory import StreamMemory
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.nki import nisa, nki, nl

FEATURES, TEACHER_FEATURES, ITEMSIZES = 200, 300, {"bfloat16": 2, "float32": 4}


def plan_of(dtypes: tuple[str, str], shares_memory: int) -> BackwardPlan:
    """Plan a backward for 256 positions and two tiles of X^T."""
    own, further = (ITEMSIZES[dtype] for dtype in dtypes)
    sizes = BackwardSizes(256, FEATURES, 256, own, further=(PairSizes(TEACHER_FEATURES, further),))
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
        for features, dtype in zip((FEATURES, TEACHER_FEATURES), dtypes, strict=True)
    ]
    result = np.asarray(kernel[1](*operands, np.zeros((256, FEATURES), np.float32)))
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
