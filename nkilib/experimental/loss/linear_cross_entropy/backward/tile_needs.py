# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""SBUF and instructions of the tiles of the gradient of linear cross-entropy, besides the products.

All of it is arithmetic, before any tracing. With several target ids per position, sorted ids and their gradients stay
in SBUF for all positions. For each tile of logits Vector looks for eight ids at a time, and the places that it finds
become a tile of gradients.
"""

from __future__ import annotations

from typing import Final

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.tile_needs import (
    COLUMNS,
    INSTRUCTIONS,
    INSTRUCTIONS_OF_SUMS,
    TileNeeds,
)
from nkilib.experimental.loss.linear.shared.sizes import IDS_OF_SEARCH, searched_ids
from nkilib.experimental.loss.linear_cross_entropy.backward.gradient_columns import has_rest
from nkilib.experimental.loss.linear_cross_entropy.shared.options import LinearLaunch

# Tiles that are gathered at a time.
ID_SLOTS: Final = 2
# Instructions of a tile besides the searches: the ids of its positions, how many are below it, a running sum, places,
# the same as indices, the gather and the sum.
_INSTRUCTIONS = 7
# A running sum and, for each buffer slot, indices and gradients.
_TILES = 1 + 2 * ID_SLOTS


def columns_of_ids(ids: int) -> int:
    """Return how many numbers a partition keeps for each tile of positions, if there are several ids per position.

    They are the sorted ids, the ids counted from the first class of a block, and the gradients.
    """
    return 0 if ids == 1 else 3 * searched_ids(ids) + 1


def tiles_of_ids(ids: int) -> int:
    """Return the number of float32 tiles as large as a tile of logits that several ids per position need.

    They hold the class numbers with and without marks, and are memory for gathers.
    """
    return 0 if ids == 1 else 2 + _TILES


def numbers_of_ids(ids: int) -> int:
    """Return how many numbers per partition several ids per position need besides columns and tiles.

    They are the ids behind the class numbers, and a mask of the ids below a tile.
    """
    return 0 if ids == 1 else 3 * searched_ids(ids)


def instructions_of_ids(ids: int) -> int:
    """Return the number of instructions that the ids add to a tile of the gradient."""
    return 0 if ids == 1 else searched_ids(ids) // IDS_OF_SEARCH + _INSTRUCTIONS


def tile_needs(
    has_bias: bool = False,
    has_class_weights: bool = False,
    has_softcap: bool = False,
    has_rest: bool = False,
    ids: int = 1,
    keeps_logits: bool = False,
    sums_bias: bool = False,
) -> TileNeeds:
    """Return the SBUF and instructions that a launch needs for its tiles of the gradient.

    Args:
        has_bias, has_class_weights: whether a row of biases, or of class weights, is needed for the classes of a block.
        has_softcap: whether the logits are capped.
        has_rest: whether the gradient has terms besides the error at the target.
        ids: the number of target ids per position.
        keeps_logits: whether the logits come from HBM, with their bias and under their cap.
        sums_bias: whether db is summed from gradients before they are rounded.
    """
    return TileNeeds(
        columns=COLUMNS + columns_of_ids(ids),
        rows=has_bias + has_class_weights + sums_bias,
        rings=(has_bias and not sums_bias) + has_softcap + has_rest,
        tiles=tiles_of_ids(ids),
        numbers=numbers_of_ids(ids),
        place_bytes=int(ids > 1),
        opened=int(has_softcap and not keeps_logits),
        instructions=INSTRUCTIONS + instructions_of_ids(ids) + sums_bias * INSTRUCTIONS_OF_SUMS,
    )


def backward_sizes(
    launch: LinearLaunch, options: Options, upstream: PositionUpstream, adds_to_weight: bool, sums_bias: bool
) -> BackwardSizes:
    """Return the sizes and options of a launch that the plan of its backward depends on."""
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
            sums_bias=sums_bias,
        ),
        adds_to_weight,
        weight_itemsize=launch.casts.weight,
        staging_bytes=launch.casts.backward_staging(launch.has_classes_first),
    )
