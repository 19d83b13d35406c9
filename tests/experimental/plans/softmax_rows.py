# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of softmax along the last axis: rows, of which a partition takes several, one, or a part."""

from __future__ import annotations

from functools import cache

from nkilib.core.plan_limits import PlanLimits
from nkilib.experimental.softmax.row_batches import RowBatch, batches_of_core
from nkilib.experimental.softmax.row_plan import RowPlan
from nkilib.experimental.softmax.rows import forward_keeps_float32, forward_plan
from nkilib.experimental.softmax.rows_backward import backward_plan
from tests.experimental.plans.coverage import Branches
from tests.experimental.plans.softmax_families import Grids, families_of
from tests.experimental.plans.softmax_launches import Grid, Launched

# Scores of attention, classes, and vocabularies; rows that take several partitions, and the longest ones.
_WIDE = Grid(
    outer=(1, 2, 3, 5, 64, 127, 128, 129, 256, 257, 300, 512, 1000, 1024, 4096, 5000, 32768, 131072),
    length=(
        *(1, 2, 5, 10, 40, 41, 64, 100, 127, 128, 256, 333, 512, 513, 1000, 1024, 2048, 2049, 4096, 5000, 8192, 10000),
        *(16384, 30522, 32000, 32128, 40003, 50257, 50304, 65536, 100277, 128256, 151936, 202048, 262144),
        *(1_000_000, 1_000_003, 2_000_000),
    ),
    inner=(1,),
    most=200_000_000,
)
_SAMPLE = Grid(
    outer=(1, 5, 128, 300, 4096),
    length=(5, 41, 128, 513, 2049, 5000, 32128, 50257, 100277, 262144),
    inner=(1,),
    most=20_000_000,
    types=(("bfloat16", "bfloat16", "bfloat16"), ("float32", "float32", "float32")),
)
_SHRUNK = Grid(
    outer=(1, 2, 3, 5, 70, 128, 129, 257, 300, 513, 900, 1300, 2600),
    length=(
        *(1, 2, 5, 6, 10, 33, 40, 41, 64, 100, 127, 128, 200, 256, 333, 512, 513, 700, 1000, 1024, 1500, 2048, 2049),
        *(3000, 4096, 5000, 8192, 8195, 10000, 16384, 20000, 20003, 32000, 40003),
    ),
    inner=(1,),
    most=1_000_000,
    limits=({}, *({"sbuf_bytes": kilobytes * 1024} for kilobytes in (44, 52, 60, 70, 80, 100, 130))),
)


def plan_of(launched: Launched) -> RowPlan:
    """Return the plan of every core."""
    dtypes = launched.dtypes
    if launched.is_forward:
        return forward_plan(launched.length, launched.kind, dtypes.grad, dtypes.grad_x, None)
    return backward_plan(launched.length, launched.kind, dtypes, None)


def _rows_name(plan: RowPlan) -> str:
    if plan.parts > 1:
        return "on several partitions, the last part longer" if plan.tail else "on several partitions"
    if plan.chunks > 1:
        return "in several pieces"
    if plan.is_tiny:
        return "many in an instruction"
    return "short" if plan.is_short else "whole"


def _batches_name(batches: list[RowBatch], plan: RowPlan) -> str:
    if len(batches) == 1:
        return "one"
    is_alike = len({(batch.lines, batch.rows_each) for batch in batches}) == 1
    count = "more than tiles" if len(batches) > plan.batches_on_chip else "several"
    return count if is_alike else f"{count}, with a rest"


@cache
def _all_branches(launched: Launched, limits: PlanLimits) -> Branches:
    """Under the limits in force, which are a key of the cache."""
    plan, dtypes = plan_of(launched), launched.dtypes
    of_cores = [batches_of_core(plan, 1, launched.outer, launched.cores, core) for core in range(launched.cores)]
    batches = of_cores[0]  # it has as many rows as the other one, or more
    of_batch = [batch.pieces for batch in batches]
    pieces = "one" if max(map(len, of_batch)) == 1 else "several"
    ragged = any(len({piece.size for piece in pieces_of}) > 1 for pieces_of in of_batch)
    keeps = launched.is_forward and forward_keeps_float32(plan, launched.kind)
    on_chip = {dtypes.grad, *([] if launched.is_forward or launched.kind.value != "softmax" else [dtypes.output])}
    return {
        "kernel": launched.kernel,
        "direction": "forward" if launched.is_forward else "backward",
        "rows": _rows_name(plan),
        "keeps": "float32" if keeps else "inputs",
        "result": "tiles that are there" if dtypes.grad_x in on_chip else "tiles of its own",
        "pieces": f"{pieces}, one smaller" if ragged else pieces,
        "batches": _batches_name(batches, plan),
        "cores": "one" if launched.cores == 1 else "two" if of_cores[1] else "two, one without rows",
    }


_GRIDS = Grids(_WIDE, _SAMPLE, _SHRUNK, drawn=30_000, seed=13)
FAMILIES = families_of(
    _GRIDS,
    _all_branches,
    {
        "softmax_rows": ("kernel", "rows"),
        "softmax_row_batches": ("pieces", "batches"),
        "softmax_row_results": ("kernel", "keeps", "result"),
        "softmax_row_cores": ("direction", "cores"),
    },
)
