# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plans of distillation from hidden states: visits of the classes, one or two, and the backward of two operand pairs.

How blocks of positions and classes are gone through, and what goes through them, are tables of their own: limits of a
program decide the former and bytes of SBUF the latter, and the product of both would be several times as long.

The grid of real sizes is here too, and how one is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

from nkilib.core.hardware import div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.experimental.loss import (
    linear_distillation_backward,
    linear_distillation_forward,
    linear_distillation_mixture,
)
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes, PairSizes
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.rounds import SharedBuffers
from nkilib.experimental.loss.linear.block_schedule import PositionSplit, position_parts
from nkilib.experimental.loss.linear.class_schedule import BUFFERS, ClassSchedule, divide_classes
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear.tiling import fastest_tiling
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    MEMORY_LIMIT,
    KeptSizes,
    MixtureSizes,
    keeps_scores,
)
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import (
    ModelNeeds,
    PairForwardSizes,
    PairNeeds,
    StreamSizes,
    gradient_needs,
)
from nkilib.experimental.loss.linear_distillation.host.reference import PairProblem
from nkilib.experimental.loss.linear_distillation.host.tiling import backward_tiling, forward_tiling
from tests.experimental.loss.linear_distillation.pair_checks import (
    Launch,
    check_backward,
    check_forward,
    check_mixture,
    in_layouts,
)
from tests.experimental.loss.linear_distillation.pair_inputs import Sizes, pair_of
from tests.experimental.plans.coverage import Branches, Limits, PlanFamily, Size
from tests.experimental.plans.linear_backward import Planned, planned, standing, way_through_classes
from tests.experimental.plans.linear_forward import blocks_of_positions as blocks_of_forward
from tests.experimental.plans.linear_forward import way_through_classes as way_of_forward
from tests.experimental.plans.linear_sizes import DTYPES, TILE, require_room, several, where_it_fits

_POSITIONS = (1, 200, 1024, 2048, 4096, 20000)
_FEATURES = ((64, 96), (512, 1024), (1024, 2048), (2048, 4096), (2560, 5120), (4096, 8192))
_CLASSES = (100, 3000, 32128, 151936)
_WAYS = tuple(product(("bfloat16", "float32", "bfloat16"), (("vd", "vd"), ("dv", "vd"), ("vd", "dv")), (2, 2, 1)))
_VARIANTS = ("plain", "all")
_BETWEEN_WAYS = 7
# One of so many sizes of the wide grid is in the sample.
_SAMPLED = 11
TARGET = "trn2"

_SMALL = (16, 24)
_LOOPS: tuple[Limits, ...] = ({}, {"program_instructions": 1}, {"positions": 256})
# Room for one, two, or more tiles of positions and 128 classes, without options and with all of them.
_OF_FORWARD = tuple(
    ((positions, _SMALL, classes), {**loops, "sbuf_bytes": sbuf})
    for positions, classes in product((60, 300, 390, 512), (100, 300, 1100, 1180, 2140, 2320, 2380))
    for loops in _LOOPS
    for sbuf in (13500, 15000, 100000)
)
_OF_GROUPS: tuple[tuple[tuple[int, tuple[int, int], int], Limits], ...] = tuple(
    ((positions, features, classes), {**shared, **sbuf})
    for positions, classes in product((60, 200, 300, 390, 520), (100, 600, 1300))
    for features in (_SMALL, (700, 900))
    for shared in ({}, {"shared_classes": 100}, {"shared_classes": 300})
    for sbuf in ({}, {"sbuf_bytes": 16000}, {"sbuf_bytes": 25000}, {"sbuf_bytes": 40000})
)
_OF_VISITS = tuple(
    ((positions, _SMALL, classes), {**loops, "sbuf_bytes": sbuf})
    for positions, classes in product((60, 300, 390, 512, 900), (100, 300, 1100, 1180, 2140, 2320, 2380))
    for loops in _LOOPS
    for sbuf in (11300, 16100, 22000, 27000, 200000)
)
_OF_BACKWARD: tuple[tuple[tuple[int, tuple[int, int], int], Limits], ...] = tuple(
    ((positions, features, classes), {**sbuf, **further})
    for positions, features, classes in product((60, 300), (_SMALL, (150, 200), (300, 40)), (100, 300, 1100))
    for sbuf in ({}, {"sbuf_bytes": 60000}, {"sbuf_bytes": 40000}, {"sbuf_bytes": 32000}, {"sbuf_bytes": 26000})
    for further in ({}, {"resident_features": 16}, {"positions": 256}, {"program_instructions": 1})
)
_OF_CLASSES: tuple[tuple[tuple[int, tuple[int, int], int], Limits], ...] = tuple(
    ((positions, features, classes), {"sbuf_bytes": sbuf, "program_instructions": instructions})
    for positions, features, classes in product((60, 100, 200), (_SMALL, (400, 300)), (100, 640, 900))
    for sbuf in range(23000, 60000, 9000)
    for instructions in (1, 220, 260, 380)
)
_KL, _MIXED, _BETAS = (0.0, 1.0), (0.5,), (0.0, 0.5, 1.0)
_FORWARD, _BACKWARD = linear_distillation_forward, linear_distillation_backward


def size_of(number: int, positions: int, features: tuple[int, int], classes: int, variant: str, beta: float) -> Size:
    """A launch; what it is besides goes by its number."""
    dtype, layouts, cores = _WAYS[number * _BETWEEN_WAYS % len(_WAYS)]
    return {
        "positions": positions,
        "student_features": features[0],
        "teacher_features": features[1],
        "classes": classes,
        "dtype": dtype,
        "student_layout": layouts[0],
        "teacher_layout": layouts[1],
        "cores": cores,
        "variant": variant,
        "beta": beta,
    }


def grid(betas: tuple[float, ...]) -> Callable[[bool], Iterator[Size]]:
    """Real sizes: the wide grid, or a sample of it."""

    def sizes(wide: bool) -> Iterator[Size]:
        for number, sizes in enumerate(product(_POSITIONS, _FEATURES, _CLASSES, _VARIANTS)):
            if wide or number % _SAMPLED == 0:
                positions, features, classes, variant = sizes
                yield size_of(number, positions, features, classes, variant, betas[number % len(betas)])

    return sizes


def shrunk_grid(
    candidates: tuple[tuple[tuple[int, tuple[int, int], int], Limits], ...], betas: tuple[float, ...]
) -> Callable[[], Iterator[tuple[Size, Limits]]]:
    """Small sizes with smaller limits, each in several ways."""

    def sizes() -> Iterator[tuple[Size, Limits]]:
        for number, ((positions, features, classes), limits) in enumerate(candidates):
            for further, variant, beta in product(range(3), _VARIANTS, betas):
                yield size_of(number + further, positions, features, classes, variant, beta), limits

    return sizes


def needs_of(size: Size) -> PairNeeds:
    """Return the needs of a launch: nothing that is optional, or all of it."""
    is_all = size["variant"] == "all"
    model = ModelNeeds(is_all, is_all, is_all)
    mixed = 0.0 < size["beta"] < 1.0
    sums_bias = is_all and DTYPES[size["dtype"]].itemsize == 2
    return PairNeeds(model, model, mixed, size["beta"] == 1.0, is_all, is_all, sums_bias=sums_bias)


def forward_sizes(size: Size, program_share: float = 1.0) -> PairForwardSizes:
    """Return the sizes that the plan of a visit with both products depends on."""
    itemsize = DTYPES[size["dtype"]].itemsize
    student, teacher = (StreamSizes(size[f"{name}_features"], itemsize) for name in ("student", "teacher"))
    return PairForwardSizes(
        size["positions"],
        size["classes"],
        student,
        teacher,
        size["cores"],
        needs_of(size).of_products(student.products + teacher.products),
        program_share,
    )


def cost(size: Size) -> float:
    """Multiplications, and what each pair of tiles takes by itself."""
    tiles = div_ceil(size["positions"], TILE) * div_ceil(size["classes"], TILE)
    features = div_ceil(size["student_features"], TILE) + div_ceil(size["teacher_features"], TILE)
    return float(tiles * (features + 16))


def problem_of_size(size: Size) -> PairProblem:
    """Inputs for it; some of its positions do not count where it has everything."""
    is_all = size["variant"] == "all"
    sizes = Sizes(size["positions"], size["student_features"], size["teacher_features"], size["classes"])
    options: dict[str, Any] = {"temperature": 0.7, "with_bias": True, "logit_softcap": 5.0} if is_all else {}
    problem = pair_of(sizes, 7, DTYPES[size["dtype"]], beta=size["beta"], **options)
    if is_all:
        problem = replace(problem, teacher=replace(problem.teacher, logit_softcap=8.0))
    else:
        problem = replace(problem, labels=None, row_weight=None)
    return in_layouts(problem, size["student_layout"], size["teacher_layout"])


def family(
    name: str,
    kernel: Any,
    branches: Callable[[Size], Branches],
    check: Callable[[Size], None],
    betas: tuple[float, ...],
    candidates: tuple[tuple[tuple[int, tuple[int, int], int], Limits], ...],
) -> PlanFamily:
    """The family of a table over the grid; launches that have no room are one combination."""
    return PlanFamily(
        name=name,
        kernels=lambda size: (kernel,),
        sizes=grid(betas),
        branches=where_it_fits(branches),
        cost=cost,
        check=check,
        shrunk_sizes=shrunk_grid(candidates, betas),
    )


def _has_room(sizes: PairForwardSizes | KeptSizes | MixtureSizes, positions: int, tiling: LinearTiling) -> None:
    tiles = min(tiling.position_block // 128, div_ceil(positions, 128))
    require_room(sizes.bytes_of(tiles, tiling.class_block) <= usable_sbuf_bytes())


def _schedule(size: Size, plan: PositionSplit, shared: int, class_block: int, bodies: int) -> ClassSchedule:
    """Return the schedule of the first core."""
    division = divide_classes(size["classes"], shared, size["cores"], class_block)
    return ClassSchedule.make(division, 0, class_block, bodies)


def _of_visit(plan: PositionSplit, schedule: ClassSchedule) -> Branches:
    """How one visit of the classes goes through positions and classes."""
    results: Branches = {"blocks of positions": blocks_of_forward(plan), "classes": way_of_forward(schedule)}
    if plan.blocks > 1 and schedule.opening is not None:
        last = schedule.count + len(schedule.shared) - 1
        is_late = (last - schedule.opening.number) % BUFFERS == 0
        results["opens again"] = "after the last classes" if is_late else "beside them"
    return results


def _forward(size: Size) -> tuple[PairForwardSizes, PositionSplit, ClassSchedule]:
    """How a divergence of one model from the other is cut up: one visit, whose last classes the cores may share."""
    sizes = forward_sizes(size)
    tiling = forward_tiling(sizes, TARGET)
    _has_room(sizes, size["positions"], tiling)
    plan = sizes.position_plan(*tiling)
    shared = sizes.shared_classes(plan, tiling.class_block)
    return sizes, plan, _schedule(size, plan, shared, tiling.class_block, sizes.most_bodies(plan))


def branches_of_forward(size: Size) -> Branches:
    """How positions and classes are gone through."""
    _, plan, schedule = _forward(size)
    return _of_visit(plan, schedule)


def branches_of_groups(size: Size) -> Branches:
    """Tiles of positions that go through a block of classes together, and the classes that the cores share."""
    sizes, plan, schedule = _forward(size)
    groups = sizes.needs.group_tiles
    return {
        "shared": "none" if not schedule.shared else several(len(schedule.shared)),
        "groups": f"{several(div_ceil(plan.tiles, groups))}, up to {groups} each",
        "options": size["variant"],
    }


def branches_of_mixed(size: Size) -> Branches:
    """Name a mixture divergence's branches: scores are kept for the second visit, or both products run twice."""
    if not keeps_scores(size["positions"], size["classes"], MEMORY_LIMIT):
        return {"scores": "computed twice"}
    sizes = KeptSizes(forward_sizes(size), MEMORY_LIMIT)
    tiling = forward_tiling(sizes, TARGET)
    _has_room(sizes, size["positions"], tiling)
    blocks = sizes.blocks(tiling)
    bodies = sizes.most_bodies(blocks, tiling.class_block)
    schedule = _schedule(size, PositionSplit(1, 1, 0, False), 0, tiling.class_block, bodies)
    looped = f"loop, {several(len(blocks.trailing))} behind"
    ways = looped if blocks.pairs > 0 else several(len(blocks.copies))
    return {"classes": way_of_forward(schedule), "blocks of positions": ways}


def branches_of_mixture(size: Size) -> Branches:
    """Name the branches of the sums of a mixture, whose log-sum-exps are given."""
    sizes = MixtureSizes(forward_sizes(size))
    tiling = fastest_tiling(sizes, usable_sbuf_bytes())
    _has_room(sizes, size["positions"], tiling)
    plan = sizes.position_plan(tiling)
    return _of_visit(plan, _schedule(size, plan, 0, tiling.class_block, sizes.most_bodies(plan)))


def _of_backward(size: Size) -> tuple[Planned, bool]:
    """How a backward is cut up, and whether its positions are split."""
    itemsize, is_all = DTYPES[size["dtype"]].itemsize, size["variant"] == "all"
    parts = position_parts(size["positions"], max(size["student_features"], size["teacher_features"]))
    teacher = PairSizes.of_weight(size["teacher_features"], itemsize, size["teacher_layout"] == "vd", 0)
    sizes = BackwardSizes(
        parts.size,
        size["student_features"],
        size["classes"],
        itemsize,
        size["student_layout"] == "vd",
        gradient_needs(needs_of(size)),
        parts.is_split or is_all,
        further=(teacher,),
    )
    plan = BackwardPlan.of(sizes, *backward_tiling(sizes, size["cores"], TARGET))
    require_room(plan.fits)
    return planned(plan, size["classes"], size["cores"], parts.size), parts.is_split


def branches_of_operands(size: Size) -> Branches:
    """Where the operands of both models stand."""
    result, is_split = _of_backward(size)
    if is_split:
        return {"positions": "in parts"}
    return {
        "logits": standing(result.plan),
        "blocks of positions": several(result.plan.position_blocks),
        "tables": "in groups" if result.plan.needs.opened > 0 else "one",
    }


def branches_of_classes(size: Size) -> Branches:
    """How a core goes through its classes."""
    result, is_split = _of_backward(size)
    if is_split:
        return {"positions": "in parts"}
    return {"classes": way_through_classes(result)[0], "shortened": result.is_shortened}


def check_forward_of_size(size: Size) -> None:
    """Launch a size and compare all results with float64."""
    check_forward(problem_of_size(size), Launch(size["cores"]))


def check_mixture_of_size(size: Size) -> None:
    """Launch a size and compare all sums with float64."""
    check_mixture(problem_of_size(size), Launch(size["cores"]))


def check_backward_of_size(size: Size) -> None:
    """Launch a size and compare all gradients with float64; it takes the plan that its branches were read off."""
    result, is_split = _of_backward(size)
    with mock.patch.object(SharedBuffers, "make", wraps=SharedBuffers.make) as made:
        check_backward(problem_of_size(size), Launch(size["cores"]), adds=size["variant"] == "all")
    if not is_split:
        assert {call.args[1] for call in made.call_args_list} == {result.plan}


FAMILIES = tuple(
    family(f"linear_distillation_{name}", kernel, branches, check, betas, candidates)
    for name, kernel, branches, check, betas, candidates in (
        ("forward", _FORWARD, branches_of_forward, check_forward_of_size, _KL, _OF_FORWARD),
        ("groups", _FORWARD, branches_of_groups, check_forward_of_size, _KL, _OF_GROUPS),
        ("mixed", _FORWARD, branches_of_mixed, check_forward_of_size, _MIXED, _OF_VISITS),
        ("mixture", linear_distillation_mixture, branches_of_mixture, check_mixture_of_size, _MIXED, _OF_VISITS),
        ("operands", _BACKWARD, branches_of_operands, check_backward_of_size, _BETAS, _OF_BACKWARD),
        ("classes", _BACKWARD, branches_of_classes, check_backward_of_size, _BETAS, (*_OF_CLASSES, *_OF_BACKWARD)),
    )
)
