"""What a tiling is."""

from __future__ import annotations

from typing import NamedTuple

# Rows of a tile: the partitions of a core.
TILE = 128


class LinearTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        position_block: positions whose operands are on chip at a time, whole tiles of 128.
        class_block: classes of a core that are worked on at a time, whole tiles of 128; at most 512 in the forward.
    """

    position_block: int
    class_block: int
