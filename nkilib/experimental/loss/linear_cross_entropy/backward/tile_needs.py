# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the tiles of the gradient of linear cross-entropy take beside the products: arithmetic, before any tracing.

Several target ids of a position: sorted ids and their gradients stay in SBUF for all positions. For each tile of logits
Vector looks for eight ids at a time, and what it finds becomes a tile of gradients.
"""

from __future__ import annotations

from typing import Final

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.tile_needs import COLUMNS, INSTRUCTIONS, TileNeeds
from nkilib.experimental.loss.linear.shared.sizes import IDS_OF_SEARCH, searched_ids
from nkilib.experimental.loss.linear_cross_entropy.backward.gradient_columns import has_rest
from nkilib.experimental.loss.linear_cross_entropy.shared.options import LinearLaunch

# Tiles that are gathered at a time.
ID_TURNS: Final = 2
# Of a tile beside the searches: the ids of its positions, how many are below it, a running sum, places, the same as
# indices, the gather and the sum.
_INSTRUCTIONS = 7
# A running sum and, by turn, indices and gradients.
_TILES = 1 + 2 * ID_TURNS


def columns_of_ids(ids: int) -> int:
    """Numbers of a partition for a tile of positions: sorted ids, the same counted from a block, gradients."""
    return 0 if ids == 1 else 3 * searched_ids(ids) + 1


def tiles_of_ids(ids: int) -> int:
    """Float32 tiles of logits: numbers of classes with and without marks, and what gathers take."""
    return 0 if ids == 1 else 2 + _TILES


def numbers_of_ids(ids: int) -> int:
    """Numbers of a partition beside the tiles: ids behind the numbers of classes, and those below a tile."""
    return 0 if ids == 1 else 3 * searched_ids(ids)


def instructions_of_ids(ids: int) -> int:
    """Of a tile of the gradient."""
    return 0 if ids == 1 else searched_ids(ids) // IDS_OF_SEARCH + _INSTRUCTIONS


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
