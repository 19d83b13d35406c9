# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Plan coverage: which combinations of branches the choosers of tilings take by default, and a launch of each.

A kernel cuts a launch up by a plan, and a plan has branches: operands that stay or stream, one block or several, whole
ends or ragged ones. A test that only meets small sizes misses the branches of large ones. So for each family of kernels
a grid of sizes goes through the chooser itself, the branches are read off the fields of the plan that it gives, and a
committed table, ``tables/<family>.jsonl``, lists every combination that occurs with the smallest size of the grid that
meets it and the size that a test launches with data. ``python -m tools.write_plans`` writes the tables.

Where the smallest size is too dear to simulate, the row launches a smaller size under smaller limits
(:mod:`nkilib.core.plan_limits`), at which the plan has the same branches.

Computations of a kernel from shapes alone, outside of a launch, run for any core (:func:`on_core`).
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.nki import nisa, nl
from nkilib.simulator import spec

TABLES = Path(__file__).with_name("tables")
TEST = "tests/experimental/plans/test_tables.py::test_launch_of_a_row"

Size = dict[str, Any]
Branches = dict[str, Any]
Limits = dict[str, int]

TYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}


@dataclass(frozen=True)
class Row:
    """One combination of branches.

    Attributes:
        branches: by name, as :attr:`PlanFamily.branches` gives them.
        smallest: the cheapest size of the wide grid that meets it without smaller limits.
        launched: the size that the test launches.
        limits: fields of :class:`PlanLimits` under which it does; none: the usual ones.
        test: the pytest node that launches it.
    """

    branches: Branches
    smallest: Size
    launched: Size
    limits: Limits = field(default_factory=dict)
    test: str = ""

    @property
    def name(self) -> str:
        """The name for the identifier of a test."""
        return "-".join(str(value) for value in [*self.launched.values(), *self.limits.values()])


def _no_sizes() -> Iterator[tuple[Size, Limits]]:
    """Return no sizes, for a family whose smallest sizes are cheap."""
    return iter(())


@dataclass(frozen=True)
class PlanFamily:
    """Kernels whose launches are cut up by one kind of plan.

    Attributes:
        name: the name of the table.
        kernels: the public kernels that take the plan of a size.
        sizes: the grid: real sizes, options and numbers of cores; True for the wide one, which takes minutes, False for
            a sample of it that takes seconds.
        branches: a function that returns the branches that the plan of a launch takes, from the plan's own fields. It
            is called under the limits of a row.
        cost: an order of sizes by what it takes to simulate them with data; about the elements that are moved, or the
            multiplications.
        check: launch a size with data and compare all results with float64.
        shrunk_sizes: sizes, each with fields of :class:`PlanLimits`, that may be launched for a row where they are
            cheaper than the smallest size of the grid.
    """

    name: str
    kernels: Callable[[Size], tuple[Any, ...]]
    sizes: Callable[[bool], Iterator[Size]]
    branches: Callable[[Size], Branches]
    cost: Callable[[Size], float]
    check: Callable[[Size], None]
    shrunk_sizes: Callable[[], Iterator[tuple[Size, Limits]]] = _no_sizes

    @property
    def table(self) -> Path:
        """The committed table."""
        return TABLES / f"{self.name}.jsonl"

    def rows(self) -> list[Row]:
        """Return the rows of the committed table."""
        return [Row(**json.loads(line)) for line in self.table.read_text(encoding="utf-8").splitlines()]

    def write(self, rows: list[Row]) -> None:
        """Write the table, in the order of the branches."""
        lines = sorted((asdict(row) for row in rows), key=lambda row: json.dumps(row["branches"]))
        self.table.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    def node_of(self, row: Row) -> str:
        """The pytest node that launches a row."""
        return f"{TEST}[{self.name}-{row.name}]"

    def met(self, wide: bool) -> dict[str, Size]:
        """The cheapest size of the grid for each combination, by the combination's :func:`key`."""
        results: dict[str, Size] = {}
        for size in self.sizes(wide):
            combination = key(self.branches(size))
            if combination not in results or self.cost(size) < self.cost(results[combination]):
                results[combination] = size
        return results

    def cheapest(self) -> dict[str, tuple[Size, Limits]]:
        """The cheapest of the shrunk sizes for each combination, with its limits, by the combination's :func:`key`.

        A size that the kernel refuses, since its limits have no room for it, is passed over.
        """
        results: dict[str, tuple[Size, Limits]] = {}
        for size, limits in self.shrunk_sizes():
            with shrunk(PlanLimits(**limits)):
                try:
                    combination = key(self.branches(size))
                except AssertionError:
                    continue
            if combination not in results or self.cost(size) < self.cost(results[combination][0]):
                results[combination] = size, limits
        return results

    def missing(self, wide: bool) -> dict[str, Size]:
        """Combinations that the grid meets and the table lacks, with a size for each."""
        listed = {key(row.branches) for row in self.rows()}
        return {combination: size for combination, size in self.met(wide).items() if combination not in listed}

    def launch(self, row: Row) -> None:
        """Launch a row with data, having made sure that its plan takes the branches of the row.

        Raises:
            AssertionError: it takes others, or a result is wrong.
        """
        assert key(self.branches(row.smallest)) == key(row.branches), "the table is stale: python -m tools.write_plans"
        with shrunk(PlanLimits(**row.limits)):
            assert key(self.branches(row.launched)) == key(row.branches)
            self.check(row.launched)


def key(branches: Branches) -> str:
    """Branches as a string, for comparisons with what a table holds."""
    return json.dumps(branches, sort_keys=True)


@contextmanager
def on_core(core: int, cores: int) -> Iterator[None]:
    """``nl.program_id`` and ``nl.num_programs`` are these, so that a plan is computed as in a kernel."""
    with (
        patch.object(nl, "program_id", lambda axis=0: core),
        patch.object(nl, "num_programs", lambda axes=0: cores),
        patch.object(nisa, "get_nc_version", lambda: nisa.nc_version.gen3),
    ):
        yield


class _Reached(Exception):
    """A function is called, with these arguments or with this result."""


def arguments_of(where: str, kernel: Any, **inputs: Any) -> tuple[Any, ...]:
    """Return the arguments with which a kernel that has checked and planned a launch calls ``where``.

    The function ``where`` is given by its full name. Tensors are :func:`nkilib.simulator.spec`; nothing is
    computed. Call this under :func:`on_core`.
    """

    def stop(*arguments: Any) -> None:
        raise _Reached(arguments)

    return tuple(_reached(where, stop, kernel, inputs))


def result_of(where: str, kernel: Any, **inputs: Any) -> Any:
    """Return the result that the function ``where`` gives the kernel, as :func:`arguments_of` does its arguments."""
    function = pkgutil.resolve_name(where)

    def stop(*arguments: Any, **named: Any) -> None:
        raise _Reached(function(*arguments, **named))

    return _reached(where, stop, kernel, inputs)


def _reached(where: str, stop: Any, kernel: Any, arguments: dict[str, Any]) -> Any:
    def allocated(shape: tuple[int, ...], dtype: Any, **_: Any) -> Any:
        return spec(tuple(shape), dtype)

    with patch(where, stop), patch.object(nl, "ndarray", allocated):
        try:
            kernel.__wrapped__(**arguments)
        except _Reached as reached:
            return reached.args[0]
    raise AssertionError(f"the kernel did not call {where}")


def assert_within(what: str, came: Any, exact: Any, bound: Any) -> None:
    """Every number is as far from the reference as its bound at most."""
    worst = error_over_bound(np.asarray(came), np.asarray(exact), np.asarray(bound)).max()
    assert worst <= 1.0, f"{what}: the worst error is {worst:.3g} times its bound"


def count_class(count: int) -> str:
    """``"none"``, ``"one"`` or ``"several"``."""
    return ("none", "one")[count] if count < 2 else "several"


def cut_class(count: int, is_ragged: bool) -> str:
    """``"one"``, or whether the last one of several is as large as the others."""
    if count < 2:
        return count_class(count)
    return "several, the last one ragged" if is_ragged else "several"
