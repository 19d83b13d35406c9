"""What the kernels accept. Everything else is refused here, before anything is written."""

from __future__ import annotations

from nkilib.experimental.loss.linear.sizes import LinearTiling
from nkilib.experimental.loss.linear.validation import validated_blocks
from nkilib.experimental.loss.linear_distillation.host.forward_tiling import PairForwardSizes
from nkilib.experimental.loss.linear_distillation.host.tiling import forward_tiling
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.nki import nisa, nl


def validate_pair(launch: PairLaunch) -> None:
    pass


def validated_forward_tiling(
    launch: PairLaunch, sizes: PairForwardSizes, position_block: int | None, class_block: int | None
) -> LinearTiling:
    """The tiling that is asked for; None in it stands for what is chosen.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    target = "trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3"
    return validated_blocks(
        launch.function,
        forward_tiling(sizes, target),
        position_block,
        class_block,
        "choose_linear_distillation_tiling",
        nl.tile_size.psum_bank_fmax,
    )
