"""What the second visit of a mixture accepts that computes the scores again."""

from __future__ import annotations

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require, require_vector
from nkilib.experimental.loss.linear.forward_plan import fastest_tiling
from nkilib.experimental.loss.linear.sizes import LinearTiling
from nkilib.experimental.loss.linear.validation import validated_blocks
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    MixtureSizes,
)
from nkilib.experimental.loss.linear_distillation.mixture_rows import PairVectors
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.pair_sizes import require_room
from nkilib.nki import nl

_CHOOSER = "choose_linear_distillation_tiling"


def validate_mixture(launch: PairLaunch, vectors: PairVectors) -> None:
    """Refuse a beta without a mixture, and log-sum-exps that are not those of the positions.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function = launch.function
    require(
        launch.is_mixed,
        f"{function}: beta must be between 0 and 1, and neither of them, got {launch.options.beta}; "
        f"linear_distillation_forward has the divergence of a shard for 0 and 1",
    )
    for name, vector_hbm in vectors.named().items():
        require_vector(function, name, vector_hbm, launch.num_positions, "the positions")


def validated_mixture_tiling(
    launch: PairLaunch, sizes: MixtureSizes, position_block: int | None, class_block: int | None
) -> LinearTiling:
    """The tiling that is asked for; None in it stands for what is chosen.

    Raises:
        AssertionError: it is none, or its tiles do not fit SBUF; with function, requirement, value and remedy.
    """
    chosen, most = fastest_tiling(sizes, usable_sbuf_bytes()), nl.tile_size.psum_bank_fmax
    tiling = validated_blocks(launch.function, chosen, position_block, class_block, _CHOOSER, most)
    require_room(launch, tiling, sizes.bytes_of, _CHOOSER)
    return tiling
