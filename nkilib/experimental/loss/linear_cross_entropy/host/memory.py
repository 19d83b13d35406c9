# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bytes of HBM that the kernels take beyond their inputs and outputs: arithmetic only.

- The forward takes none.
- The backward keeps a float32 sum of dX for each core, and where the positions take several blocks a float32 sum of dW
  of one class block for each core, of at most 64 MiB.
- The backward of more than 65,536 positions processes them in parts: its sums of dX are those of a part. Besides them
  it keeps dX of a part, and a float32 sum of dW if dW is not float32 itself.
- Loss and gradients in a single launch keep the float32 logits of a block of positions and the sums of dX, and if there
  are several blocks a float32 sum of dW.
- With a ``compute_dtype``, gradients take a copy of an X of another type. W and the bias are never copied.

The logits of all positions and classes are kept only in a single launch, where they take no more than the logits of a
block and the sum of dW may take.
"""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.host.memory import backward_bytes
from nkilib.experimental.loss.linear.shared.sizes import position_parts

# The default number of bytes that one launch may take for logits.
SCRATCH_BYTES = 512 * 2**20


class LogitsBlocks(NamedTuple):
    """The blocks of positions of a fused forward-backward launch.

    Attributes:
        positions: the positions of a block, whole tiles of 128 except for the last block.
        number: the number of blocks.
    """

    positions: int
    number: int


class FormBytes(NamedTuple):
    """The bytes of HBM beyond inputs and outputs that a training step takes as two launches, and as one.

    Attributes:
        two_launches: the bytes of separate forward and backward launches: the larger of the two.
        one_launch: the bytes of a single launch of both.
    """

    two_launches: int
    one_launch: int


def logits_blocks(
    num_positions: int, num_features: int, vocab_size: int, scratch_bytes: int = SCRATCH_BYTES
) -> LogitsBlocks:
    """Return the blocks of positions whose logits one launch keeps.

    There is one block if its logits take no more than ``scratch_bytes`` plus the sum of dW that several blocks need;
    otherwise the fewest blocks whose logits fit ``scratch_bytes``, as equal as tiles of 128 positions can be. Very many
    positions are several blocks however few classes there are.

    Args:
        num_positions: N.
        num_features: D.
        vocab_size: V.
        scratch_bytes: the bytes that logits may take, at least the logits of 128 positions.
    """
    of_position, parts = FLOAT32_BYTES * vocab_size, position_parts(num_positions, num_features)
    fits = num_positions * of_position <= scratch_bytes + FLOAT32_BYTES * vocab_size * num_features
    if fits and not parts.is_split:
        return LogitsBlocks(num_positions, 1)
    tiles = div_ceil(num_positions, PARTITIONS)
    blocks = div_ceil(tiles, max(1, min(scratch_bytes // of_position, parts.size) // PARTITIONS))
    of_block = div_ceil(tiles, blocks)
    return LogitsBlocks(of_block * PARTITIONS, div_ceil(tiles, of_block))


def one_launch_bytes(
    num_positions: int, num_features: int, vocab_size: int, scratch_bytes: int = SCRATCH_BYTES, cores: int = 2
) -> int:
    """Return the bytes that ``linear_cross_entropy_forward_backward`` takes on ``cores`` cores.

    See :func:`logits_blocks` for the other arguments.
    """
    blocks = logits_blocks(num_positions, num_features, vocab_size, scratch_bytes)
    logits = blocks.positions * vocab_size
    weight_sum = vocab_size * num_features if blocks.number > 1 else 0
    return FLOAT32_BYTES * (cores * num_positions * num_features + logits + weight_sum)


def form_bytes(
    num_positions: int,
    num_features: int,
    vocab_size: int,
    position_block: int,
    class_block: int,
    *,
    scratch_bytes: int = SCRATCH_BYTES,
    cores: int = 2,
) -> FormBytes:
    """Return the bytes for two launches and for one.

    See :func:`backward_bytes` and :func:`logits_blocks` for the arguments.
    """
    return FormBytes(
        backward_bytes(num_positions, num_features, position_block, class_block, cores=cores),
        one_launch_bytes(num_positions, num_features, vocab_size, scratch_bytes, cores),
    )
