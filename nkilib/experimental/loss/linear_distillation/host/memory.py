# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bytes of HBM that a divergence from a mixture takes beyond inputs and outputs: arithmetic only.

The float32 scores of both models are kept from a first visit of the classes to a second one, for two blocks of
positions at a time: 8 V bytes for each position. If the limit of a launch has no room for two blocks of 128 positions,
or for the only one, nothing is kept, and both products run twice. A Kullback-Leibler divergence keeps nothing.
"""

from __future__ import annotations

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil

# Bytes of HBM that kept scores take at most by default.
MEMORY_LIMIT = 2 * 2**30
# Bytes of a pair of scores.
PAIR_BYTES = 8


def tile_bytes(vocab_size: int) -> int:
    """Return the bytes of the scores of a tile of 128 positions, of all cores."""
    return PAIR_BYTES * PARTITIONS * vocab_size


def kept_tiles(vocab_size: int, memory_limit: int) -> int:
    """Return the number of tiles of 128 positions whose scores fit a limit."""
    return memory_limit // tile_bytes(vocab_size)


def keeps_scores(num_positions: int, vocab_size: int, memory_limit: int) -> bool:
    """Tell whether scores are kept: two blocks of 128 positions fit the limit, or the only one."""
    return kept_tiles(vocab_size, memory_limit) >= min(2, div_ceil(num_positions, PARTITIONS))


def most_kept_bytes(num_positions: int, vocab_size: int, memory_limit: int | None = None) -> int:
    """Return the largest number of bytes of kept scores, of whole tiles of positions; 0 if nothing is kept.

    Args:
        num_positions: N.
        vocab_size: V.
        memory_limit: the limit of the launch; None for the default.
    """
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    if not keeps_scores(num_positions, vocab_size, limit):
        return 0
    tiles = min(kept_tiles(vocab_size, limit), div_ceil(num_positions, PARTITIONS))
    return tiles * tile_bytes(vocab_size)
