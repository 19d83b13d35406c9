# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How rows are cut into chunks: arithmetic only, for host code."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.tiling import div_ceil

# Columns of a chunk at most: more gain nothing, and the sum of a chunk is one of the engine's accumulator.
MOST_COLUMNS = 4096
# Chunks of the input on chip, and of scratch.
BUFFERS, SCRATCH_TURNS = 4, 3
# What sizes are rounded up to.
_ROUND = 128


class MultiMarginTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: columns that are worked on at a time.
    """

    chunk_size: int


def choose_multi_margin_tiling(classes: int) -> MultiMarginTiling:
    """Chunks of nearly equal size. They depend on nothing else, so that the bits of a row do not either."""
    even = div_ceil(classes, div_ceil(classes, MOST_COLUMNS))
    return MultiMarginTiling(min(MOST_COLUMNS, div_ceil(even, _ROUND) * _ROUND))
