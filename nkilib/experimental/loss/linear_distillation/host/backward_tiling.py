"""How a backward of two models is cut up: arithmetic only.

The estimate is that of both linear losses (:mod:`nkilib.experimental.loss.linear.host.backward_tiling`), with X^T and
W^T of the teacher in what Tensor and the DMA engines have to do.
"""

from __future__ import annotations

from functools import lru_cache

from nkilib.core.plan_limits import PlanLimits, limited_sbuf_bytes, limits_in_force
from nkilib.experimental.loss.linear.backward_plan import BackwardSizes
from nkilib.experimental.loss.linear.host.backward_tiling import BackwardLaunch, choose_backward_tiling
from nkilib.experimental.loss.linear.sizes import SBUF_BYTES, LinearTiling


def backward_tiling(sizes: BackwardSizes, cores: int, target: str) -> LinearTiling:
    """The tiling of a backward whose sizes and needs are known. Repeated calls are looked up.

    Args:
        sizes: of a part of the positions, where they are split.
        cores: of the launch.
        target: ``"trn2"`` or ``"trn3"``.

    Raises:
        ValueError: not even the smallest blocks fit.
    """
    return _chosen(BackwardLaunch(sizes, cores, target, limited_sbuf_bytes(SBUF_BYTES[target])), limits_in_force())


@lru_cache(maxsize=1024)
def _chosen(launch: BackwardLaunch, limits: PlanLimits) -> LinearTiling:
    """Return the tiling of a launch. The choice reads the limits, so they must be a part of the cache's key."""
    return choose_backward_tiling(launch)
