"""How a backward of two models is cut up: arithmetic only.

The estimate is that of both linear losses (:mod:`nkilib.experimental.loss.linear.host.backward_tiling`), with X^T and
W^T of the teacher in what Tensor and the DMA engines have to do.
"""

from __future__ import annotations

from functools import lru_cache

from nkilib.core.plan_limits import PlanLimits, limited_sbuf_bytes, limits_in_force
from nkilib.experimental.loss.linear.backward_plan import BackwardSizes
from nkilib.experimental.loss.linear.host.backward_tiling import BackwardLaunch, choose_backward_tiling
from nkilib.experimental.loss.linear.sizes import (
    POSITIONS_UNSPLIT,
    SBUF_BYTES,
    LinearTiling,
    PositionParts,
    position_parts,
)

# What X^T and W^T of both models take of a partition for 128 positions and classes, beyond which columns of so many
# positions leave no room for them; then fewer positions are a part.
_MOST_BYTES_OF_FEATURES, _FEW_POSITIONS = 65536, 16384


def pair_parts(num_positions: int, student_features: int, teacher_features: int, feature_bytes: int) -> PositionParts:
    """One part, or several of very many positions.

    Args:
        num_positions: N.
        student_features, teacher_features: Ds and Dt.
        feature_bytes: of a row of X of both models, in the types of their products.
    """
    unsplit = POSITIONS_UNSPLIT if feature_bytes <= _MOST_BYTES_OF_FEATURES else _FEW_POSITIONS
    return position_parts(num_positions, max(student_features, teacher_features), unsplit=unsplit)


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
    try:
        return choose_backward_tiling(launch)
    except ValueError as error:
        sizes = launch.sizes
        teacher = sum(pair.features * pair.itemsize for pair in sizes.further)
        raise ValueError(
            f"choose_linear_distillation_tiling: X^T and W^T of both models must leave room in SBUF, "
            f"{launch.available_bytes} bytes of a partition, and take {sizes.num_features * sizes.itemsize} bytes of "
            f"the student and {teacher} of the teacher each for 128 positions and classes; let the products be "
            f"bfloat16, by compute_dtype"
        ) from error
