# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of a forward's tiling, the same for any loss: arithmetic only.

:func:`fastest_tiling` searches the blocks of positions and classes that fit SBUF for those with the least estimated
time, which a loss computes from its sizes (:class:`TiledSizes`). :func:`shared_classes` tells how many of the last
classes both cores work on, so that they swap their statistics meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.linear.launch import LinearTiling

# The largest number of blocks of classes that the cores share.
SHARED_BLOCKS_MAX = 4
# Possible numbers of classes of a block; the largest fills a bank of PSUM.
CLASS_BLOCKS = (512, 384, 256, 128)
# Beyond so many tiles of positions nothing is gained, and statistics take too much.
POSITION_TILES_MAX = 64


class TiledSizes(Protocol):
    """The sizes of a forward that the search for a tiling needs."""

    @property
    def position_tiles(self) -> int:
        """The number of tiles of positions."""

    def bytes_of(self, tiles: int, class_block: int) -> int:
        """Return the bytes per partition of SBUF for blocks of ``tiles`` position tiles and ``class_block`` classes."""

    def time_us(self, tiles: int, class_block: int) -> float:
        """Return the approximate time of the launch in us."""


def fastest_tiling(sizes: TiledSizes, sbuf_bytes: int) -> LinearTiling:
    """Return the tiling that is modelled to be fastest of those that fit ``sbuf_bytes`` bytes of a partition."""
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
    """The time of a swap of the cores' statistics, and of a load until its first byte arrives, in us."""

    swap: float
    load: float


def shared_classes(of_class: float, load: float, class_block: int, vocab_size: int, times: SwapTimes) -> int:
    """Return how many of the last classes the cores share, so that their products take longer than a swap does.

    It is 0 where a block of them would be multiplied before the next one is loaded, or where they would be more than
    an eighth of the classes.

    Args:
        of_class: the time of the products of a class, in us, for half the positions of a block.
        load: the time to load the weights of a class, in us.
        class_block: the number of classes of a block.
        vocab_size: the number of all classes.
        times: the times of the device.
    """
    if class_block * (of_class - load) < times.load:
        return 0
    classes = div_ceil(int(times.swap / of_class), PARTITIONS) * PARTITIONS
    return classes - PARTITIONS + 1 if 8 * classes <= vocab_size else 0


def shared_by_override(function: str, override: int, class_block: int, vocab_size: int) -> int:
    """Return the number of shared classes that a test requests, reduced so that at least 128 classes are not shared.

    Raises:
        ValueError: if the statistics have no columns for so many.
    """
    most = SHARED_BLOCKS_MAX * class_block
    if override > most:
        raise ValueError(
            f"{function}: PlanLimits.shared_classes must be at most {SHARED_BLOCKS_MAX} blocks of {class_block} "
            f"classes, for which the statistics have room, got {override}; give at most {most}"
        )
    return max(0, min(override, vocab_size - PARTITIONS))
