"""How a forward cuts up positions, and which classes its cores share: arithmetic that does not depend on the loss."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.plan_limits import limited_positions
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.sizes import POSITIONS_UNSPLIT, TILE, PositionPlan

# Blocks of classes that the cores share, at most.
SHARED_BLOCKS_MAX = 4


class SwapTimes(NamedTuple):
    """How long the cores take for a swap, and a load until its first byte is there, in us."""

    swap: float
    load: float


def unrolled_positions(num_positions: int, position_block: int) -> PositionPlan:
    """Blocks of about equal size of at most ``position_block`` positions, whole tiles, and no loop."""
    tiles = div_ceil(num_positions, TILE)
    count = div_ceil(tiles, min(position_block // TILE, tiles))
    size = div_ceil(tiles, count) * TILE
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
    classes = div_ceil(int(times.swap / of_class), TILE) * TILE
    return classes - TILE + 1 if 8 * classes <= vocab_size else 0


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
    return max(0, min(override, vocab_size - TILE))
