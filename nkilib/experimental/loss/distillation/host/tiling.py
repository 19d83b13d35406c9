"""How rows are cut into chunks: arithmetic only, for host code."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.tiling import div_ceil

# Columns of a chunk at most: more gain nothing.
MOST_COLUMNS = 4096
# Columns of a piece, whose exponentials go through PSUM: two pieces fill it, or leave room for rows that are computed
# anew.
PIECE_COLUMNS, PIECE_COLUMNS_BESIDE_ROWS = 2048, 1536
# Chunks of each tensor that are being loaded or wait for it. Further buffers are for chunks that are being worked on.
IN_FLIGHT = 3
# Buffers of each tensor, and scratch of a chunk's size, in bytes of a column, of a Kullback-Leibler divergence: three
# differences, two tiles of weights, and 16-bit numbers that nothing reads; and of Jensen-Shannon: two of four kinds.
_BUFFERS_OF_KL, _SCRATCH_OF_KL = 5, 22
_BUFFERS_OF_MIXTURE, _SCRATCH_OF_MIXTURE = 4, 34
# Bytes of a partition that chunks take; numbers of rows have the rest.
_CHUNK_BYTES = 190_000
# What sizes are rounded up to.
_ROUND = 128


class DistillationTiling(NamedTuple):
    """How a launch is cut up; ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: entries of the vocabulary that are worked on at a time.
    """

    chunk_size: int


def most_columns(vocab_size: int, bytes_of_pair: int, is_mixed: bool) -> int:
    """Columns of the largest chunk that fits.

    Args:
        vocab_size: V.
        bytes_of_pair: of a logit of the student and of one of the teacher, on chip.
        is_mixed: of Jensen-Shannon.
    """
    of_column = _BUFFERS_OF_KL * bytes_of_pair + _SCRATCH_OF_KL
    if is_mixed:
        of_column = _BUFFERS_OF_MIXTURE * bytes_of_pair + _SCRATCH_OF_MIXTURE
    return min(vocab_size, MOST_COLUMNS, _CHUNK_BYTES // of_column)


def choose_distillation_tiling(vocab_size: int, bytes_of_pair: int, is_mixed: bool) -> DistillationTiling:
    """Chunks of nearly equal size. They depend on nothing else, so that the bits of a row do not either.

    Args:
        vocab_size, bytes_of_pair, is_mixed: as of :func:`most_columns`.
    """
    most = most_columns(vocab_size, bytes_of_pair, is_mixed)
    even = div_ceil(vocab_size, div_ceil(vocab_size, most))
    return DistillationTiling(min(most, div_ceil(even, _ROUND) * _ROUND))
