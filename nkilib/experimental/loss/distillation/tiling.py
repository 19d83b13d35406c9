# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of rows into chunks, and of chunks into groups: arithmetic only, for host code and kernels.

V classes; *rows* are the positions, a *chunk* is some columns of a row. :func:`choose_distillation_tiling` chooses the
size of chunks. For Jensen-Shannon, :func:`mixture_plan` tells how the forward keeps or reloads its chunks, and
:func:`gradient_group` how many of them the backward processes at a time.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from nkilib.core.hardware import div_ceil
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


class DistillationTiling(NamedTuple):
    """The tiling of a launch; pass it as ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: the number of vocabulary entries that are processed at a time.
    """

    chunk_size: int


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
    # Logits, differences of group + 2 chunks, two tiles of weights, and 16-bit numbers.
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


def choose_distillation_tiling(
    vocab_size: int, bytes_of_pair: int, is_mixed: bool, is_backward: bool = False
) -> DistillationTiling:
    """Return the size of the chunks of a row, which are nearly equal.

    It depends only on the arguments, so that the bits of a row's results do not depend on other rows.

    Args:
        vocab_size: V.
        bytes_of_pair: the bytes of a logit of the student and one of the teacher, on chip, where float16 takes four.
        is_mixed: whether beta is neither 0 nor 1.
        is_backward: whether the tiling is for the gradient.
    """
    form = Form.of(is_mixed, is_backward)
    kept = _even_chunks(vocab_size, min(vocab_size, KEPT_COLUMNS))
    if form is Form.MIXTURE and mixture_plan(vocab_size, kept, bytes_of_pair).keeps_rows:
        return DistillationTiling(kept)
    return DistillationTiling(_even_chunks(vocab_size, most_columns(vocab_size, bytes_of_pair, form)))
