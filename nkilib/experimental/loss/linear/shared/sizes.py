# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a tiling is."""

from __future__ import annotations

from typing import Final, NamedTuple

from nkilib.core.plan_limits import limited_positions
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil

# Bytes of a partition that kernels may use: nkilib/simulator/hardware has them too, which a device does without.
SBUF_BYTES: Final = {"trn2": 212_984, "trn3": 245_752}
# Blocks of classes whose statistics are combined at once; a trip of a loop has whole windows.
WINDOW = 4
# Gradients of more positions are found in parts: what is kept of each position takes SBUF. A part has at most so many
# positions, and so many elements of X: the program of one stays short enough to stand there twice.
POSITIONS_UNSPLIT = 65536
_POSITIONS_OF_PART, _ELEMENTS_OF_PART = 16384, 4096 * 8192
# An operand of another type than that of the products is transposed into tiles of so many elements a partition, of
# which there are so many, and cast from there.
STAGED_ELEMENTS, STAGES = 1024, 4
# Target ids that Vector looks for at a time, and how many of them there may be in each partition for all positions of a
# part: they stay, three numbers each.
IDS_OF_SEARCH, _IDS_OF_PART = 8, 2048


def searched_ids(ids: int) -> int:
    """Target ids of a position, whole searches."""
    return div_ceil(ids, IDS_OF_SEARCH) * IDS_OF_SEARCH


class LinearTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        position_block: positions whose operands are on chip at a time, whole tiles of 128.
        class_block: classes of a core that are worked on at a time, whole tiles of 128; at most 512 in the forward.
    """

    position_block: int
    class_block: int


class PositionPlan(NamedTuple):
    """How the positions are cut up: ``whole`` blocks of ``size`` positions, and a rest.

    Attributes:
        size: positions of a block, whole tiles.
        whole: blocks of that size.
        rest: positions of a further block; may be 0.
        is_loop: the whole blocks are trips of a loop of the device.
    """

    size: int
    whole: int
    rest: int
    is_loop: bool

    @property
    def tiles(self) -> int:
        """Of a block."""
        return self.size // PARTITIONS

    @property
    def blocks(self) -> int:
        """How many."""
        return self.whole + (self.rest > 0)

    @property
    def copies(self) -> int:
        """How often what a block of positions takes stands in the program."""
        return 1 + (self.rest > 0) if self.is_loop else self.blocks


class PositionParts(NamedTuple):
    """How the positions of gradients are cut up: ``whole`` parts of ``size`` positions, and a rest.

    Attributes:
        size: positions of a part; whole tiles where there are several.
        whole: parts of that size.
        rest: positions of a further part; may be 0.
    """

    size: int
    whole: int
    rest: int

    @property
    def is_split(self) -> bool:
        """There are several."""
        return self.whole + (self.rest > 0) > 1

    @property
    def copies(self) -> int:
        """How often a part stands in the program: all whole ones are a loop of the device."""
        return 1 + (self.rest > 0)


def position_parts(
    num_positions: int, num_features: int, ids: int = 1, unsplit: int = POSITIONS_UNSPLIT
) -> PositionParts:
    """One part, or of many positions the fewest parts, as equal as tiles of 128 positions can be.

    Of several target ids of a position a part has fewer positions. At most ``unsplit`` positions are one part.
    """
    limit = limited_positions(unsplit)
    if ids > 1:
        limit = min(limit, _IDS_OF_PART // searched_ids(ids) * PARTITIONS)
    if num_positions <= limit:
        return PositionParts(num_positions, 1, 0)
    most = max(1, min(_POSITIONS_OF_PART, _ELEMENTS_OF_PART // num_features, limit) // PARTITIONS)
    tiles = div_ceil(num_positions, PARTITIONS)
    size = div_ceil(tiles, div_ceil(tiles, most)) * PARTITIONS
    return PositionParts(size, *divmod(num_positions, size))


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
