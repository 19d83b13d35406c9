# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of rows into chunks, and of chunks into groups: arithmetic only, for host code and kernels.

V classes; *rows* are the positions, or parts of them, a *chunk* is some columns of a row.
:func:`choose_distillation_tiling` chooses the number of partitions of a position, and :func:`tiling_of` the size of
chunks. For Jensen-Shannon, :func:`mixture_plan` tells how the forward keeps or reloads its chunks, and
:func:`gradient_group` how many of them the backward processes at a time.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from nkilib.core.cores import positions_of_core
from nkilib.core.hardware import PARTITIONS, SPLITS, div_ceil
from nkilib.core.plan_limits import limited_sbuf_bytes

# The maximum columns of a chunk: more gain nothing.
MOST_COLUMNS = 4096
# Columns of a piece, whose exponentials go through PSUM in a gradient: two pieces fill it.
PIECE_COLUMNS = 2048
# Chunks of each tensor that are being loaded or wait for it. Further buffers are for chunks that are being worked on.
IN_FLIGHT = 3
# Bytes of a partition for chunks; per-row scalars have the rest.
_CHUNK_BYTES, _FLOAT32_BYTES = 190_000, 4
# Of Jensen-Shannon's forward: bytes of a partition for rows that are kept and all else of a chunk's size; columns of a
# chunk, two of whose float32 tiles leave room in PSUM; chunks on chip beside those of a row.
_KEPT_BYTES, KEPT_COLUMNS, SPARE_CHUNKS = 201_000, 1408, 1
# Chunks that the gradient of Jensen-Shannon takes at a time.
_LEAST_GROUP, _MOST_GROUP = 2, 8
# Sizes are rounded up to multiples of this.
_ROUND = 128
# Chunks of a part of a position, if they have so many columns at least, and the most columns of a chunk.
_PIECES, _PIECE_MIN, _PIECE_MAX = 4, 512, 2048
# Columns of a row whose maximum is its shift, if it lies on one partition.
SAMPLE_COLUMNS = 512
# The least columns of each partition of a position. Kernels are launched on the two cores of a logical NeuronCore. The
# bytes of a pair of bfloat16.
_PART_MIN, _CORES, _SHORT_PAIR = 128, 2, 4


class _Times(NamedTuple):
    """The modelled nanoseconds of a launch on trn2: of its start and end, of each batch, and of a column of a batch."""

    launch: float
    batch: float
    column: float


# By form and types (is one longer than bfloat16?): positions on one partition, and on several. Fitted to profiles of
# launches of 2 to 1,100 positions; of both Kullback-Leibler divergences, the slower one on several partitions.
_TIMES = {
    ("KL", False): (_Times(12_000, 5_000, 1.72), _Times(3_000, 11_000, 3.45)),
    ("KL", True): (_Times(12_000, 5_000, 2.85), _Times(3_000, 11_000, 3.7)),
    ("gradient of a KL", False): (_Times(7_000, 2_500, 2.27), _Times(5_000, 4_500, 2.7)),
    ("gradient of a KL", True): (_Times(7_000, 2_500, 4.2), _Times(5_000, 4_500, 4.2)),
    ("mixture", False): (_Times(4_000, 22_000, 5.5), _Times(0, 28_000, 8.8)),
    ("mixture", True): (_Times(4_000, 22_000, 6.0), _Times(0, 28_000, 10.0)),
    ("gradient of a mixture", False): (_Times(7_000, 2_500, 2.27), _Times(5_000, 4_500, 2.8)),
    ("gradient of a mixture", True): (_Times(7_000, 2_500, 4.2), _Times(5_000, 4_500, 4.4)),
}
# Of the loop over recomputed rows, though no row is recomputed; of the columns that only a last part has.
_RECOMPUTATION, _TAIL = 31_000.0, 1_800.0


class DistillationTiling(NamedTuple):
    """The tiling of a launch; pass it as ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: the number of vocabulary entries of a partition that are processed at a time.
        partitions_per_position: the number of partitions that a position lies on; a launch with fewer classes has one.
    """

    chunk_size: int
    partitions_per_position: int = 1


class Form(Enum):
    """The forms of the kernels, which differ in the number of tiles that they keep on chip besides the logits.

    ``DIVERGENCE`` is the form of both kernels of a Kullback-Leibler divergence, ``MIXTURE`` and ``MIXTURE_GRADIENT``
    those of forward and backward of Jensen-Shannon.
    """

    DIVERGENCE = "a Kullback-Leibler divergence or its gradient"
    MIXTURE = "Jensen-Shannon"
    MIXTURE_GRADIENT = "the gradient of Jensen-Shannon"

    @classmethod
    def of(cls, is_mixed: bool, is_backward: bool) -> Form:
        """Return the form of a launch; ``is_mixed`` is true for Jensen-Shannon, ``is_backward`` for the gradient."""
        if not is_mixed:
            return cls.DIVERGENCE
        return cls.MIXTURE_GRADIENT if is_backward else cls.MIXTURE


def _bytes_of_group(group: int, bytes_of_pair: int) -> int:
    return (IN_FLIGHT + group + 1) * bytes_of_pair + (group + 4) * _FLOAT32_BYTES + 2


def _even_chunks(vocab_size: int, most: int) -> int:
    even = div_ceil(vocab_size, div_ceil(vocab_size, most))
    return min(most, div_ceil(even, _ROUND) * _ROUND)


def most_columns(vocab_size: int, bytes_of_pair: int, form: Form) -> int:
    """Return the number of columns of the largest chunk that fits SBUF.

    Args:
        vocab_size: V.
        bytes_of_pair: the bytes of a logit of the student and one of the teacher, on chip.
        form: the form of the kernel.
    """
    of_column = {
        # Three differences, two tiles of weights, and 16-bit numbers that nothing reads.
        Form.DIVERGENCE: (IN_FLIGHT + 2) * bytes_of_pair + 5 * _FLOAT32_BYTES + 2,
        Form.MIXTURE: (2 * IN_FLIGHT + _LEAST_GROUP + 1) * bytes_of_pair + (2 * _LEAST_GROUP + 4) * _FLOAT32_BYTES + 2,
        Form.MIXTURE_GRADIENT: _bytes_of_group(_LEAST_GROUP, bytes_of_pair),
    }[form]
    return min(vocab_size, MOST_COLUMNS, limited_sbuf_bytes(_CHUNK_BYTES) // of_column)


class MixturePlan(NamedTuple):
    """The way in which the forward of Jensen-Shannon processes its chunks.

    Attributes:
        keeps_rows: whether rows stay on chip between their two passes; else they are read twice.
        group: the number of chunks that are processed with one load of the table for softplus.
    """

    keeps_rows: bool
    group: int

    @property
    def lag(self) -> int:
        """The number of chunks by which the next rows' first pass lags behind the second pass of the current ones.

        A chunk of the next rows must first have been loaded in place of another.
        """
        return SPARE_CHUNKS if self.keeps_rows else 0

    @property
    def weights(self) -> int:
        """The number of tiles for the exponentials that are multiplied.

        If rows are kept, only PSUM has room for these tiles.
        """
        return 2 if self.keeps_rows else 3


def mixture_plan(vocab_size: int, chunk_size: int, bytes_of_pair: int) -> MixturePlan:
    """Return the plan of the forward: rows are kept on chip if they fit together with groups of at least two chunks.

    Args:
        vocab_size: V.
        chunk_size: the number of columns of a chunk.
        bytes_of_pair: the bytes of a logit of the student and one of the teacher, on chip.
    """
    chunks, kept_bytes = div_ceil(vocab_size, chunk_size), limited_sbuf_bytes(_KEPT_BYTES)

    def fits(keeps_rows: bool, group: int) -> bool:
        scratch = (2 * group + 1) * _FLOAT32_BYTES + 2
        if keeps_rows:
            of_column = (chunks + SPARE_CHUNKS) * bytes_of_pair + scratch
            return chunk_size <= KEPT_COLUMNS and of_column * chunk_size <= kept_bytes
        of_column = (2 * IN_FLIGHT + group + 1) * bytes_of_pair + scratch + 3 * _FLOAT32_BYTES
        return of_column * chunk_size <= kept_bytes

    plans = [
        MixturePlan(keeps_rows, group)
        for keeps_rows in (True, False)
        for group in range(_MOST_GROUP, _LEAST_GROUP - 1, -1)
        if fits(keeps_rows, group)
    ]
    return plans[0] if plans else MixturePlan(False, _LEAST_GROUP)


def gradient_group(chunk_size: int, bytes_of_pair: int) -> int:
    """Return the number of chunks that Jensen-Shannon's gradient processes at a time.

    It is the largest number that fits, because a change of the activation function costs time.
    """
    fitting = [
        group
        for group in range(_LEAST_GROUP, _MOST_GROUP + 1)
        if _bytes_of_group(group, bytes_of_pair) * chunk_size <= limited_sbuf_bytes(_CHUNK_BYTES)
    ]
    return max(fitting, default=_LEAST_GROUP)


def part_columns(vocab_size: int, parts: int) -> int:
    """Return the number of columns of the longest part, the last one, of a position on ``parts`` partitions."""
    return vocab_size - (parts - 1) * (vocab_size // parts)


def tiling_of(vocab_size: int, bytes_of_pair: int, form: Form, parts: int) -> DistillationTiling:
    """Return the tiling of positions on ``parts`` partitions, or on one if they have fewer classes than that.

    It depends only on the arguments, so that the bits of a row's results do not depend on other rows.
    """
    if vocab_size < parts:
        parts = 1
    columns = part_columns(vocab_size, parts)
    kept = _even_chunks(columns, min(columns, KEPT_COLUMNS))
    if form is Form.MIXTURE and mixture_plan(columns, kept, bytes_of_pair).keeps_rows:
        return DistillationTiling(kept, parts)
    most = most_columns(columns, bytes_of_pair, form)
    if parts > 1:
        most = min(most, _PIECE_MAX, max(_PIECE_MIN, div_ceil(columns, _PIECES)))
    return DistillationTiling(_even_chunks(columns, most), parts)


def _parts_of(num_positions: int, vocab_size: int, bytes_of_pair: int, is_mixed: bool, is_backward: bool) -> int:
    """Return the number of partitions of a position with which a launch on two cores is modelled to be fastest."""
    name = ("gradient of a " if is_backward else "") + ("mixture" if is_mixed else "KL")
    positions, times = positions_of_core(num_positions, _CORES, 0), _TIMES[name, bytes_of_pair > _SHORT_PAIR]

    def estimate(parts: int) -> float:
        of_launch, of_batch, of_column = times[parts > 1]
        if parts == 1 and not is_backward:
            of_launch += _RECOMPUTATION
        if vocab_size % parts:
            of_launch += _TAIL
        batches = div_ceil(positions, PARTITIONS // parts)
        return of_launch + batches * (of_batch + of_column * part_columns(vocab_size, parts))

    if vocab_size <= SAMPLE_COLUMNS:
        return 1
    return min((1, *(parts for parts in SPLITS if vocab_size // parts >= _PART_MIN)), key=estimate)


def choose_distillation_tiling(
    vocab_size: int,
    bytes_of_pair: int,
    is_mixed: bool,
    is_backward: bool = False,
    num_positions: int | None = None,
) -> DistillationTiling:
    """Return the tiling with which a launch is modelled to be fastest on two cores: chunks are nearly equal.

    Args:
        vocab_size: V.
        bytes_of_pair: the bytes of a logit of the student and one of the teacher, on chip, where float16 takes four.
        is_mixed: whether beta is neither 0 nor 1.
        is_backward: whether the tiling is for the gradient.
        num_positions: N, on which the number of partitions of a position depends; None for one partition, with which
            the bits of a row's results do not depend on N.
    """
    parts = 1
    if num_positions is not None:
        parts = _parts_of(num_positions, vocab_size, bytes_of_pair, is_mixed, is_backward)
    return tiling_of(vocab_size, bytes_of_pair, Form.of(is_mixed, is_backward), parts)
