"""Plans of the fused forward: blocks of positions, and how a core goes through its classes and through shared ones."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy import linear_cross_entropy_forward
from nkilib.experimental.loss.linear_cross_entropy.blocks import shares_of_cores
from nkilib.experimental.loss.linear_cross_entropy.class_schedule import ClassDivision, ClassSchedule, divide_classes
from nkilib.experimental.loss.linear_cross_entropy.class_stream import BUFFERS
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import (
    TILES_OF_GROUP,
    WINDOW,
    ForwardSizes,
    PositionPlan,
)
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import FORWARD, LinearTiling, choose_linear_tiling
from tests.experimental.loss.linear_cross_entropy.forward_checks import Launch, check
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


def has_options(size: Size) -> bool:
    """Of the loss, or further results."""
    variant = VARIANTS[size["variant"]]
    return bool(OPTIONS[variant.options]) or bool(variant.results)


def forward_tiling(size: Size, positions: int, extended: bool) -> LinearTiling:
    """That is chosen for so many of the positions of a launch."""
    tiling = choose_linear_tiling(
        positions,
        size["features"],
        size["classes"],
        size["dtype"],
        FORWARD,
        cores=size["cores"],
        weight_layout=size["layout"],
        extended=extended,
    )
    tiles = min(tiling.position_block, div_ceil(positions, TILE) * TILE) // TILE
    needed = forward_sizes(size, positions, extended).bytes_of(tiles, tiling.class_block)
    require_room(needed <= usable_sbuf_bytes())
    return tiling


def forward_sizes(size: Size, positions: int, extended: bool) -> ForwardSizes:
    """What the plan of so many of the positions depends on."""
    itemsize = DTYPES[size["dtype"]].itemsize
    return ForwardSizes(positions, size["features"], size["classes"], itemsize, size["cores"], extended)


class PlannedForward(NamedTuple):
    """How a launch is cut up.

    Attributes:
        plan: of the positions.
        division: of the classes.
        class_block: classes of a block, at most.
        bodies: blocks that the program may have.
    """

    plan: PositionPlan
    division: ClassDivision
    class_block: int
    bodies: int

    @property
    def schedule(self) -> ClassSchedule:
        """Of the first core."""
        return ClassSchedule.make(self.division, 0, self.class_block, self.bodies)


def of_forward(size: Size) -> PlannedForward:
    """Of the loss alone, whose cores may share classes."""
    extended = has_options(size)
    tiling = forward_tiling(size, size["positions"], extended)
    sizes = forward_sizes(size, size["positions"], extended)
    plan = sizes.position_plan(*tiling)
    shared = sizes.shared_classes(plan, tiling.class_block)
    division = divide_classes(size["classes"], shared, size["cores"], tiling.class_block)
    return PlannedForward(plan, division, tiling.class_block, sizes.most_bodies(plan))


def of_kept(size: Size, positions: int, program_share: float) -> PlannedForward:
    """Of the loss of so many positions whose logits are kept: no class is shared, and no loop counts positions."""
    extended = bool(OPTIONS[VARIANTS[size["variant"]].options])
    tiling = forward_tiling(size, positions, extended)
    sizes = replace(forward_sizes(size, positions, extended), program_share=program_share)
    plan = sizes.position_plan(*tiling)._replace(is_loop=False)
    division = ClassDivision(shares_of_cores(size["classes"], size["cores"]), ())
    return PlannedForward(plan, division, tiling.class_block, sizes.most_bodies(plan))


def branches_of_forward(size: Size) -> Branches:
    """A group of tiles is the same code in a loop and without one: its number counts where nothing is a loop."""
    planned = of_forward(size)
    plan, schedule = planned.plan, planned.schedule
    found = {
        "blocks of positions": blocks_of_positions(plan),
        "classes": way_through_classes(schedule),
        "shared": "none" if not schedule.shared else several(len(schedule.shared)),
    }
    if not plan.is_loop and schedule.head is None:
        found["groups of tiles"] = several(div_ceil(plan.tiles, TILES_OF_GROUP))
    if plan.blocks > 1 and schedule.opening is not None:
        last = schedule.count + len(schedule.shared) - 1
        is_late = (last - schedule.opening.number) % BUFFERS == 0
        found["opens again"] = "after the last classes" if is_late else "beside them"
    return found


def blocks_of_positions(plan: PositionPlan) -> str:
    """How they are gone through."""
    if plan.is_loop:
        return "loop and a rest" if plan.rest > 0 else "loop"
    return several(plan.blocks)


def way_through_classes(schedule: ClassSchedule) -> str:
    """Which blocks stand in the program of a core, and which are a loop."""
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
        _, division, class_block, bodies = of_forward(size)
        taken = sorted((call.args for call in made.call_args_list), key=lambda args: args[1])
        assert taken == [(division, core, class_block, bodies) for core in range(size["cores"])]


FORWARD_PLANS = linear_family("linear_forward", linear_cross_entropy_forward, branches_of_forward, check_forward)
