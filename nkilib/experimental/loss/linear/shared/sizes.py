# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sizes of a tiling: blocks and parts of positions, blocks of classes, and staging memory."""

from __future__ import annotations

from typing import Final, NamedTuple

from nkilib.core.plan_limits import limited_positions
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil

# Bytes of a partition that kernels may use. nkilib/simulator/hardware has them too, but is not needed on a device.
SBUF_BYTES: Final = {"trn2": 212_984, "trn3": 245_752}
# Blocks of classes whose statistics are combined at once; an iteration of a loop has whole windows.
WINDOW = 4
# Gradients of more positions are computed in parts, because per-position values take SBUF. A part has at most so many
# positions, and so many elements of X: its program stays short enough for two copies.
POSITIONS_UNSPLIT = 65536
_POSITIONS_OF_PART, _ELEMENTS_OF_PART = 16384, 4096 * 8192
# An operand of another type than the products is transposed into tiles of STAGED_ELEMENTS elements per partition, of
# which there are STAGES, and cast from there.
STAGED_ELEMENTS, STAGES = 1024, 4
# Target ids that Vector looks for at a time, and how many of them there may be in each partition for all positions of a
# part: they stay, three numbers each.
IDS_OF_SEARCH, _IDS_OF_PART = 8, 2048


def searched_ids(ids: int) -> int:
    """Return the number of target ids per position, rounded up to a multiple of the eight that one search finds."""
    return div_ceil(ids, IDS_OF_SEARCH) * IDS_OF_SEARCH


class LinearTiling(NamedTuple):
    """The tiling of a launch; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        position_block: positions whose operands are on chip at a time, whole tiles of 128.
        class_block: classes of a core that are worked on at a time, whole tiles of 128; at most 512 in the forward.
    """

    position_block: int
    class_block: int


class PositionPlan(NamedTuple):
    """The split of the positions into ``whole`` blocks of ``size`` positions, and a rest.

    Attributes:
        size: positions of a block, whole tiles.
        whole: the number of blocks of that size.
        rest: positions of a further block; may be 0.
        is_loop: the whole blocks are iterations of a device loop.
    """

    size: int
    whole: int
    rest: int
    is_loop: bool

    @property
    def tiles(self) -> int:
        """The number of tiles of a block."""
        return self.size // PARTITIONS

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return self.whole + (self.rest > 0)

    @property
    def copies(self) -> int:
        """The number of copies of a block of positions in the program."""
        return 1 + (self.rest > 0) if self.is_loop else self.blocks


class PositionParts(NamedTuple):
    """The split of the positions of a backward into ``whole`` parts of ``size`` positions, and a rest.

    The gradients are computed one part after another.

    Attributes:
        size: positions of a part; whole tiles if there are several parts.
        whole: the number of parts of that size.
        rest: positions of a further part; may be 0.
    """

    size: int
    whole: int
    rest: int

    @property
    def is_split(self) -> bool:
        """Whether there are several parts."""
        return self.whole + (self.rest > 0) > 1

    @property
    def copies(self) -> int:
        """The number of copies of a part in the program: all whole parts are a device loop."""
        return 1 + (self.rest > 0)


def position_parts(
    num_positions: int, num_features: int, ids: int = 1, unsplit: int = POSITIONS_UNSPLIT
) -> PositionParts:
    """Return the parts that the positions are split into: one, or for many positions the fewest short enough.

    Parts are as equal as tiles of 128 positions can be. With several target ids per position a part has fewer
    positions. At most ``unsplit`` positions are one part.
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
    """Bytes of an element of each operand that is rounded to the type of the products while it is loaded; else 0.

    DMA casts data that it copies. It does not cast data that it transposes: that takes staging memory in SBUF.

    Attributes:
        input, weight: the bytes of X and of W.
    """

    input: int = 0
    weight: int = 0

    def forward_staging(self, has_classes_first: bool) -> int:
        """Return the bytes per partition to stage X on its way to X^T, and W if it is [V, D]."""
        return _staging_bytes(max(self.input, self.weight if has_classes_first else 0))

    def backward_staging(self, has_classes_first: bool, keeps_logits: bool = False) -> int:
        """Return the bytes per partition to stage W.

        W is staged on its way to W^T if it is [V, D] and the logits are not kept, and on its way to W if it is [D, V].
        X is rounded beforehand.
        """
        return 0 if has_classes_first and keeps_logits else _staging_bytes(self.weight)


def _staging_bytes(itemsize: int) -> int:
    return STAGES * STAGED_ELEMENTS * itemsize
