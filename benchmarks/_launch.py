# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels as the measurements call them: two simulated cores, float32 log-sum-exp, gradient of the mean loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks._cases import Tuning
from benchmarks._inputs import BF16, FP32
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nl
from nkilib.simulator import Profile, profile

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
