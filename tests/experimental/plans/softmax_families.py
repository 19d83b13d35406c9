# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Families of plans of softmax: several tables of the branches of one plan, over one grid of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nkilib.core.plan_limits import PlanLimits, limits_in_force
from nkilib.experimental.softmax.column_plan import is_short
from tests.experimental.plans.coverage import Branches, Limits, PlanFamily, Size
from tests.experimental.plans.softmax_launches import Grid, Launched, check, cost
from tests.experimental.softmax.row_checks import KERNELS


def has_short_columns(launched: Launched) -> bool:
    """Whether a partition takes whole columns of it, where its axis is not the last one."""
    dtypes = launched.dtypes
    read = (dtypes.grad, dtypes.grad_x) if launched.is_forward else dtypes
    return is_short(launched.length, tuple(read), None)


@dataclass(frozen=True)
class Grids:
    """Where a plan is looked for.

    Attributes:
        wide, sample: the grids of real sizes.
        small: the grid of small sizes and limits, of which ``drawn`` are drawn at random.
        drawn, seed: how many, and from where on.
        takes: whether a launch has such a plan at all.
    """

    wide: Grid
    sample: Grid
    small: Grid
    drawn: int
    seed: int
    takes: Callable[[Launched], bool] = lambda launched: True

    def sizes(self, wide: bool) -> Iterator[Size]:
        """Return the sizes of the wide grid, or of the sample."""
        return (launched.size for launched in (self.wide if wide else self.sample).sizes() if self.takes(launched))

    def shrunk_sizes(self) -> Iterator[tuple[Size, Limits]]:
        """Small tensors under small limits."""
        drawn = self.small.drawn(self.drawn, self.seed)
        return ((launched.size, limits) for launched, limits in drawn if self.takes(launched))


def families_of(
    grids: Grids,
    every_branch: Callable[[Launched, PlanLimits], Branches],
    tables: Mapping[str, tuple[str, ...]],
) -> tuple[PlanFamily, ...]:
    """A family for each table.

    Args:
        grids: the grids of all tables.
        every_branch: a function that returns every branch of the plan of a launch under the limits in force, which it
            is given as the key of its cache.
        tables: the branches that each one lists, by name.
    """
    return tuple(
        PlanFamily(
            name=name,
            kernels=_kernels,
            sizes=grids.sizes,
            branches=_some_of(every_branch, listed),
            cost=cost,
            check=check,
            shrunk_sizes=grids.shrunk_sizes,
        )
        for name, listed in tables.items()
    )


def _kernels(size: Size) -> tuple[Any, ...]:
    return (KERNELS[size["kernel"]].function,)


def _some_of(
    every_branch: Callable[[Launched, PlanLimits], Branches], listed: tuple[str, ...]
) -> Callable[[Size], Branches]:
    def branches(size: Size) -> Branches:
        taken = every_branch(Launched.of(size), limits_in_force())
        return {name: taken[name] for name in listed}

    return branches
