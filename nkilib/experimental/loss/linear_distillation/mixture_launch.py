"""The tiling of a second visit that computes the scores again."""

from __future__ import annotations

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.experimental.loss.linear.sizes import LinearTiling
from nkilib.experimental.loss.linear.validation import validated_blocks
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    MixtureSizes,
    choose_mixture_tiling,
)
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.pair_sizes import require_room
from nkilib.nki import nl


def validated_mixture_tiling(
    launch: PairLaunch, sizes: MixtureSizes, position_block: int | None, class_block: int | None
) -> LinearTiling:
    """The tiling that is asked for; None in it stands for what is chosen.

    Raises:
        AssertionError: it is none, or its tiles do not fit SBUF; with function, requirement, value and remedy.
    """
    most = usable_sbuf_bytes()
    chosen = choose_mixture_tiling(sizes, most)
    function, chooser = launch.function, "choose_mixture_tiling"
    tiling = validated_blocks(function, chosen, position_block, class_block, chooser, nl.tile_size.psum_bank_fmax)
    require_room(launch, tiling, sizes.bytes_of, chooser)
    return tiling
