# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Problem sizes, passes and tunings of the measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks._inputs import DTYPES

# Timed runs of each contender, unless the command line says otherwise.
FEWEST_RUNS = 7


@dataclass(frozen=True)
class Tuning:
    """The two tuning parameters of the kernels.

    Attributes:
        positions: positions_per_batch, rows that are processed together.
        chunk: chunk_size, columns of one tile.
    """

    positions: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.positions} x {self.chunk}"


@dataclass(frozen=True)
class Case:
    """A problem size.

    Attributes:
        rows: N.
        vocabulary: V.
        dtype_name: dtype of logits, tiles and results: a key of ``benchmarks._inputs.DTYPES``.
    """

    rows: int
    vocabulary: int
    dtype_name: str

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.dtype_name]

    @property
    def logits_bytes(self) -> int:
        return self.rows * self.vocabulary * self.dtype.itemsize

    def __str__(self) -> str:
        return f"({self.rows}, {self.vocabulary}) {self.dtype_name}"


def cases(quick: bool) -> list[Case]:
    """The problem sizes of cross-entropy that are timed."""
    sizes = [(16, 3000), (8, 5003)] if quick else [(1024, 32128), (512, 129280)]
    return [Case(rows, vocabulary, dtype) for rows, vocabulary in sizes for dtype in ("bf16", "fp32")]
