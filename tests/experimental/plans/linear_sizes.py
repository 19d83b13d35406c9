# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sizes of launches of the fused linear cross-entropy: the grid of real ones, and how one is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem
from tests.experimental.loss.linear_cross_entropy.linear_inputs import (
    BF16,
    FP16,
    FP32,
    Sizes,
    in_layout,
    normal_problem,
    with_ignored,
    with_options,
)
from tests.experimental.plans.coverage import Branches, PlanFamily, Size

TILE = 128
SHARES = ("one", "two, one without classes", "two, alike", "two, unlike")
NO_ROOM: Branches = {"has room": False}
DTYPES = {"bfloat16": BF16, "float16": FP16, "float32": FP32}

_POSITIONS = (1, 100, 128, 200, 512, 640, 1024, 1500, 2048, 4096, 5000, 8192, 16384)
_FEATURES = (16, 100, 128, 384, 512, 640, 768, 1024, 1280, 2048, 3000, 4096, 5120, 6144, 8192, 12288, 16384)
_CLASSES = (10, 128, 300, 1000, 3000, 4096, 8192, 16064, 32128, 50257, 65536, 128256, 151936, 262144)
# The choice takes a tenth of a second there.
_MOST_POSITIONS = tuple(product((65536,), (128, 1024, 4096), (3000, 32128, 128256)))
# Sizes at which a weight gradient of kept pieces of X once was wrong.
_KEPT_PIECES = (
    (640, 1024, 3000),
    (1024, 640, 3000),
    (756, 1280, 2688),
    (543, 640, 5903),
    (640, 768, 3500),
    (1024, 768, 3000),
    (1024, 1024, 4000),
    (1280, 1024, 3000),
    (2048, 1024, 3500),
)
# Variants of a launch of some N, D and V: the sizes of the wide grid take them round-robin.
_WAYS = tuple(product(("bfloat16", "float32"), ("vd", "dv"), (1, 2), ("plain", "all", "sum")))
_BETWEEN_WAYS = 7
# One of so many sizes of the wide grid is in the sample.
_SAMPLED = 31


@dataclass(frozen=True)
class Variant:
    """The properties of a launch beside its sizes.

    Attributes:
        options: one of ``OPTIONS``.
        further: whether there are upstream gradients of lse and of the log-probability.
        entropy: whether there is an upstream gradient of the entropy.
        adds: whether dW is added to a float32 sum.
        wanted: the gradients that are wanted.
        float32: whether dX is not rounded.
        with_pair: whether maximum and log_sum are given.
        results: results of the forward, beyond loss and lse.
    """

    options: str = "none"
    further: bool = False
    entropy: bool = False
    adds: bool = False
    wanted: tuple[str, ...] = ("input", "weight", "bias")
    float32: bool = False
    with_pair: bool = False
    results: tuple[str, ...] = ()


_EVERY_RESULT = ("target", "argmax", "entropy", "distance_sum", "log_sum", "log_sum_squares", "mean_logit")
VARIANTS = {
    "plain": Variant(),
    "all": Variant("all", further=True, entropy=True, results=_EVERY_RESULT),
    "sum": Variant(adds=True, results=("argmax",)),
    "bias": Variant("bias", results=("target",)),
    "cap": Variant("softcap"),
    "rest": Variant("weights, smoothing", further=True, entropy=True, with_pair=True, results=("distance_sum",)),
    "z-loss": Variant("z-loss", float32=True, results=("log_sum",)),
    "all, sum": Variant("all", further=True, entropy=True, adds=True, results=("entropy",)),
    "dX": Variant("bias", wanted=("input",)),
    "dW": Variant("bias", wanted=("weight",)),
    "db": Variant("bias", wanted=("bias",)),
}
# Of which the grid meets every size: they decide the choice of a tiling, how long a program is and what it keeps.
DECISIVE = ("plain", "all")


def sizes(wide: bool, variants: tuple[str, ...]) -> Iterator[Size]:
    """The grid of real sizes: the wide one, or a sample of it; of the given variants alone."""
    known = (size_of(*sizes, "bfloat16", layout, 2, "plain") for sizes in _KEPT_PIECES for layout in ("vd", "dv"))
    return chain(known, (size for size in _grid(1 if wide else _SAMPLED) if size["variant"] in variants))


def _grid(every: int) -> Iterator[Size]:
    """Every so many of the sizes of the wide grid."""
    for number, sizes in enumerate(chain(product(_POSITIONS, _FEATURES, _CLASSES), _MOST_POSITIONS)):
        if number % every == 0:
            yield size_of(*sizes, *_WAYS[number * _BETWEEN_WAYS % len(_WAYS)])


def size_of(positions: int, features: int, classes: int, dtype: str, layout: str, cores: int, variant: str) -> Size:
    """Return the size of a launch."""
    return {
        "positions": positions,
        "features": features,
        "classes": classes,
        "dtype": dtype,
        "layout": layout,
        "cores": cores,
        "variant": variant,
    }


def cost(size: Size) -> float:
    """Multiplications, and what each tile of logits takes by itself."""
    positions, classes = div_ceil(size["positions"], TILE), div_ceil(size["classes"], TILE)
    return float(positions * classes * (div_ceil(size["features"], TILE) + 8))


def where_it_fits(branches: Callable[[Size], Branches]) -> Callable[[Size], Branches]:
    """The branches of a launch; of one that has no room under the limits in force, that it has none."""

    def found(size: Size) -> Branches:
        try:
            return branches(size)
        except ValueError:
            return dict(NO_ROOM)

    return found


def require_room(has_room: bool) -> None:
    """Raise a ValueError, as the chooser does."""
    if not has_room:
        raise ValueError("the plan must fit SBUF under the limits in force; raise sbuf_bytes")


def shares_kind(size: Size) -> str:
    """How the cores of a launch share the classes."""
    one, idle, alike, unlike = SHARES
    if size["cores"] == 1:
        return one
    if size["classes"] <= TILE:
        return idle
    return alike if size["classes"] % (2 * TILE) == 0 else unlike


def several(count: int) -> str:
    """A number of parts as a branch."""
    return "one" if count == 1 else "several"


def problem_of_size(size: Size) -> LinearProblem:
    """Inputs for it; some of its positions do not count."""
    sizes = Sizes(size["positions"], size["features"], size["classes"], DTYPES[size["dtype"]])
    rng = np.random.default_rng([size["positions"], size["features"], size["classes"], size["cores"]])
    problem = in_layout(with_ignored(normal_problem(sizes, rng), rng, 0.1), size["layout"])
    return with_options(problem, VARIANTS[size["variant"]].options)


def linear_family(
    name: str,
    kernel: Any,
    branches: Callable[[Size], Branches],
    check: Callable[[Size], None],
    variants: tuple[str, ...] = DECISIVE,
) -> PlanFamily:
    """The family of a table over the grid of the given variants; launches that have no room are one combination."""
    return PlanFamily(
        name=name,
        kernels=lambda size: (kernel,),
        sizes=lambda wide: sizes(wide, variants),
        branches=where_it_fits(branches),
        cost=cost,
        check=check,
    )
