"""Plans of the linear kernels where operands are rounded to another type, and where the positions are split.

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

from nkilib.core.plan_limits import PlanLimits, limits_in_force, usable_sbuf_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.linear_cross_entropy.backward_plan import BackwardPlan, BackwardSizes
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradient_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import ForwardSizes
from nkilib.experimental.loss.linear_cross_entropy.host.memory import logits_blocks
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_backward_reference,
    linear_forward_reference,
)
from nkilib.experimental.loss.linear_cross_entropy.host.sizes import STAGED_ELEMENTS, CastBytes, position_parts
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import (
    BACKWARD,
    FORWARD,
    FORWARD_BACKWARD,
    LinearTiling,
    choose_linear_tiling,
)
from tests.experimental.loss.linear_cross_entropy.linear_inputs import Sizes, in_layout, normal_problem, upstream_of
from tests.experimental.plans.coverage import Branches, Limits, PlanFamily, Size
from tests.experimental.plans.linear_backward import standing
from tests.experimental.plans.linear_sizes import DTYPES, TILE, cost, require_room, several, where_it_fits

_KERNELS = {
    FORWARD: linear_cross_entropy_forward,
    BACKWARD: linear_cross_entropy_backward,
    FORWARD_BACKWARD: linear_cross_entropy_forward_backward,
}
_BF16, _FP16, _FP32 = "bfloat16", "float16", "float32"
# Of the products, of X and of W.
_TYPES = (
    (_BF16, _FP32, _FP32),
    (_BF16, _BF16, _FP32),
    (_FP16, _FP32, _BF16),
    (_FP32, _BF16, _BF16),
    (_BF16, _BF16, _BF16),
)
_POSITIONS = (1, 300, 1024, 4096, 16384, 65536, 70000, 131072)
_FEATURES = (16, 200, 1024, 4096, 8192, 16384)
_CLASSES = (300, 3000, 128256)
_SAMPLED = 41
_HALF_ULP = {_BF16: 2.0**-9, _FP16: 2.0**-12, _FP32: 2.0**-25}


def _grid(wide: bool) -> Iterator[Size]:
    found = product(_KERNELS, _TYPES, ("vd", "dv"), _POSITIONS, _FEATURES, _CLASSES)
    for number, (direction, types, layout, positions, features, classes) in enumerate(found):
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
        {"positions": 256},
        {"resident_features": 512},
        {"resident_features": 512, "positions": 256},
        {"sbuf_bytes": 48 * 1024},
        {"sbuf_bytes": 56 * 1024, "positions": 256},
        {"sbuf_bytes": 64 * 1024},
    )
    sizes = product(_KERNELS, _TYPES, ("vd", "dv"), (100, 300, 512, 600, 900), (200, 640, 1152), (300, 700))
    for (direction, types, layout, positions, features, classes), each in product(sizes, limits):
        yield _size(positions, features, classes, types, layout, direction), each


class _Planned(NamedTuple):
    """How a launch is cut up.

    Attributes:
        tiling: that is chosen.
        plan: of gradients; None of a forward alone.
        parts: how many there are of the positions, "one", "whole" or "with a rest".
    """

    tiling: LinearTiling
    plan: BackwardPlan | None
    parts: str


def _casts(size: Size) -> CastBytes:
    of_types = [0 if size[each] == size["compute"] else DTYPES[size[each]].itemsize for each in ("input", "weight")]
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
        sizes = ForwardSizes(positions, features, classes, itemsize, 2, False, 1.0, casts.weight)
        sizes = replace(sizes, staging_bytes=casts.forward_staging(is_first))
        tiles = min(tiling.position_block // TILE, div_ceil(positions, TILE))
        require_room(sizes.bytes_of(tiles, tiling.class_block) <= usable_sbuf_bytes())
        plan = sizes.position_plan(*tiling)
        return _Planned(tiling, None, "loop" if plan.is_loop else several(plan.blocks))
    keeps_logits = direction == FORWARD_BACKWARD
    parts = position_parts(positions, features)
    if keeps_logits:
        blocks = logits_blocks(positions, features, classes)
        parts = parts._replace(size=blocks.positions, whole=positions // blocks.positions, rest=0)
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
    found = BackwardPlan.of(gradients, *tiling)
    require_room(found.fits)
    rest = "with a rest" if parts.rest > 0 else "whole"
    return _Planned(tiling, found, rest if parts.is_split else "one")


def branches(size: Size) -> Branches:
    """What is cast, how many staged tiles a transfer of W takes, and parts of the positions of the backward."""
    planned, casts = _planned(size), _casts(size)
    found: Branches = {
        "kernel": size["direction"],
        "layout": size["layout"],
        "casts": [name for name, itemsize in zip(("X", "W"), casts, strict=True) if itemsize > 0],
    }
    if size["direction"] != FORWARD_BACKWARD:
        found["parts"] = planned.parts
    if planned.plan is not None:
        found["logits"] = standing(planned.plan)
    if casts.weight > 0:
        found["staged tiles"] = several(div_ceil(_transferred(size, planned), STAGED_ELEMENTS))
    return found


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
    given = replace(
        problem,
        input=problem.input.astype(DTYPES[size["input"]]),
        weight=problem.weight.astype(DTYPES[size["weight"]]),
    )
    compute = DTYPES[size["compute"]]
    return given, replace(given, input=given.input.astype(compute), weight=given.weight.astype(compute))


def check(size: Size) -> None:
    """Launch a size with the tiling that is chosen, and compare all results with float64."""
    given, rounded = _problems(size)
    lse = linear_forward_reference(rounded).lse.astype(np.float32)
    upstream = upstream_of(rounded, lse)
    options: dict[str, Any] = {"weight_layout": size["layout"], "compute_dtype": DTYPES[size["compute"]]}
    if size["direction"] == BACKWARD:
        options |= {"lse_hbm": lse, "grad_loss_hbm": upstream.grad_loss}
    elif size["direction"] == FORWARD_BACKWARD:
        scale = np.float32(1 / size["positions"])
        upstream = replace(upstream, grad_loss=np.full(size["positions"], scale, np.float32))
        options["grad_scale"] = float(scale)
    results = _KERNELS[size["direction"]][2](given.input, given.weight, given.targets, **options)
    truths, bounds = vars(linear_forward_reference(rounded)), linear_forward_bounds(rounded)
    truths = truths | linear_backward_reference(rounded, upstream)._asdict()
    bounds = bounds | linear_gradient_bounds(rounded, upstream)._asdict()
    names = {FORWARD: ("loss", "lse"), BACKWARD: ("input", "weight")}
    of_kernel = names.get(size["direction"], (*names[FORWARD], *names[BACKWARD]))
    for name, result in zip(of_kernel, results, strict=True):
        off = np.abs(np.asarray(result, np.float64) - truths[name])
        rounding = 0.0
        if name in names[BACKWARD]:
            assert result.dtype == DTYPES[size[name]]
            rounding = _HALF_ULP[size[name]] * 2 * np.abs(truths[name]) + 2.0**-25 * (size[name] == _FP16)
        assert (off <= bounds[name] + rounding).all(), f"{name}: {np.nanmax(off / bounds[name])} of its bound"


FAMILY = PlanFamily(
    name="linear_operand_types",
    kernels=lambda size: (_KERNELS[size["direction"]],),
    sizes=_grid,
    branches=where_it_fits(branches),
    cost=cost,
    check=check,
    shrunk_sizes=_small,
)
