# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Blocks of classes of a program that has room for two copies of a block and no more."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.experimental.loss import linear_cross_entropy_backward
from nkilib.experimental.loss.linear.backward import geometry
from nkilib.experimental.loss.linear.backward.class_blocks import plan_of_program, planned_blocks
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import shares_of_cores

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
