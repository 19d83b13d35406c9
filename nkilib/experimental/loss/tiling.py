"""Which positions_per_batch and chunk_size to launch the kernels with: arithmetic only, for host code."""

from nkilib.experimental.loss.cross_entropy.host.tiling import (
    CORES,
    POSITIONS_PER_BATCH,
    Tiling,
    choose_tiling,
)

__all__ = [
    "CORES",
    "POSITIONS_PER_BATCH",
    "Tiling",
    "choose_tiling",
]
