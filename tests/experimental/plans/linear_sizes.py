# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sizes of launches of the fused linear cross-entropy: the grid of real ones, how one is launched, and small ones.

A search finds small sizes and limits at which plans take the branches of large ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

import numpy as np

from nkilib.core.hardware import div_ceil
from nkilib.core.plan_limits import PlanLimits, shrunk
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
from tests.experimental.plans.coverage import Branches, PlanFamily, Row, Size, key

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

_EVERY_RESULT = ("target", "argmax", "entropy", "distance_sum", "log_sum", "log_sum_squares", "mean_logit")
# Of which the grid meets every size: they decide the choice of a tiling, how long a program is and what it keeps.
DECISIVE = ("plain", "all")
_SEARCHED_POSITIONS = (1, 60, 128, 130, 200, 256, 300, 384, 520, 650, 700, 900, 1100, 1400, 2000)
_SEARCHED_FEATURES = (16, 48, 100, 128, 200, 256, 400, 520, 640, 700)
_SEARCHED_CLASSES = (
    10,
    100,
    128,
    200,
    256,
    300,
    500,
    640,
    777,
    900,
    1000,
    1300,
    1600,
    2000,
    2600,
    3500,
    5000,
    7000,
)
# How many elements of an operand end in its last tile.
ENDS = ("whole", "ragged", "less than a tile")
# Launches that are kept for a combination, to choose from.
_KEPT = 12
_STEPS, _CHANGES = 4, 40
_LIMITS = ("sbuf_bytes", "program_instructions", "resident_features", "shared_classes", "weight_tiles", "piece_tiles")


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


@dataclass(frozen=True)
class Candidate:
    """A launch under limits."""

    size: Size
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def facts(self) -> frozenset[str]:
        """The facts that vary over a table."""
        return frozenset(facts_of(self.size))


def facts_of(size: Size) -> Iterator[str]:
    """Yield the facts that are no branch of a table and have to vary over its rows."""
    for name in ("positions", "features", "classes"):
        whole, ragged, small = ENDS
        yield f"{name}: {whole if size[name] % TILE == 0 else ragged if size[name] > TILE else small}"
    for name in ("dtype", "layout", "variant"):
        yield f"{name}: {size[name]}"
    yield f"cores: {shares_kind(size)}"


def _pairs(row: Row, candidate: Candidate) -> set[tuple[str, str]]:
    """Pair each branch with each fact that varies."""
    return {(f"{name}: {value}", fact) for name, value in row.branches.items() for fact in candidate.facts}


class Search:
    """Launches by family and combination, the cheapest ones first."""

    def __init__(
        self, families: list[PlanFamily], seed: int, extend: Callable[[Size, Any], None] | None = None
    ) -> None:
        self.families = families
        self.rng = np.random.default_rng(seed)
        self.extend = extend
        self.found: dict[str, dict[str, list[Candidate]]] = {family.name: {} for family in families}

    def try_at_random(self, count: int) -> None:
        """Try ``count`` random sizes under limits."""
        for _ in range(count):
            self.take(self._random())

    def take_row(self, row: Row) -> None:
        """Note what a row launches now."""
        self.take(Candidate(row.launched, row.limits))

    def approach(self, family: PlanFamily, row: Row, most: float, rounds: int) -> None:
        """Change launches whose branches differ least from those of a row, until one has them all and is cheap."""
        wished = key(row.branches)
        for _ in range(rounds):
            kept = self.found[family.name].get(wished, [])
            if kept and cost(kept[0].size) <= most:
                return
            near = self._nearest(family, row)
            for _ in range(_CHANGES):
                start = near[int(self.rng.integers(len(near)))]
                self.take(self._changed(start))

    def make_smaller(self, family: PlanFamily, row: Row, most: float) -> None:
        """Go on from the cheapest launches of a row, one change at a time, until one costs no more than that."""
        for _ in range(_STEPS):
            best = self.found[family.name].get(key(row.branches), [])[:2]
            if best and cost(best[0].size) <= most:
                break
            for candidate in best:
                for smaller in self._smaller(candidate):
                    self.take(smaller)
            if self.found[family.name].get(key(row.branches), [])[:2] == best:
                break

    def _nearest(self, family: PlanFamily, row: Row) -> list[Candidate]:
        """Some launches that take most of the branches of a row, the cheap ones first."""
        ranked = []
        for combination, kept in self.found[family.name].items():
            branches = json.loads(combination)
            names = branches.keys() | row.branches.keys()
            differ = sum(branches.get(name) != row.branches.get(name) for name in names)
            ranked += [(differ, cost(candidate.size), number, candidate) for number, candidate in enumerate(kept[:3])]
        ranked.sort(key=lambda item: item[:2])
        return [item[3] for item in ranked[:8]]

    def _changed(self, start: Candidate) -> Candidate:
        """Return the launch with one to three properties of another launch."""
        other = self._random()
        size, limits = dict(start.size), dict(start.limits)
        names = [*size, *_LIMITS]
        for name in self.rng.choice(names, int(self.rng.integers(1, 4)), replace=False):
            if name in size:
                size[name] = other.size.get(name, size[name])
            elif name in other.limits:
                limits[name] = other.limits[name]
            else:
                limits.pop(name, None)
        return Candidate(size, limits)

    def take(self, candidate: Candidate) -> None:
        """Note it, by what it takes in all families."""
        with shrunk(PlanLimits(**candidate.limits)):
            for family in self.families:
                branches = family.branches(candidate.size)
                if branches == NO_ROOM:
                    continue
                combination = key(branches)
                kept = self.found[family.name].setdefault(combination, [])
                if all(item.size != candidate.size for item in kept):
                    kept.append(candidate)
                    kept.sort(key=lambda item: cost(item.size))
                    del kept[_KEPT:]

    def launches(self, family: PlanFamily, rows: list[Row], most: float) -> list[Row]:
        """The rows with launches that cost at most so much, or are the cheapest, and vary in what is no branch."""
        seen: set[tuple[str, str]] = set()
        result: list[Row] = []
        taken: list[Candidate] = []
        for row in sorted(rows, key=lambda row: key(row.branches)):
            own = Candidate(row.smallest)
            kept = sorted([*self.found[family.name].get(key(row.branches), []), own], key=lambda item: cost(item.size))
            limit = max(most, 1.3 * cost(kept[0].size))
            affordable = [item for item in kept if cost(item.size) <= limit and item not in taken]
            best = max(affordable, key=lambda item, row=row: (len(_pairs(row, item) - seen), -cost(item.size)))
            taken.append(best)
            seen |= _pairs(row, best)
            changed = replace(row, launched=best.size, limits=best.limits)
            result.append(replace(changed, test=family.node_of(changed)))
        return result

    def _random(self) -> Candidate:
        pick = self.rng.choice
        size: Size = {
            "positions": int(pick(_SEARCHED_POSITIONS)),
            "features": int(pick(_SEARCHED_FEATURES)),
            "classes": int(pick(_SEARCHED_CLASSES)),
            "dtype": str(pick(("bfloat16", "float16", "float32"))),
            "layout": str(pick(("vd", "dv"))),
            "cores": int(pick((1, 2, 2))),
            "variant": str(pick(list(VARIANTS))),
        }
        limits: dict[str, int] = {}
        if self.rng.random() < 0.65:
            limits["sbuf_bytes"] = int(2.0 ** self.rng.uniform(12.0, 16.5)) // 256 * 256
        if self.rng.random() < 0.6:
            limits["program_instructions"] = int(2.0 ** self.rng.uniform(3.5, 11.5))
        if self.rng.random() < 0.4:
            limits["resident_features"] = 1
        if self.rng.random() < 0.4:
            limits["shared_classes"] = int(pick((100, 200)))
        for name in ("weight_tiles", "piece_tiles"):
            if self.rng.random() < 0.5:
                limits[name] = int(pick((1, 2)))
        if self.extend is not None:
            self.extend(size, self.rng)
        return Candidate(size, limits)

    def _smaller(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yield the launch with one size less, or with limits that differ a little."""
        for name, values in (
            ("positions", _SEARCHED_POSITIONS),
            ("features", _SEARCHED_FEATURES),
            ("classes", _SEARCHED_CLASSES),
        ):
            less = [value for value in values if value < candidate.size[name]]
            for value in less[-2:]:
                yield replace(candidate, size={**candidate.size, name: value})
        for name in ("sbuf_bytes", "program_instructions"):
            if name in candidate.limits:
                for share in (0.7, 0.85, 1.2):
                    limits = {**candidate.limits, name: max(8, int(candidate.limits[name] * share))}
                    for size in self._halved(candidate.size):
                        yield Candidate(size, limits)

    @staticmethod
    def _halved(size: Size) -> Iterator[Size]:
        yield {**size, "positions": max(1, size["positions"] * 3 // 4)}
        yield {**size, "classes": max(1, size["classes"] * 3 // 4)}
