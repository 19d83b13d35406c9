# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the kernels of several target ids: those of linear cross-entropy, and what ids decide beside.

How operands stand and how blocks of positions and classes are gone through has tables of its own. Here the branches
are those that code for several ids takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.sizes import IDS_OF_SEARCH, position_parts, searched_ids
from nkilib.experimental.loss.linear_cross_entropy import linear_token_scores_backward, linear_token_scores_forward
from nkilib.experimental.loss.linear_cross_entropy.backward.id_gradient import sorted_at_a_time
from nkilib.experimental.loss.linear_cross_entropy.backward.tile_needs import tile_needs
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import ForwardSizes
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import BACKWARD, FORWARD, choose_linear_tiling
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import scores_forward_reference
from tests.experimental.loss.linear_cross_entropy.linear_inputs import Sizes, in_layout, normal_problem
from tests.experimental.loss.linear_cross_entropy.score_checks import (
    Launch,
    check_backward,
    check_forward,
    upstream_of,
    with_ids,
)
from tests.experimental.plans.coverage import Branches, Limits, PlanFamily, Size
from tests.experimental.plans.linear_backward import planned, way_through_classes
from tests.experimental.plans.linear_sizes import DTYPES, TILE, cost, require_room, several, where_it_fits

_POSITIONS, _FEATURES = (1, 200, 1024, 4096, 16384), (64, 1024, 2048, 8192)
_CLASSES, _IDS = (300, 32128, 151936), (1, 3, 8, 9, 64)
# One of so many sizes of the wide grid is in the sample.
_SAMPLED = 7
_OF_FORWARD = tuple(
    (sizes, {"sbuf_bytes": size, "program_instructions": 100, **shared})
    for sizes in ((60, 32, 300, 3), (300, 32, 3072, 3))
    for size in (5250, 5500, 6000, 6500, 7000, 8000, 9000, 12000, 100000)
    for shared in ({}, {"shared_classes": 100})
)
_LIMITS: tuple[Limits, ...] = (
    {},
    {"program_instructions": 60},
    {"sbuf_bytes": 28000},
    {"sbuf_bytes": 28000, "program_instructions": 60},
    {"sbuf_bytes": 28000, "resident_features": 16},
    {"sbuf_bytes": 28000, "resident_features": 16, "program_instructions": 60},
    {"resident_features": 16},
    {"resident_features": 16, "program_instructions": 60},
    {"positions": 256},
)
_OF_BACKWARD = (
    *product(((60, 32, 300, 3), (130, 32, 1100, 3), (130, 32, 1100, 9), (390, 32, 300, 9)), _LIMITS),
    ((2100, 16, 100, 64), {}),
)


def _sizes(wide: bool) -> Iterator[Size]:
    for number, sizes in enumerate(product(_POSITIONS, _FEATURES, _CLASSES, _IDS)):
        if wide or number % _SAMPLED == 0:
            yield _size(number, *sizes)


def _shrunk_sizes(candidates: tuple[tuple[tuple[int, ...], Limits], ...]) -> Iterator[tuple[Size, Limits]]:
    for number, (sizes, limits) in enumerate(candidates):
        for further in range(3):
            yield _size(number + further, *sizes), limits


def _size(number: int, positions: int, features: int, classes: int, ids: int) -> Size:
    dtype, layout = ("bfloat16", "float32", "bfloat16", "float16")[number % 4], ("vd", "dv", "vd")[number % 3]
    return {
        "positions": positions,
        "features": features,
        "classes": classes,
        "ids": ids,
        "dtype": dtype,
        "layout": layout,
        "cores": 2,
    }


def _cost(size: Size) -> float:
    return cost(size) * (8 + size["ids"])


def _tiling(size: Size, direction: str) -> Any:
    return choose_linear_tiling(
        size["positions"],
        size["features"],
        size["classes"],
        size["dtype"],
        direction,
        cores=size["cores"],
        weight_layout=size["layout"],
        ids=size["ids"],
    )


def _kind(size: Size) -> str:
    """How many ids there are."""
    if size["ids"] == 1:
        return "one"
    return "one search" if searched_ids(size["ids"]) == IDS_OF_SEARCH else "several searches"


def branches_of_forward(size: Size) -> Branches:
    """Blocks of positions, whose ids are loaded and stored by themselves, and classes that the cores share."""
    tiling, itemsize = _tiling(size, FORWARD), DTYPES[size["dtype"]].itemsize
    sizes = ForwardSizes(size["positions"], size["features"], size["classes"], itemsize, size["cores"], ids=size["ids"])
    plan = sizes.position_plan(*tiling)
    require_room(sizes.bytes_of(plan.tiles, tiling.class_block) <= usable_sbuf_bytes())
    if size["ids"] == 1:
        return {"ids": "one"}
    return {
        "ids": "several",
        "blocks of positions": "loop" if plan.is_loop else several(plan.blocks),
        "shared": sizes.shared_classes(plan, tiling.class_block) > 0,
    }


def branches_of_backward(size: Size) -> Branches:
    """Searches, tiles of a block of classes, where a loop counts them, and parts of the positions."""
    tiling, parts = _tiling(size, BACKWARD), position_parts(size["positions"], size["features"], size["ids"])
    backward = BackwardSizes(
        parts.size,
        size["features"],
        size["classes"],
        DTYPES[size["dtype"]].itemsize,
        size["layout"] == "vd",
        tile_needs(ids=size["ids"]),
        adds_to_weight=parts.is_split,
    )
    plan = BackwardPlan.of(backward, *tiling)
    require_room(plan.fits)
    branches: Branches = {"ids": _kind(size)}
    if size["ids"] == 1:
        return branches
    if parts.is_split:
        return branches | {"positions": "in parts"}
    way = way_through_classes(planned(plan, size["classes"], size["cores"], size["positions"]))[0]
    if div_ceil(size["positions"], TILE) > sorted_at_a_time(size["ids"]):
        return branches | {"sorted": "one after the other"}
    branches["classes"] = "loop" if "trips" in way or "cover" in way else "unrolled"
    if plan.streams_weight:
        return branches | {"logits": "W^T streams"}
    return branches | {
        "logits": "W^T stays",
        "tiles of a block": several(div_ceil(plan.class_block, plan.classes_of_tile)),
    }


def _problem_of(size: Size) -> Any:
    sizes = Sizes(size["positions"], size["features"], size["classes"], DTYPES[size["dtype"]])
    rng = np.random.default_rng([size["positions"], size["features"], size["classes"], size["ids"]])
    return in_layout(with_ids(normal_problem(sizes, rng), size["ids"]), size["layout"])


def check_forward_of_size(size: Size) -> None:
    """Launch a size and compare all results with float64."""
    check_forward(_problem_of(size), Launch(size["cores"]))


def check_backward_of_size(size: Size) -> None:
    """Launch a size and compare all gradients with float64."""
    problem = _problem_of(size)
    lse = scores_forward_reference(problem)["lse"].astype(np.float32)
    check_backward(problem, Launch(size["cores"]), upstream_of(problem, lse))


def _family(name: str, kernel: Any, branches: Any, check: Any, candidates: Any) -> PlanFamily:
    return PlanFamily(
        name=name,
        kernels=lambda size: (kernel,),
        sizes=_sizes,
        branches=where_it_fits(branches),
        cost=_cost,
        check=check,
        shrunk_sizes=lambda: _shrunk_sizes(candidates),
    )


FORWARDS = _family(
    "linear_scores_forward", linear_token_scores_forward, branches_of_forward, check_forward_of_size, _OF_FORWARD
)
BACKWARDS = _family(
    "linear_scores_backward", linear_token_scores_backward, branches_of_backward, check_backward_of_size, _OF_BACKWARD
)
