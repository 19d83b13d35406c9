# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy as it is measured: sizes, tunings, and the launches of its kernels.

The launches have two simulated cores, a float32 log-sum-exp, and the gradient of the mean loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._inputs import BF16, DTYPES, FP32
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nl
from nkilib.simulator import Profile, profile

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


CORES = 2
NKI_DTYPES = {BF16: nl.bfloat16, FP32: nl.float32}


def forward(logits: np.ndarray, targets: np.ndarray, tuning: Tuning) -> tuple[np.ndarray, np.ndarray]:
    """Loss [N] in the logits' dtype and log-sum-exp [N] in float32."""
    return cross_entropy_forward[CORES](logits, targets, **_forward_options(logits, tuning))


def profile_forward(logits: np.ndarray, targets: np.ndarray, tuning: Tuning) -> Profile:
    """The model's account of :func:`forward`, which runs too."""
    return profile(cross_entropy_forward[CORES], logits, targets, **_forward_options(logits, tuning))


def _forward_options(logits: np.ndarray, tuning: Tuning) -> dict[str, Any]:
    return {
        "positions_per_batch": tuning.positions,
        "chunk_size": tuning.chunk,
        "dtype": NKI_DTYPES[logits.dtype],
        "lse_dtype": nl.float32,
    }


def backward(logits: np.ndarray, targets: np.ndarray, lse: np.ndarray, tuning: Tuning, inplace: bool) -> np.ndarray:
    """Gradient [N, V] in the logits' dtype; ``logits`` itself if ``inplace``."""
    return cross_entropy_backward[CORES](
        logits,
        targets,
        lse,
        reduction="mean",
        positions_per_batch=tuning.positions,
        chunk_size=tuning.chunk,
        dtype=NKI_DTYPES[logits.dtype],
        inplace=inplace,
    )
