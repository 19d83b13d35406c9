"""Every combination of branches that the plans of softmax take by default is launched with data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.experimental.plans import softmax_columns, softmax_rows, softmax_short
from tests.experimental.plans.coverage import PlanFamily, Row

_FAMILIES = {
    family.name: family for family in (*softmax_columns.FAMILIES, *softmax_short.FAMILIES, *softmax_rows.FAMILIES)
}

every_family = pytest.mark.parametrize("family", _FAMILIES.values(), ids=_FAMILIES)


def _rows_of(name: str) -> Callable[..., object]:
    """The rows of a family's table as parameters of a test."""
    rows = _FAMILIES[name].rows()
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


@_rows_of("softmax_columns")
def test_softmax_columns(row: Row) -> None:
    _FAMILIES["softmax_columns"].launch(row)


@_rows_of("softmax_column_windows")
def test_softmax_column_windows(row: Row) -> None:
    _FAMILIES["softmax_column_windows"].launch(row)


@_rows_of("softmax_column_tiles")
def test_softmax_column_tiles(row: Row) -> None:
    _FAMILIES["softmax_column_tiles"].launch(row)


@_rows_of("softmax_column_segments")
def test_softmax_column_segments(row: Row) -> None:
    _FAMILIES["softmax_column_segments"].launch(row)


@_rows_of("softmax_short")
def test_softmax_short(row: Row) -> None:
    _FAMILIES["softmax_short"].launch(row)


@_rows_of("softmax_short_windows")
def test_softmax_short_windows(row: Row) -> None:
    _FAMILIES["softmax_short_windows"].launch(row)


@_rows_of("softmax_rows")
def test_softmax_rows(row: Row) -> None:
    _FAMILIES["softmax_rows"].launch(row)


@_rows_of("softmax_row_batches")
def test_softmax_row_batches(row: Row) -> None:
    _FAMILIES["softmax_row_batches"].launch(row)


@_rows_of("softmax_row_results")
def test_softmax_row_results(row: Row) -> None:
    _FAMILIES["softmax_row_results"].launch(row)


@_rows_of("softmax_row_cores")
def test_softmax_row_cores(row: Row) -> None:
    _FAMILIES["softmax_row_cores"].launch(row)


@every_family
def test_the_table_has_what_a_sample_of_sizes_meets(family: PlanFamily) -> None:
    assert not family.missing(wide=False), "run python -m tools.write_plans, and look at the new rows"


@pytest.mark.sweep
@every_family
def test_the_table_has_what_all_sizes_meet(family: PlanFamily) -> None:
    assert not family.missing(wide=True), "run python -m tools.write_plans, and look at the new rows"


@every_family
def test_every_row_names_the_test_that_launches_it(family: PlanFamily) -> None:
    names = [f"{family.test}[{row.name}]" for row in family.rows()]
    assert [row.test for row in family.rows()] == names
    assert len(set(names)) == len(names)
