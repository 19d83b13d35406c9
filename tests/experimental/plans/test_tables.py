# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every combination of branches that a chooser takes by default is launched with data, for every public kernel.

Facts that are no branch of a plan of the fused linear cross-entropy vary over the rows of its tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import nkilib.simulator
from nkilib.experimental.public_kernels import public_kernels
from tests.experimental.plans import linear_backward, linear_forward
from tests.experimental.plans.coverage import PlanFamily, Row
from tests.experimental.plans.families import FAMILIES, WITHOUT_CHOICE
from tests.experimental.plans.linear_sizes import DTYPES, ENDS, SHARES, VARIANTS, facts_of

_STALE = "run python -m tools.write_plans, and look at the new rows"
_ROWS = [(family, row) for family in FAMILIES.values() for row in family.rows()]
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)

KERNELS = (
    (linear_forward.FORWARD_PLANS,),
    (linear_backward.OPERANDS, linear_backward.CLASSES),
    (linear_backward.FORWARDS_IN_ONE, linear_backward.CLASSES_IN_ONE, linear_backward.OPERANDS_IN_ONE),
)
EVERY_FACT = {
    *(f"{name}: {end}" for name in ("positions", "features", "classes") for end in ENDS),
    *(f"dtype: {dtype}" for dtype in DTYPES),
    "layout: vd",
    "layout: dv",
    *(f"variant: {variant}" for variant in VARIANTS),
    *(f"cores: {shares}" for shares in SHARES),
}


@pytest.fixture(autouse=True)
def _pinned_options() -> Iterator[None]:
    with nkilib.simulator.using(target="trn2", precise_fp=True):
        yield


@contextmanager
def _launched_kernels(kernel_type: type) -> Iterator[list[Any]]:
    """All kernels that a number of cores is given to."""
    launched: list[Any] = []
    of_cores = kernel_type.__getitem__

    def noted(kernel: Any, cores: Any) -> Any:
        launched.append(kernel)
        return of_cores(kernel, cores)

    with patch.object(kernel_type, "__getitem__", noted):
        yield launched


@pytest.mark.parametrize(("family", "row"), _ROWS, ids=[f"{family.name}-{row.name}" for family, row in _ROWS])
def test_launch_of_a_row(family: PlanFamily, row: Row) -> None:
    kernels = family.kernels(row.launched)
    with _launched_kernels(type(kernels[0])) as launched:
        family.launch(row)
    assert all(any(kernel is other for other in launched) for kernel in kernels), "it launches no kernel that it states"


@every_family
def test_a_table_has_what_a_sample_of_sizes_takes(family: PlanFamily) -> None:
    assert not family.missing(wide=False), _STALE


@pytest.mark.sweep
@every_family
def test_a_table_has_what_all_sizes_take(family: PlanFamily) -> None:
    assert not family.missing(wide=True), _STALE


@every_family
def test_every_row_names_the_test_that_launches_it(family: PlanFamily) -> None:
    rows = family.rows()
    assert [row.test for row in rows] == [family.node_of(row) for row in rows], _STALE
    assert len({row.test for row in rows}) == len(rows) > 0, _STALE


def test_a_row_names_a_test_that_there_is() -> None:
    here = f"{__name__.replace('.', '/')}.py::{test_launch_of_a_row.__name__}"
    assert {row.test.partition("[")[0] for _, row in _ROWS} == {here}


def test_every_public_kernel_has_its_plans_in_a_table() -> None:
    """A kernel without a chooser is listed with the reason."""
    listed = {kernel for family in FAMILIES.values() for size in family.sizes(False) for kernel in family.kernels(size)}
    known = public_kernels()
    without = {name for name, kernel in known.items() if kernel not in listed}
    assert without == set(WITHOUT_CHOICE), "add a PlanFamily to families.py, and run python -m tools.write_plans"
    assert listed <= set(known.values())


@pytest.mark.parametrize("families", KERNELS, ids=lambda families: families[0].name)
def test_launches_have_all_that_is_no_branch(families: tuple[PlanFamily, ...]) -> None:
    """All types, options, shares of cores, and ends of operands, whole and ragged, somewhere in the tables."""
    launched = [row.launched for family in families for row in family.rows()]
    assert {fact for size in launched for fact in facts_of(size)} == EVERY_FACT


def test_operands_stand_everywhere_with_all_that_is_no_branch() -> None:
    """W^T streams in 16 bits alone, and of several stripes of features; one tile of X^T always stays.

    Both stream in [V, D] alone, and in tiles of logits that are wide enough.
    """
    never = {
        "W^T streams by X^T": {"dtype: float32", "features: less than a tile"},
        "X^T streams": {"positions: less than a tile"},
        "X^T and W^T stream": {
            "dtype: float32",
            "layout: dv",
            "cores: two, one without classes",
            *(f"{name}: less than a tile" for name in ("positions", "features", "classes")),
        },
    }
    lacks: dict[str, set[str]] = {}
    for row in linear_backward.OPERANDS.rows():
        facts = {fact for fact in EVERY_FACT if not fact.startswith("variant")}
        lacks.setdefault(row.branches["logits"], facts).difference_update(facts_of(row.launched))
    assert {logits: facts for logits, facts in lacks.items() if facts} == never


@pytest.mark.sweep
@pytest.mark.parametrize(
    "row", [*linear_backward.OPERANDS.rows(), *linear_backward.CLASSES.rows()], ids=lambda row: row.name
)
def test_every_plan_takes_the_gradient_of_the_entropy(row: Row) -> None:
    linear_backward.check_with_entropy(row)
