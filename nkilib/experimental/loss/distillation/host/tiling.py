"""How rows are cut into chunks: arithmetic only, for host code."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.tiling import div_ceil

# Columns of a chunk at most: two of a pair of float32 logits, with what is computed of them, fill a partition.
MOST_COLUMNS = 4096
# Columns that the exponentials of a piece take of PSUM.
PIECE_COLUMNS = 1024
BUFFERS = 3


class DistillationTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: entries of the vocabulary that are worked on at a time.
    """

    chunk_size: int


def choose_distillation_tiling(vocab_size: int) -> DistillationTiling:
    """Chunks of nearly equal size. It depends on nothing else, so that the bits of a row do not either."""
    chunks = div_ceil(vocab_size, MOST_COLUMNS)
    even = div_ceil(vocab_size, chunks)
    return DistillationTiling(min(vocab_size, div_ceil(even, 128) * 128, MOST_COLUMNS))
