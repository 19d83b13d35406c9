"""Every combination of branches that the choosers of the losses take by default is launched with data.

Linear cross-entropy and softmax have files of their own.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.experimental.plans.coverage import PlanFamily, Row
from tests.experimental.plans.losses import LOSSES

_OF_NAME = {family.name: family for family in LOSSES}
every_family = pytest.mark.parametrize("family", LOSSES, ids=lambda family: family.name)


def _rows_of(name: str) -> Any:
    """The rows of a family's table as parameters of a test."""
    rows = _OF_NAME[name].rows()
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


@_rows_of("cross_entropy")
def test_cross_entropy(row: Row) -> None:
    _OF_NAME["cross_entropy"].launch(row)


@_rows_of("elementwise")
def test_elementwise(row: Row) -> None:
    _OF_NAME["elementwise"].launch(row)


@_rows_of("rowwise")
def test_rowwise(row: Row) -> None:
    _OF_NAME["rowwise"].launch(row)


@_rows_of("distillation")
def test_distillation(row: Row) -> None:
    _OF_NAME["distillation"].launch(row)


@_rows_of("nll_loss")
def test_nll_loss(row: Row) -> None:
    _OF_NAME["nll_loss"].launch(row)


@_rows_of("multi_margin_loss")
def test_multi_margin_loss(row: Row) -> None:
    _OF_NAME["multi_margin_loss"].launch(row)


@_rows_of("multilabel_margin_loss")
def test_multilabel_margin_loss(row: Row) -> None:
    _OF_NAME["multilabel_margin_loss"].launch(row)


@_rows_of("ctc_loss")
def test_ctc_loss(row: Row) -> None:
    _OF_NAME["ctc_loss"].launch(row)


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
