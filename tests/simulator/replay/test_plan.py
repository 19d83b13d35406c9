# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.replay.plan``: the memory that a plan holds between launches."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkilib.nki import nisa, nki, nl
from nkilib.simulator.replay.recording import record_launch
from nkilib.simulator.replay.replaying import Replay


@nki.jit
def through_tiles(x: Any) -> Any:
    """Add 1, by way of two tiles and of a tensor in HBM that nobody gets."""
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    between = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, x)
    other_tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.tensor_scalar(other_tile, tile, nl.add, 1.0)
    nisa.dma_copy(between, other_tile)
    nisa.dma_copy(result, between)
    return result


def test_a_plan_holds_its_tensors_in_hbm_and_no_tile() -> None:
    """Tiles lie in memory that all plans share, in that of their core."""
    x = np.ones((8, 32), np.float32)
    recorded = record_launch(through_tiles, (x,), {}, [x])
    assert recorded.stream is not None
    plan = Replay(recorded.stream, [x]).plan
    assert plan.nbytes == x.nbytes
    assert (plan.run([x])[0] == x + 1).all()
