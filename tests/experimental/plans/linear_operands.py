# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the linear kernels where operands are rounded, where the positions are split, and of several target ids.

Branches are what the other tables of these kernels do not have: which operand is cast and in how many parts of a staged
tile, by each way in which operands stand, and parts of the positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from nkilib.core.hardware import div_ceil
from nkilib.core.plan_limits import PlanLimits, limits_in_force, usable_sbuf_bytes
from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.block_schedule import IDS_OF_SEARCH, PositionParts, position_parts, searched_ids
from nkilib.experimental.loss.linear.launch import STAGED_ELEMENTS, CastBytes, LinearTiling
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import (
    BACKWARD,
    FORWARD,
    FORWARD_BACKWARD,
    ForwardSizes,
    choose_linear_tiling,
    logits_blocks,
)
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import scores_forward_reference
from nkilib.experimental.loss.linear_cross_entropy.id_gradient import sorted_at_a_time
from nkilib.experimental.loss.linear_cross_entropy.launch import tile_needs
from tests.experimental.loss.linear_cross_entropy.launch_checks import (
    ScoreLaunch,
    check_backward,
    check_forward,
    with_ids,
)
from tests.experimental.loss.linear_cross_entropy.launch_checks import upstream_of as upstream_of_ids
from tests.experimental.loss.linear_cross_entropy.linear_inputs import Sizes, in_layout, normal_problem, upstream_of
from tests.experimental.plans.coverage import Branches, Limits, PlanFamily, Size
from tests.experimental.plans.linear_backward import planned, standing, way_through_classes
from tests.experimental.plans.linear_sizes import DTYPES, TILE, cost, require_room, several, where_it_fits

_KERNELS = {
    FORWARD: linear_cross_entropy_forward,
    BACKWARD: linear_cross_entropy_backward,
    FORWARD_BACKWARD: linear_cross_entropy_forward_backward,
}
_BF16, _FP32 = "bfloat16", "float32"
# Of the products, of X and of W.
_TYPES = (
    (_BF16, _FP32, _FP32),
    (_FP32, _BF16, _BF16),
    (_BF16, _BF16, _BF16),
)
_POSITIONS = (300, 1024, 4096, 16384, 70000, 131072)
_FEATURES = (200, 1024, 8192)
_CLASSES = (3000, 128256)
_SAMPLED = 37
# Of a partition, in launches that stand for larger ones.
_KIBIBYTES = (28, 32, 40, 44, 56, 64)

_IDS_POSITIONS, _IDS_FEATURES = (1, 200, 1024, 4096, 16384), (64, 1024, 2048, 8192)
_IDS_CLASSES, _IDS = (300, 32128, 151936), (1, 3, 8, 9, 64)
# One of so many sizes of the wide grid is in the sample.
_IDS_SAMPLED = 7
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


def _grid(wide: bool) -> Iterator[Size]:
    results = product(_KERNELS, _TYPES, ("vd", "dv"), _POSITIONS, _FEATURES, _CLASSES)
    for number, (direction, types, layout, positions, features, classes) in enumerate(results):
        if number % (1 if wide else _SAMPLED) == 0:
            yield _size(positions, features, classes, types, layout, direction)


def _size(
    positions: int, features: int, classes: int, types: tuple[str, str, str], layout: str, direction: str
) -> Size:
    compute, of_input, of_weight = types
    return {
        "positions": positions,
        "features": features,
        "classes": classes,
        "compute": compute,
        "input": of_input,
        "weight": of_weight,
        "layout": layout,
        "direction": direction,
    }


def _small() -> Iterator[tuple[Size, Limits]]:
    """Sizes that are launched in place of large ones."""
    limits: tuple[Limits, ...] = (
        {},
        {"resident_features": 384},
        *({"sbuf_bytes": kibibytes * 1024} for kibibytes in _KIBIBYTES),
        *({"sbuf_bytes": kibibytes * 1024, "positions": 256} for kibibytes in _KIBIBYTES),
    )
    sizes = product(_KERNELS, _TYPES, ("vd", "dv"), (512, 700, 768), (200, 400, 640, 1152), (700, 1000))
    for (direction, types, layout, positions, features, classes), second in product(sizes, limits):
        yield _size(positions, features, classes, types, layout, direction), second
    # X^T and W^T stream together of more positions than that, in [V, D] and without a cast.
    both: tuple[tuple[int, Limits], ...] = ((1400, {}), (2816, {"positions": 1408}), (2600, {"positions": 1408}))
    for positions, item in both:
        yield _size(positions, 256, 700, (_BF16, _BF16, _BF16), "vd", BACKWARD), {"resident_features": 128, **item}


class _Planned(NamedTuple):
    """How a launch is cut up.

    Attributes:
        tiling: that is chosen.
        plan: of gradients; None of a forward alone.
        parts: of the positions: "one", several "whole" ones or some "with a rest"; "in blocks" of another kernel.
    """

    tiling: LinearTiling
    plan: BackwardPlan | None
    parts: str


def _casts(size: Size) -> CastBytes:
    of_types = [0 if size[name] == size["compute"] else DTYPES[size[name]].itemsize for name in ("input", "weight")]
    return CastBytes(*of_types)


def _planned(size: Size) -> _Planned:
    return _planned_under(tuple(size.items()), limits_in_force())


@lru_cache(maxsize=1 << 16)
def _planned_under(items: tuple[tuple[str, Any], ...], _limits: PlanLimits) -> _Planned:
    size = dict(items)
    positions, features, classes = size["positions"], size["features"], size["classes"]
    direction, layout, casts = size["direction"], size["layout"], _casts(size)
    tiling = choose_linear_tiling(
        positions,
        features,
        classes,
        size["compute"],
        direction,
        weight_layout=layout,
        input_dtype=size["input"],
        weight_dtype=size["weight"],
    )
    itemsize, is_first = DTYPES[size["compute"]].itemsize, layout == "vd"
    if direction == FORWARD:
        sizes = ForwardSizes(positions, features, classes, itemsize, 2, weight_itemsize=casts.weight)
        sizes = replace(sizes, staging_bytes=casts.forward_staging(is_first))
        tiles = min(tiling.position_block // TILE, div_ceil(positions, TILE))
        require_room(sizes.bytes_of(tiles, tiling.class_block) <= usable_sbuf_bytes())
        return _Planned(tiling, None, "in blocks")
    keeps_logits = direction == FORWARD_BACKWARD
    parts = position_parts(positions, features)
    name = "one" if not parts.is_split else "with a rest" if parts.rest > 0 else "whole"
    if keeps_logits:
        blocks = logits_blocks(positions, features, classes)
        parts, name = PositionParts(blocks.positions, blocks.number, 0), "in blocks"
    gradients = BackwardSizes(
        parts.size,
        features,
        classes,
        itemsize,
        is_first,
        adds_to_weight=parts.is_split,
        keeps_logits=keeps_logits,
        weight_itemsize=casts.weight,
        staging_bytes=casts.backward_staging(is_first, keeps_logits),
    )
    result = BackwardPlan.of(gradients, *tiling)
    require_room(result.fits)
    return _Planned(tiling, result, name)


def branches(size: Size) -> Branches:
    """Name how the logits stand, and for a W that is cast its layout and the staged tiles of a transfer of it.

    Without a cast of W, name instead whether the positions are split, which is a branch of the backward alone.
    """
    planned = _planned(size)
    results: Branches = {"kernel": size["direction"]}
    if planned.plan is not None:
        results["logits"] = standing(planned.plan)
    if _casts(size).weight == 0:
        return results | {"parts": planned.parts}
    staged = div_ceil(_transferred(size, planned), STAGED_ELEMENTS)
    return results | {"layout": size["layout"], "staged tiles": "none" if staged == 0 else several(staged)}


def _transferred(size: Size, planned: _Planned) -> int:
    """About so many elements of a partition are transposed at a time; 0 where W is copied alone."""
    depth, plan = div_ceil(size["features"], TILE), planned.plan
    is_first = size["layout"] == "vd"
    if plan is None:
        return depth * planned.tiling.class_block if is_first else 0
    if plan.keeps_logits and is_first:
        return 0
    if not is_first:
        return plan.class_tiles * plan.stripe
    return 4 * plan.classes_of_tile if plan.streams_weight else depth * TILE


def _problems(size: Size) -> tuple[LinearProblem, LinearProblem]:
    """Operands as they come, and as the products see them."""
    sizes = Sizes(size["positions"], size["features"], size["classes"], DTYPES[_FP32])
    problem = in_layout(normal_problem(sizes, np.random.default_rng(list(size.values())[:3])), size["layout"])
    inputs = replace(
        problem,
        input=problem.input.astype(DTYPES[size["input"]]),
        weight=problem.weight.astype(DTYPES[size["weight"]]),
    )
    compute = DTYPES[size["compute"]]
    return inputs, replace(inputs, input=inputs.input.astype(compute), weight=inputs.weight.astype(compute))


def check(size: Size) -> None:
    """Launch a size with the tiling that is chosen, and compare all results with float64."""
    inputs, rounded = _problems(size)
    lse = linear_forward_reference(rounded).lse.astype(np.float32)
    upstream = upstream_of(rounded, lse)
    options: dict[str, Any] = {"weight_layout": size["layout"], "compute_dtype": DTYPES[size["compute"]]}
    if size["direction"] == BACKWARD:
        options |= {"lse_hbm": lse, "grad_loss_hbm": upstream.grad_loss}
    elif size["direction"] == FORWARD_BACKWARD:
        scale = np.float32(1 / size["positions"])
        upstream = replace(upstream, grad_loss=np.full(size["positions"], scale, np.float32))
        options["grad_scale"] = float(scale)
    results = _KERNELS[size["direction"]][2](inputs.input, inputs.weight, inputs.targets, **options)
    references, bounds = vars(linear_forward_reference(rounded)), linear_forward_bounds(rounded)
    of_types = {f"{name}_dtype": DTYPES[size[name]] for name in ("input", "weight")}
    exact, bounds_of_exact = linear_gradients_and_bounds(rounded, upstream, **of_types)
    references, bounds = references | exact._asdict(), bounds | bounds_of_exact._asdict()
    names = {FORWARD: ("loss", "lse"), BACKWARD: ("input", "weight")}
    of_kernel = names.get(size["direction"], (*names[FORWARD], *names[BACKWARD]))
    for name, result in zip(of_kernel, results, strict=True):
        off = np.abs(np.asarray(result, np.float64) - references[name])
        assert name not in names[BACKWARD] or result.dtype == DTYPES[size[name]]
        assert (off <= bounds[name]).all(), f"{name}: {np.nanmax(off / bounds[name])} of its bound"


FAMILY = PlanFamily(
    name="linear_operand_types",
    kernels=lambda size: (_KERNELS[size["direction"]],),
    sizes=_grid,
    branches=where_it_fits(branches),
    cost=cost,
    check=check,
    shrunk_sizes=_small,
)


def _sizes(wide: bool) -> Iterator[Size]:
    for number, sizes in enumerate(product(_IDS_POSITIONS, _IDS_FEATURES, _IDS_CLASSES, _IDS)):
        if wide or number % _IDS_SAMPLED == 0:
            yield _size_with_ids(number, *sizes)


def _shrunk_sizes(candidates: tuple[tuple[tuple[int, ...], Limits], ...]) -> Iterator[tuple[Size, Limits]]:
    for number, (sizes, limits) in enumerate(candidates):
        for further in range(3):
            yield _size_with_ids(number + further, *sizes), limits


def _size_with_ids(number: int, positions: int, features: int, classes: int, ids: int) -> Size:
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
    check_forward(_problem_of(size), ScoreLaunch(size["cores"]))


def check_backward_of_size(size: Size) -> None:
    """Launch a size and compare all gradients with float64."""
    problem = _problem_of(size)
    lse = scores_forward_reference(problem)["lse"].astype(np.float32)
    check_backward(problem, ScoreLaunch(size["cores"]), upstream_of_ids(problem, lse))


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
