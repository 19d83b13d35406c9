# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bytes of HBM of the backward of an output layer beyond inputs and outputs."""

from __future__ import annotations

from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.experimental.loss.linear.shared.sizes import LinearTiling, PositionParts


def backward_bytes(
    num_positions: int, num_features: int, position_block: int, class_block: int, *, cores: int = 2
) -> int:
    """Return the bytes of HBM that a backward takes at most for positions that are not split into parts.

    Args:
        num_positions: N.
        num_features: D.
        position_block, class_block: the tiling.
        cores: the number of cores of the launch.
    """
    weight_sum = class_block * num_features if num_positions > position_block else 0
    return FLOAT32_BYTES * cores * (num_positions * num_features + 2 * weight_sum)


def split_backward_bytes(
    parts: PositionParts,
    num_features: int,
    vocab_size: int,
    tiling: LinearTiling,
    *,
    input_itemsize: int,
    has_weight_sum: bool,
    cores: int = 2,
) -> int:
    """Return the bytes of HBM that a backward takes at most for positions that are split into parts.

    Args:
        parts: the parts of the positions.
        num_features: D.
        vocab_size: V.
        tiling: the tiling of a part.
        input_itemsize: bytes of an element of dX.
        has_weight_sum: whether dW is float32, or added to a float32 sum.
        cores: the number of cores of the launch.
    """
    sizes = (parts.size, parts.rest) if parts.rest > 0 else (parts.size,)
    of_parts = sum(backward_bytes(size, num_features, *tiling, cores=cores) for size in sizes)
    weight_sum = 0 if has_weight_sum else vocab_size * num_features
    of_bias = parts.copies * vocab_size
    return of_parts + input_itemsize * parts.size * num_features + FLOAT32_BYTES * (weight_sum + of_bias)
