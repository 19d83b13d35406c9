# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of softmax along a short axis that is not the last one, of which a partition takes whole columns."""

from __future__ import annotations

from functools import cache

from nkilib.core.plan_limits import PlanLimits
from nkilib.experimental.softmax.column_plan import Sizes
from nkilib.experimental.softmax.short_columns import forward_short_plan
from nkilib.experimental.softmax.short_columns_backward import backward_short_plan
from nkilib.experimental.softmax.short_plan import Band, ShortPlan
from tests.experimental.plans.coverage import Branches
from tests.experimental.plans.softmax_families import Grids, families_of, has_short_columns
from tests.experimental.plans.softmax_launches import Grid, Launched

# Classes of pixels and voxels, small heads, gates and mixtures.
_WIDE = Grid(
    outer=(1, 2, 3, 8, 16, 64, 127, 128, 130, 300, 1000, 4096, 20000),
    length=(2, 3, 4, 7, 10, 16, 21, 33, 40, 64),
    inner=(2, 3, 7, 16, 49, 64, 100, 196, 256, 784, 1024, 3136, 4096, 16384, 50176, 65536, 262144),
    most=100_000_000,
)
_SAMPLE = Grid(
    outer=(1, 8, 130, 4096),
    length=(2, 21, 64),
    inner=(2, 49, 784, 4096, 65536),
    most=30_000_000,
    types=(("bfloat16", "bfloat16", "bfloat16"), ("float32", "float32", "float32")),
)
_SHRUNK = Grid(
    outer=(1, 2, 3, 8, 100, 130, 257, 300, 700, 1500),
    length=(2, 3, 7, 10, 21, 33, 64),
    inner=(2, 3, 7, 20, 49, 64, 100, 130, 200, 300, 600, 1000, 2500, 5000, 20000),
    most=1_200_000,
    limits=({}, *({"sbuf_bytes": kilobytes * 1024} for kilobytes in (72, 80, 90, 100, 120, 140, 170))),
)


def plan_of(launched: Launched, core: int) -> ShortPlan:
    """Return the plan of a core."""
    _, outer, length, inner, _, cores = launched
    shape, dtypes = Sizes(outer, length, inner), launched.dtypes
    if launched.is_forward:
        return forward_short_plan(shape, launched.kind, dtypes.grad, dtypes.grad_x, None, cores, core)
    return backward_short_plan(shape, launched.kind, dtypes, None, cores, core)


def _band_name(band: Band) -> str:
    if band.outer_each > 1:
        return "several outer places a partition"
    return "an outer place a partition" if band.blocks == 1 else "blocks of inner places"


@cache
def _all_branches(launched: Launched, limits: PlanLimits) -> Branches:
    """Under the limits in force, which are a key of the cache."""
    plans = [plan_of(launched, core) for core in range(launched.cores)]
    plan = plans[-1]  # it has as many windows as the other one, or more
    bands = {window.band: _band_name(window.band) for plan in plans for window in plan.windows}
    pieces = max(len(window.pieces(plan.columns)) for window in plan.windows)
    dtypes = launched.dtypes
    windows = "one" if len(plan.windows) == 1 else "several"
    return {
        "kernel": launched.kernel,
        "direction": "forward" if launched.is_forward else "backward",
        "bands": ", then ".join(bands.values()),
        "pieces": "one" if pieces == 1 else "several",
        "windows": "more than tiles" if len(plan.windows) > plan.buffers else windows,
        "result": "over the first input" if dtypes.grad == dtypes.grad_x else "tiles of its own",
        "cores": "one" if launched.cores == 1 else "two" if plans[0].windows else "two, one without columns",
    }


_GRIDS = Grids(_WIDE, _SAMPLE, _SHRUNK, drawn=30_000, seed=12, takes=has_short_columns)
FAMILIES = families_of(
    _GRIDS,
    _all_branches,
    {
        "softmax_short": ("kernel", "pieces", "result"),
        "softmax_short_windows": ("bands", "windows", "cores"),
    },
)
