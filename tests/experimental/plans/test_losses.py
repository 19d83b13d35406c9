"""Every combination of branches that the choosers of the losses take by default is launched with data.

Linear cross-entropy and softmax have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.experimental.plans import cross_entropy, elementwise
from tests.experimental.plans.coverage import PlanFamily, Row

_FAMILIES = (cross_entropy.FAMILY, elementwise.FAMILY)
every_family = pytest.mark.parametrize("family", _FAMILIES, ids=lambda family: family.name)


def _rows_of(family: PlanFamily) -> Callable[..., object]:
    """The rows of a family's table as parameters of a test."""
    rows = family.rows() if family.table.exists() else []
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


@_rows_of(cross_entropy.FAMILY)
def test_cross_entropy(row: Row) -> None:
    cross_entropy.FAMILY.launch(row)


@_rows_of(elementwise.FAMILY)
def test_elementwise(row: Row) -> None:
    elementwise.FAMILY.launch(row)


@every_family
def test_the_tables_have_what_a_sample_of_sizes_meets(family: PlanFamily) -> None:
    assert not family.missing(wide=False), "run python -m tools.write_plans, and look at the new rows"


@pytest.mark.sweep
@every_family
def test_the_tables_have_what_all_sizes_meet(family: PlanFamily) -> None:
    assert not family.missing(wide=True), "run python -m tools.write_plans, and look at the new rows"


@every_family
def test_every_row_names_the_test_that_launches_it(family: PlanFamily) -> None:
    assert [row.test for row in family.rows()] == [f"{family.test}[{row.name}]" for row in family.rows()]
    assert len({row.test for row in family.rows()}) == len(family.rows())
