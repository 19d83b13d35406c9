# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How a forward cuts up positions, and which classes its cores share: arithmetic that does not depend on the loss."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from nkilib.core.plan_limits import limited_positions
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.sizes import POSITIONS_UNSPLIT, LinearTiling, PositionPlan

# Blocks of classes that the cores share, at most.
SHARED_BLOCKS_MAX = 4
# Classes of a block, of which the largest fills a bank of PSUM.
CLASS_BLOCKS = (512, 384, 256, 128)
# Beyond so many tiles of positions nothing is gained, and statistics take too much.
POSITION_TILES_MAX = 64


class TiledSizes(Protocol):
    """What a forward is about, as far as the search for a tiling asks."""

    @property
    def position_tiles(self) -> int:
        """Tiles of positions."""

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Bytes of a partition of SBUF for blocks of so many tiles of positions, and of so many classes."""

    def time_us(self, tiles: int, class_block: int) -> float:
        """About how long the launch takes."""


def fastest_tiling(sizes: TiledSizes, sbuf_bytes: int) -> LinearTiling:
    """The tiling that is modelled to be fastest of those that fit so many bytes of a partition."""
    best, least_us = LinearTiling(PARTITIONS, PARTITIONS), float("inf")
    for class_block in CLASS_BLOCKS:
        for tiles in range(min(sizes.position_tiles, POSITION_TILES_MAX), 0, -1):
            if sizes.bytes_of(tiles, class_block) > sbuf_bytes:
                continue
            time_us = sizes.time_us(tiles, class_block)
            if time_us < least_us:
                best, least_us = LinearTiling(tiles * PARTITIONS, class_block), time_us
    return best


class SwapTimes(NamedTuple):
    """How long the cores take for a swap, and a load until its first byte is there, in us."""

    swap: float
    load: float


def unrolled_positions(num_positions: int, position_block: int) -> PositionPlan:
    """Blocks of about equal size of at most ``position_block`` positions, whole tiles, and no loop."""
    tiles = div_ceil(num_positions, PARTITIONS)
    count = div_ceil(tiles, min(position_block // PARTITIONS, tiles))
    size = div_ceil(tiles, count) * PARTITIONS
    return PositionPlan(size, *divmod(num_positions, size), False)


def looped_positions(unrolled: PositionPlan, num_positions: int, is_long: bool) -> PositionPlan:
    """The plan with a loop of the device where its program is too long, or where there are very many positions."""
    has_many = num_positions > limited_positions(POSITIONS_UNSPLIT)
    return unrolled._replace(is_loop=unrolled.whole > 1 and (is_long or has_many))


def shared_classes(of_class: float, load: float, class_block: int, vocab_size: int, times: SwapTimes) -> int:
    """How many of the last classes the cores share: their products take longer than a swap does.

    None where a block of them would be multiplied before the next one is loaded, or where they are too many.

    Args:
        of_class: how long the products of a class take, in us, of half the positions of a block.
        load: how long the weights of a class take to be loaded, in us.
        class_block: classes of a block.
        vocab_size: all classes.
        times: of the device.
    """
    if class_block * (of_class - load) < times.load:
        return 0
    classes = div_ceil(int(times.swap / of_class), PARTITIONS) * PARTITIONS
    return classes - PARTITIONS + 1 if 8 * classes <= vocab_size else 0


def shared_by_override(function: str, override: int, class_block: int, vocab_size: int) -> int:
    """So many classes as a test asks for, or as many as leave a tile to the cores' own.

    Raises:
        ValueError: there are no statistics for so many.
    """
    most = SHARED_BLOCKS_MAX * class_block
    if override > most:
        raise ValueError(
            f"{function}: PlanLimits.shared_classes must be at most {SHARED_BLOCKS_MAX} blocks of {class_block} "
            f"classes, of which statistics have room, got {override}; give at most {most}"
        )
    return max(0, min(override, vocab_size - PARTITIONS))
