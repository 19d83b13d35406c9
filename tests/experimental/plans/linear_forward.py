# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of the fused forward: blocks of positions, and how a core goes through its classes and through shared ones."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from nkilib.core.hardware import div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.experimental.loss import linear_cross_entropy_forward
from nkilib.experimental.loss.linear.block_schedule import WINDOW, PositionSplit, shares_of_cores
from nkilib.experimental.loss.linear.class_schedule import BUFFERS, ClassDivision, ClassSchedule, divide_classes
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import FORWARD, ForwardSizes, choose_linear_tiling
from nkilib.experimental.loss.linear_cross_entropy.launch import ForwardNeeds, rounds_products
from tests.experimental.loss.linear_cross_entropy.launch_checks import Launch, check
from tests.experimental.loss.linear_cross_entropy.linear_inputs import OPTIONS
from tests.experimental.plans.coverage import Branches, Size
from tests.experimental.plans.linear_sizes import (
    DTYPES,
    TILE,
    VARIANTS,
    linear_family,
    problem_of_size,
    require_room,
    several,
)


def needs_of(size: Size, kept: bool = False) -> ForwardNeeds:
    """Return the needs of a launch, or of one that keeps its logits, without further results."""
    variant = VARIANTS[size["variant"]]
    chosen, results = OPTIONS[variant.options], () if kept else variant.results
    cap, temperature = chosen.get("logit_softcap"), chosen.get("temperature", 1.0)
    scale = (1.0 if cap is None else cap) / temperature
    sums = chosen.get("label_smoothing", 0.0) > 0.0 or "distance_sum" in results
    return ForwardNeeds(
        bias="bias" in chosen,
        class_weights=sums and "class_weight" in chosen,
        softcap=cap is not None,
        scale=scale != 1.0,
        sums=sums,
        entropy="entropy" in results,
        squares="log_sum_squares" in results,
        mean="mean_logit" in results,
        argmax="argmax" in results,
        products="argmax" in results and rounds_products(scale),
    )


def forward_tiling(size: Size, positions: int, needs: ForwardNeeds) -> LinearTiling:
    """Choose the tiling for this many positions of a launch."""
    tiling = choose_linear_tiling(
        positions,
        size["features"],
        size["classes"],
        size["dtype"],
        FORWARD,
        cores=size["cores"],
        weight_layout=size["layout"],
        forward_needs=needs,
    )
    tiles = min(tiling.position_block, div_ceil(positions, TILE) * TILE) // TILE
    needed = forward_sizes(size, positions, needs).bytes_of(tiles, tiling.class_block)
    require_room(needed <= usable_sbuf_bytes())
    return tiling


def forward_sizes(size: Size, positions: int, needs: ForwardNeeds) -> ForwardSizes:
    """Return the sizes that the plan of this many positions depends on."""
    itemsize = DTYPES[size["dtype"]].itemsize
    return ForwardSizes(positions, size["features"], size["classes"], itemsize, size["cores"], needs)


class PlannedForward(NamedTuple):
    """How a launch is cut up.

    Attributes:
        plan: the plan of the positions.
        division: the division of the classes.
        class_block: classes of a block, at most.
        bodies: blocks that the program may have.
        group_tiles: tiles of positions of a group, at most.
    """

    plan: PositionSplit
    division: ClassDivision
    class_block: int
    bodies: int
    group_tiles: int

    @property
    def schedule(self) -> ClassSchedule:
        """The schedule of the first core."""
        return ClassSchedule.make(self.division, 0, self.class_block, self.bodies)


def of_forward(size: Size) -> PlannedForward:
    """Plan the loss alone, whose cores may share classes."""
    needs = needs_of(size)
    tiling = forward_tiling(size, size["positions"], needs)
    sizes = forward_sizes(size, size["positions"], needs)
    plan = sizes.position_plan(*tiling)
    shared = sizes.shared_classes(plan, tiling.class_block)
    division = divide_classes(size["classes"], shared, size["cores"], tiling.class_block)
    return PlannedForward(plan, division, tiling.class_block, sizes.most_bodies(plan), sizes.group_tiles)


def of_kept(size: Size, positions: int, program_share: float) -> PlannedForward:
    """Plan the loss of so many positions whose logits are kept: no class is shared, and no loop counts positions."""
    needs = needs_of(size, kept=True)
    tiling = forward_tiling(size, positions, needs)
    sizes = replace(forward_sizes(size, positions, needs), program_share=program_share)
    plan = sizes.position_plan(*tiling)._replace(is_loop=False)
    division = ClassDivision(shares_of_cores(size["classes"], size["cores"]), ())
    return PlannedForward(plan, division, tiling.class_block, sizes.most_bodies(plan), sizes.group_tiles)


def branches_of_forward(size: Size) -> Branches:
    """A group of tiles is the same code in a loop and without one: its number counts where nothing is a loop."""
    planned = of_forward(size)
    plan, schedule = planned.plan, planned.schedule
    results = {
        "blocks of positions": blocks_of_positions(plan),
        "classes": way_through_classes(schedule),
        "shared": "none" if not schedule.shared else several(len(schedule.shared)),
    }
    if not plan.is_loop and schedule.head is None:
        groups = several(div_ceil(plan.tiles, planned.group_tiles))
        results["groups of tiles"] = f"{groups}, up to {planned.group_tiles} each"
    if plan.blocks > 1 and schedule.opening is not None:
        last = schedule.count + len(schedule.shared) - 1
        is_late = (last - schedule.opening.number) % BUFFERS == 0
        results["opens again"] = "after the last classes" if is_late else "beside them"
    return results


def blocks_of_positions(plan: PositionSplit) -> str:
    """How they are gone through."""
    if plan.is_loop:
        return "loop and a rest" if plan.rest > 0 else "loop"
    return several(plan.blocks)


def way_through_classes(schedule: ClassSchedule) -> str:
    """Name the blocks that are unrolled in the program of a core, and those that are a loop."""
    if schedule.count == 0:
        return "none"
    if schedule.head is None:
        return f"unrolled, {'several windows' if schedule.count > WINDOW else 'one window'}"
    return f"head, loop, {several(len(schedule.plan.rest))} behind"


def check_forward(size: Size, **tiling: int) -> None:
    """Launch a size, by default with the tiling that is chosen, and compare all results with float64.

    The launch has to take the plan that its branches were read off.
    """
    with mock.patch.object(ClassSchedule, "make", wraps=ClassSchedule.make) as made:
        check(problem_of_size(size), Launch(size["cores"], wanted=VARIANTS[size["variant"]].results, **tiling))
    if not tiling:
        _, division, class_block, bodies, _ = of_forward(size)
        taken = sorted((call.args for call in made.call_args_list), key=lambda args: args[1])
        assert taken == [(division, core, class_block, bodies) for core in range(size["cores"])]


FORWARD_PLANS = linear_family("linear_forward", linear_cross_entropy_forward, branches_of_forward, check_forward)
