# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sizes of launches of distillation from hidden states: the grid of real ones, and how one is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_distillation.host.forward_tiling import PairForwardSizes, StreamSizes
from nkilib.experimental.loss.linear_distillation.host.needs import ModelNeeds, PairNeeds
from nkilib.experimental.loss.linear_distillation.host.reference import PairProblem
from tests.experimental.loss.linear_distillation.host.pairs import Sizes, pair_of
from tests.experimental.loss.linear_distillation.pair_checks import in_layouts
from tests.experimental.plans.coverage import Branches, Limits, PlanFamily, Size
from tests.experimental.plans.linear_sizes import DTYPES, TILE, where_it_fits

_POSITIONS = (1, 200, 1024, 2048, 4096, 20000)
_FEATURES = ((64, 96), (512, 1024), (1024, 2048), (2048, 4096), (2560, 5120), (4096, 8192))
_CLASSES = (100, 3000, 32128, 151936)
_WAYS = tuple(product(("bfloat16", "float32", "bfloat16"), (("vd", "vd"), ("dv", "vd"), ("vd", "dv")), (2, 2, 1)))
_VARIANTS = ("plain", "all")
_BETWEEN_WAYS = 7
# One of so many sizes of the wide grid is in the sample.
_SAMPLED = 11
TARGET = "trn2"


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
