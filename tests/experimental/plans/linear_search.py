# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A search for small sizes and limits at which plans of the linear cross-entropy take the branches of large ones.

``python -m tools.shrink_linear_plans`` runs it. It tries sizes and limits at random, changes those that come near to a
row, and makes what it has smaller. Then it takes for each row of a table the launch that adds most to what the rows
before have: ends that are whole or ragged, dtypes, cores and options, which are no branches of a table and have to vary
over it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nkilib.core.plan_limits import PlanLimits, shrunk
from tests.experimental.plans.coverage import PlanFamily, Row, Size, key
from tests.experimental.plans.linear_sizes import NO_ROOM, TILE, VARIANTS, cost, shares_kind

_POSITIONS = (1, 60, 128, 130, 200, 256, 300, 384, 520, 650, 700, 900, 1100, 1400, 2000)
_FEATURES = (16, 48, 100, 128, 200, 256, 400, 520, 640, 700)
_CLASSES = (10, 100, 128, 200, 256, 300, 500, 640, 777, 900, 1000, 1300, 1600, 2000, 2600, 3500, 5000, 7000)
# How many elements of an operand end in its last tile.
ENDS = ("whole", "ragged", "less than a tile")
# Launches that are kept for a combination, to choose from.
_KEPT = 12
_STEPS, _CHANGES = 4, 40
_LIMITS = ("sbuf_bytes", "program_instructions", "resident_features", "shared_classes", "weight_tiles", "piece_tiles")


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
            "positions": int(pick(_POSITIONS)),
            "features": int(pick(_FEATURES)),
            "classes": int(pick(_CLASSES)),
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
        for name, values in (("positions", _POSITIONS), ("features", _FEATURES), ("classes", _CLASSES)):
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
