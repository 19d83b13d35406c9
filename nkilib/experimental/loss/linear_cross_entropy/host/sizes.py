"""What a tiling is."""

from __future__ import annotations

from typing import NamedTuple

# Rows of a tile: the partitions of a core.
TILE = 128
# An operand of another type than that of the products is transposed into tiles of so many elements a partition, of
# which there are so many, and cast from there.
STAGED_ELEMENTS, STAGES = 1024, 4


class LinearTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        position_block: positions whose operands are on chip at a time, whole tiles of 128.
        class_block: classes of a core that are worked on at a time, whole tiles of 128; at most 512 in the forward.
    """

    position_block: int
    class_block: int


class CastBytes(NamedTuple):
    """Bytes of an element of the operands that are rounded to the type of the products on their way; else 0.

    DMA casts what it copies. What it transposes it does not cast: that takes room in SBUF.

    Attributes:
        input, weight: X and W.
    """

    input: int = 0
    weight: int = 0

    def forward_staging(self, has_classes_first: bool) -> int:
        """Bytes of a partition for X on its way to X^T, and for W where it is [V, D]."""
        return _staging_bytes(max(self.input, self.weight if has_classes_first else 0))

    def backward_staging(self, has_classes_first: bool, keeps_logits: bool = False) -> int:
        """Likewise for W: to W^T where it is [V, D] and there are no logits yet, to W where it is [D, V].

        X is rounded beforehand.
        """
        return 0 if has_classes_first and keeps_logits else _staging_bytes(self.weight)


def _staging_bytes(itemsize: int) -> int:
    return STAGES * STAGED_ELEMENTS * itemsize
