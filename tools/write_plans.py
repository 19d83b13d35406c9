# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write the tables of plan coverage: ``python -m tools.write_plans [FAMILY ...]``. All tables are the default.

A row keeps its launch and its limits if the launch still takes the branches of the row. A new row gets the cheapest
launch that the grid or the shrunk sizes of the family have for it; so does a row that is launched without smaller
limits, where a cheaper launch is known by now. Rows that the grid no longer meets are removed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from nkilib.core.plan_limits import PlanLimits, shrunk
from tests.experimental.plans.coverage import PlanFamily, Row, Size, key
from tests.experimental.plans.families import FAMILIES


def _still_takes(family: PlanFamily, row: Row) -> bool:
    """Return whether the launch of a row takes the branches of the row by the present plans.

    The result is False if the kernel refuses the launch.
    """
    with shrunk(PlanLimits(**row.limits)):
        try:
            return key(family.branches(row.launched)) == key(row.branches)
        except AssertionError:
            return False


def _is_kept(family: PlanFamily, row: Row, cheapest: Size) -> bool:
    """Return whether a row keeps its launch: not if it has no smaller limits and a cheaper launch is known.

    A launch under smaller limits stays though it costs more: it may have been chosen for what else it varies.
    """
    is_full_size = not row.limits and family.cost(row.launched) > family.cost(cheapest)
    return not is_full_size and _still_takes(family, row)


def written_rows(family: PlanFamily) -> list[Row]:
    """Return one row for each combination of branches that the wide grid of a family meets now."""
    earlier = {key(row.branches): row for row in family.rows()} if family.table.exists() else {}
    cheapest = family.cheapest()
    rows = []
    for combination, size in family.met(wide=True).items():
        launched, limits = cheapest.get(combination, (size, {}))
        if family.cost(launched) >= family.cost(size):
            launched, limits = size, {}
        row = Row(family.branches(size), size, launched, limits)
        kept = earlier.get(combination)
        if kept is not None and _is_kept(family, kept, launched):
            row = replace(row, launched=kept.launched, limits=kept.limits)
        rows.append(replace(row, test=family.node_of(row)))
    return rows


def what_changed(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Say by how many rows two versions of a table differ."""
    earlier, later = ({key(row.branches): row for row in rows} for rows in (before, after))
    if earlier == later:
        return "the table is unchanged"
    new, gone = len(later.keys() - earlier.keys()), len(earlier.keys() - later.keys())
    other = sum(earlier[each] != later[each] for each in earlier.keys() & later.keys())
    return f"the table has changed: {new} rows are new, {gone} removed and {other} different"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", choices=[*FAMILIES, []], help="which tables; all of them by default")
    for name in parser.parse_args().families or FAMILIES:
        family = FAMILIES[name]
        earlier = family.rows() if family.table.exists() else []
        family.write(written_rows(family))
        rows = family.rows()
        under_limits = sum(bool(row.limits) for row in rows)
        print(
            f"{name}: {len(rows)} combinations, {under_limits} launched under smaller limits; "
            f"{what_changed(earlier, rows)}"
        )
