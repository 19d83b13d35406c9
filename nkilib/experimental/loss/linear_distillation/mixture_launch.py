"""The sizes of a launch of the mixture, and its tiling."""

from __future__ import annotations

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear.sizes import LinearTiling
from nkilib.experimental.loss.linear.validation import validated_blocks
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    MixtureSizes,
    ModelSizes,
    choose_mixture_tiling,
)
from nkilib.experimental.loss.linear_distillation.options import ModelOperands, PairLaunch
from nkilib.nki import nl


def mixture_sizes(launch: PairLaunch, program_share: float = 1.0) -> MixtureSizes:
    """The sizes of a second visit that computes the scores again."""
    return MixtureSizes(
        launch.num_positions,
        launch.vocab_size,
        (_model_sizes(launch.student), _model_sizes(launch.teacher)),
        nl.num_programs(),
        staging_bytes=max(model.casts.forward_staging(model.has_classes_first) for model in launch.models),
        has_ratio=launch.ratio != 1.0,
        program_share=program_share,
    )


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
    tiles = min(div_ceil(tiling.position_block, PARTITIONS), sizes.position_tiles)
    needed = sizes.bytes_of(tiles, tiling.class_block)
    features = " and ".join(str(model.num_features) for model in launch.models)
    require(
        needed <= most,
        f"{function}: position_block and class_block must leave the tiles of {features} features at "
        f"most {most} bytes of a partition, got {needed} with position_block={tiling.position_block} and "
        f"class_block={tiling.class_block}; None takes what {chooser} says",
    )
    return tiling


def _model_sizes(model: ModelOperands) -> ModelSizes:
    return ModelSizes(
        model.num_features,
        dtype_bytes(model.dtype),
        dtype_bytes(model.weight_hbm.dtype),
        has_bias=model.bias_hbm is not None,
        has_cap=model.softcap is not None,
    )
