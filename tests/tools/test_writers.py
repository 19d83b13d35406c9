# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tool that writes tables of plans again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nkilib.core.plan_limits import limits_in_force
from tests.experimental.plans import coverage
from tests.experimental.plans.coverage import TEST, Branches, PlanFamily, Row, Size
from tools.write_plans import what_changed, written_rows

# What a chunk took by an earlier plan, and by a later one.
_BYTES = {"earlier": 4, "later": 8}


def _family(plan: str) -> PlanFamily:
    """Rows are cut into chunks; a launch is refused where no element fits a chunk."""

    def sizes(wide: bool) -> Iterator[Size]:
        return ({"columns": columns} for columns in ((8, 4096) if wide else (8,)))

    def branches(size: Size) -> Branches:
        chunk = (limits_in_force().sbuf_bytes or 4096) // _BYTES[plan]
        assert chunk > 0, "no element fits"
        return {"chunks": "one" if size["columns"] <= chunk else "several"}

    def shrunk_sizes() -> Iterator[tuple[Size, dict[str, int]]]:
        yield {"columns": 3}, {"sbuf_bytes": 4}
        yield {"columns": 5}, {"sbuf_bytes": 16}

    return PlanFamily(
        name="made_up",
        kernels=lambda size: (),
        sizes=sizes,
        branches=branches,
        cost=lambda size: float(size["columns"]),
        check=lambda size: None,
        shrunk_sizes=shrunk_sizes,
    )


def test_a_row_whose_limits_the_plan_now_refuses_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "TABLES", tmp_path)
    earlier = _family("earlier")
    earlier.write(written_rows(earlier))
    assert [(row.launched, row.limits) for row in earlier.rows()] == [
        ({"columns": 8}, {}),
        ({"columns": 3}, {"sbuf_bytes": 4}),
    ]
    rows = written_rows(_family("later"))
    several = Row({"chunks": "several"}, {"columns": 4096}, {"columns": 5}, {"sbuf_bytes": 16}, f"{TEST}[made_up-5-16]")
    assert several in rows and len(rows) == 2


def test_what_changed_is_said() -> None:
    one, other, third = (Row({"chunks": chunks}, {"columns": 8}, {"columns": 8}) for chunks in ("a", "b", "c"))
    assert what_changed([one, other], [other, one]) == "the table is unchanged"
    after = [replace(other, launched={"columns": 4}), third]
    assert what_changed([one, other], after) == "the table has changed: 1 rows are new, 1 removed and 1 different"


def test_a_row_that_still_takes_its_branches_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "TABLES", tmp_path)
    family = _family("earlier")
    row = Row(
        {"chunks": "several"}, {"columns": 4096}, {"columns": 700}, {"sbuf_bytes": 1024}, f"{TEST}[made_up-700-1024]"
    )
    family.write([row])
    assert row in written_rows(family)
    stale = Row({"chunks": "several"}, {"columns": 4096}, {"columns": 200}, {"sbuf_bytes": 1024})
    family.write([stale])
    assert stale.launched not in [row.launched for row in written_rows(family)]
    assert [json.loads(line)["launched"] for line in family.table.read_text().splitlines()] == [{"columns": 200}]


def test_a_launch_at_its_full_size_gives_way_to_a_smaller_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that was written before the family had shrunk sizes is written like one that is new."""
    monkeypatch.setattr(coverage, "TABLES", tmp_path)
    family = _family("earlier")
    new = written_rows(family)
    family.write(written_rows(replace(family, shrunk_sizes=lambda: iter(()))))
    assert [(row.launched, row.limits) for row in family.rows()] == [({"columns": 8}, {}), ({"columns": 4096}, {})]
    assert written_rows(family) == new
    assert ({"columns": 3}, {"sbuf_bytes": 4}) in [(row.launched, row.limits) for row in new]


def test_a_dearer_launch_under_smaller_limits_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for launches of the linear kernels chooses some for what they vary beside the branches."""
    monkeypatch.setattr(coverage, "TABLES", tmp_path)
    family = _family("earlier")
    row = Row(
        {"chunks": "several"}, {"columns": 4096}, {"columns": 5000}, {"sbuf_bytes": 64}, f"{TEST}[made_up-5000-64]"
    )
    family.write([row])
    assert row in written_rows(family)
