# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Logits that are kept in HBM come back as they were, in a loop of the device and behind it."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.experimental.loss.linear.shared.blocks import Step, plan_blocks, shares_of_cores
from nkilib.experimental.loss.linear.shared.kept_logits import KeptLogits
from nkilib.nki import nisa, nki, nl

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
        kept = KeptLogits.make(positions, shares[core])
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
