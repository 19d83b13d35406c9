"""The kernels as the measurements call them: two simulated cores, float32 log-sum-exp, gradient of the mean loss."""

from __future__ import annotations

import numpy as np

from benchmarks._cases import Tuning
from benchmarks._inputs import BF16, FP32
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nl

CORES = 2
_NKI_DTYPES = {BF16: nl.bfloat16, FP32: nl.float32}


def forward(logits: np.ndarray, targets: np.ndarray, tuning: Tuning) -> tuple[np.ndarray, np.ndarray]:
    """Loss [N] in the logits' dtype and log-sum-exp [N] in float32."""
    return cross_entropy_forward[CORES](
        logits,
        targets,
        positions_per_batch=tuning.positions,
        chunk_size=tuning.chunk,
        dtype=_NKI_DTYPES[logits.dtype],
        lse_dtype=nl.float32,
    )


def backward(logits: np.ndarray, targets: np.ndarray, lse: np.ndarray, tuning: Tuning, inplace: bool) -> np.ndarray:
    """Gradient [N, V] in the logits' dtype; ``logits`` itself if ``inplace``."""
    return cross_entropy_backward[CORES](
        logits,
        targets,
        lse,
        reduction="mean",
        positions_per_batch=tuning.positions,
        chunk_size=tuning.chunk,
        dtype=_NKI_DTYPES[logits.dtype],
        inplace=inplace,
    )
