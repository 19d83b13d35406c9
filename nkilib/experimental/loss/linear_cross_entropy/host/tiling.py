"""How a launch of the linear cross-entropy kernels is cut up: arithmetic only."""

from __future__ import annotations

from typing import Any, NamedTuple

from nkilib.core.tiling import div_ceil

FORWARD, BACKWARD, FORWARD_BACKWARD = "forward", "backward", "forward_backward"
_TILE = 128


class LinearTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        position_block: positions whose operands are on chip at a time, whole tiles of 128.
        class_block: classes of a core that are worked on at a time, whole tiles of 128; at most 512 in the forward.
    """

    position_block: int
    class_block: int


def choose_linear_tiling(
    num_positions: int,
    num_features: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    *,
    cores: int = 2,
    target: str = "trn2",
    weight_layout: str = "vd",
) -> LinearTiling:
    """The tiling with which a kernel is modelled to be fastest, or nearly."""
    del vocab_size, cores, target, weight_layout
    itemsize = 4 if "32" in str(dtype) else 2
    column = div_ceil(num_features, _TILE) * itemsize
    if direction == FORWARD:
        class_block = 512 if column <= 64 else 384 if column <= 128 else 128
        positions = (180_000 - 2 * class_block * column) // column
    else:
        class_block = 768 if column <= 128 else 256
        positions = (180_000 - (class_block + 256) * column) // (2 * class_block * itemsize // _TILE)
        positions = min(positions, 4096)
    whole = div_ceil(num_positions, _TILE)
    return LinearTiling(min(whole, max(1, positions // _TILE)) * _TILE, class_block)
