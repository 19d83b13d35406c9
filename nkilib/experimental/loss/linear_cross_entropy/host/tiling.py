"""How a launch of the linear cross-entropy kernels is cut up: arithmetic only."""

from __future__ import annotations

from typing import NamedTuple


class LinearTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        position_block: positions whose operands are on chip at a time, whole tiles of 128.
        class_block: classes of a core that are worked on at a time, whole tiles of 128; at most 512 in the forward.
    """

    position_block: int
    class_block: int
