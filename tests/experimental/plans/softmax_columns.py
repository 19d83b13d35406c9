# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of softmax along an axis that is not the last one, of columns that are not short.

The branches of a plan are listed in four tables, each with what acts together: how columns come on chip for each
kernel, how windows follow each other, how many tiles there are for them, and how segments and cores share the work.
"""

from __future__ import annotations

from functools import cache

from nkilib.core.plan_limits import PlanLimits
from nkilib.experimental.softmax.column_loop import ColumnLoop
from nkilib.experimental.softmax.column_plan import Sizes
from nkilib.experimental.softmax.columns import forward_loop
from nkilib.experimental.softmax.columns_backward import backward_loop
from tests.experimental.plans.coverage import Branches
from tests.experimental.plans.softmax_families import Grids, families_of, has_short_columns
from tests.experimental.plans.softmax_launches import Grid, Launched

# Of images, of heads of attention, of sequences, and of vocabularies that lie before something else.
_WIDE = Grid(
    outer=(1, 3, 16, 130, 600),
    length=(65, 100, 200, 256, 300, 512, 513, 1024, 2000, 5000, 8192, 12000, 16384, 50000, 200000),
    inner=(2, 7, 20, 40, 100, 128, 256, 300, 520, 600, 784, 3136),
    most=60_000_000,
)
_SAMPLE = Grid(
    outer=(1, 16, 130),
    length=(100, 513, 1024, 12000, 50000),
    inner=(7, 40, 128, 300, 784),
    most=20_000_000,
    types=(("bfloat16", "bfloat16", "bfloat16"), ("float32", "float32", "float32")),
    cores=(2,),
)
_SHRUNK = Grid(
    outer=(1, 2, 3, 5, 130),
    length=(65, 70, 100, 300, 513, 600, 700, 1100, 1600, 2100, 2600, 4200),
    inner=(2, 7, 20, 40, 100, 128, 130, 200, 256, 260, 300, 384, 400, 520),
    most=700_000,
    limits=({}, *({"sbuf_bytes": kilobytes * 1024} for kilobytes in (48, 56, 64, 72, 80, 90, 100, 110, 120, 140))),
)


def loop_of(launched: Launched, core: int) -> ColumnLoop:
    """Return the loop of a core of a launch."""
    _, outer, length, inner, _, cores = launched
    shape, dtypes = Sizes(outer, length, inner), launched.dtypes
    if launched.is_forward:
        return forward_loop(shape, launched.kind, dtypes.grad, dtypes.grad_x, None, cores, core)
    return backward_loop(shape, launched.kind, dtypes, None, cores, core)


def takes_columns(launched: Launched) -> bool:
    """Whether columns are turned or strided, rather than short."""
    return launched.inner > 1 and launched.length > 1 and not has_short_columns(launched)


def _windows_of(loop: ColumnLoop) -> str:
    columns = [window.outer * window.inner for window in loop.plan.windows]
    if len(columns) == 1:
        return "one"
    return "several" if len(set(columns)) == 1 else "several, not all of one width"


@cache
def _all_branches(launched: Launched, limits: PlanLimits) -> Branches:
    """Under the limits in force, which are a key of the cache."""
    loop = loop_of(launched, launched.cores - 1)  # it has as many windows as the other core, or one more
    plan = loop.plan
    columns = "whole, on chip"
    if plan.has_parts:
        columns = "in parts, read twice" if plan.is_read_twice else "in parts, on chip"
    cores = "one" if launched.cores == 1 else "two"
    if launched.cores > 1 and len(plan.windows) == 1 and not loop_of(launched, 0).plan.windows:
        cores = "two, one without columns"
    return {
        "kernel": launched.kernel,
        "direction": "forward" if launched.is_forward else "backward",
        "layout": plan.layout.value,
        "columns": columns,
        "kept": loop.kept > 0,
        "result": "over the first input" if loop.overwrites else "tiles of its own",
        "windows": _windows_of(loop),
        "tiles": "parts and more" if plan.has_parts and not plan.is_read_twice else plan.buffers,
        "segments": "one" if len(plan.segments) == 1 else "several",
        "lines": "ragged" if any(segment.rest for segment in plan.segments) else "even",
        "cores": cores,
    }


_GRIDS = Grids(_WIDE, _SAMPLE, _SHRUNK, drawn=16_000, seed=11, takes=takes_columns)
FAMILIES = families_of(
    _GRIDS,
    _all_branches,
    {
        "softmax_columns": ("kernel", "layout", "columns", "kept", "result"),
        "softmax_column_windows": ("direction", "layout", "columns", "windows"),
        "softmax_column_tiles": ("layout", "columns", "tiles"),
        "softmax_column_segments": ("segments", "lines", "cores"),
    },
)
