"""How a launch of the linear cross-entropy kernels is cut up: arithmetic only."""

from __future__ import annotations

from typing import Any

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import ForwardSizes, choose_forward_tiling
from nkilib.experimental.loss.linear_cross_entropy.host.sizes import LinearTiling

__all__ = ["BACKWARD", "FORWARD", "FORWARD_BACKWARD", "LinearTiling", "choose_linear_tiling"]

FORWARD, BACKWARD, FORWARD_BACKWARD = "forward", "backward", "forward_backward"
_TILE = 128
# Bytes of a partition that kernels may use.
_SBUF_BYTES = {"trn2": 212_984, "trn3": 245_752}


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
    extended: bool = False,
) -> LinearTiling:
    """The tiling with which a kernel is modelled to be fastest, or nearly."""
    del weight_layout
    itemsize = 4 if "32" in str(dtype) else 2
    if direction == FORWARD:
        sizes = ForwardSizes(num_positions, num_features, vocab_size, itemsize, cores, extended)
        return choose_forward_tiling(sizes, _SBUF_BYTES[target])
    column = div_ceil(num_features, _TILE) * itemsize
    class_block = 768 if column <= 128 else 256
    positions = (180_000 - (class_block + 256) * column) // (2 * class_block * itemsize // _TILE)
    positions = min(positions, 4096)
    whole = div_ceil(num_positions, _TILE)
    return LinearTiling(min(whole, max(1, positions // _TILE)) * _TILE, class_block)
