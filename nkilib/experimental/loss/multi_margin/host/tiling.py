# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of rows into chunks: arithmetic only, for host code."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.tiling import div_ceil

# Columns of a chunk at most: more gain nothing, and the engine's accumulator adds up the sum of a chunk.
MOST_COLUMNS = 4096
# Chunks of the input on chip, and of scratch.
BUFFERS, SCRATCH_BUFFERS = 4, 3
# Sizes are rounded up to multiples of this number.
_ROUND = 128


class MultiMarginTiling(NamedTuple):
    """The tiling of a launch; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: columns that are processed at a time.
    """

    chunk_size: int


def choose_multi_margin_tiling(classes: int) -> MultiMarginTiling:
    """Choose the chunk size for rows of ``classes`` columns, so that chunks are of nearly equal size.

    It depends only on the number of classes, so that results of a row are bitwise identical in any launch.
    """
    even = div_ceil(classes, div_ceil(classes, MOST_COLUMNS))
    return MultiMarginTiling(min(MOST_COLUMNS, div_ceil(even, _ROUND) * _ROUND))
