"""What the tiles of the gradient of linear cross-entropy take beside the products: arithmetic."""

from __future__ import annotations

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear.backward_plan import BackwardSizes
from nkilib.experimental.loss.linear.tile_needs import COLUMNS, INSTRUCTIONS, TileNeeds
from nkilib.experimental.loss.linear_cross_entropy.gradient_columns import has_rest
from nkilib.experimental.loss.linear_cross_entropy.id_sizes import (
    columns_of_ids,
    instructions_of_ids,
    numbers_of_ids,
    tiles_of_ids,
)
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch


def tile_needs(
    has_bias: bool = False,
    has_class_weights: bool = False,
    has_softcap: bool = False,
    has_rest: bool = False,
    ids: int = 1,
    keeps_logits: bool = False,
) -> TileNeeds:
    """What the tiles of a launch take.

    Args:
        has_bias, has_class_weights: of which a row for each class is needed.
        has_softcap: of the logits.
        has_rest: other terms of the gradient than that of the error at the target.
        ids: target ids of a position.
        keeps_logits: they come from HBM, with their bias and under their cap.
    """
    return TileNeeds(
        columns=COLUMNS + columns_of_ids(ids),
        rows=has_bias + has_class_weights,
        rings=has_bias + has_softcap + has_rest,
        tiles=tiles_of_ids(ids),
        numbers=numbers_of_ids(ids),
        place_bytes=int(ids > 1),
        opened=int(has_softcap and not keeps_logits),
        instructions=INSTRUCTIONS + instructions_of_ids(ids),
    )


def backward_sizes(
    launch: LinearLaunch, options: Options, upstream: PositionUpstream, adds_to_weight: bool
) -> BackwardSizes:
    """What the plan of a launch depends on."""
    return BackwardSizes(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        dtype_bytes(launch.dtype),
        launch.has_classes_first,
        tile_needs(
            launch.bias_hbm is not None,
            options.needs_class_weights,
            options.softcap is not None,
            has_rest(launch, options, upstream),
            launch.ids,
        ),
        adds_to_weight,
        weight_itemsize=launch.casts.weight,
        staging_bytes=launch.casts.backward_staging(launch.has_classes_first),
    )
