# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Search small launches for the plans of the linear losses: ``python -m tools.shrink_linear_plans [FAMILY ...]``.

Run ``python -m tools.write_plans`` first. This tool writes the tables again, with launches that cost less and that vary
properties on which no branch of a plan depends: dtypes, options, cores, whole and ragged ends. ``--tries`` sets how
many sizes the tool tries for the families of a kernel. ``--most`` sets the cost that a launch should not exceed, in
units of ``linear_sizes.cost``.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from nkilib.simulator import using
from tests.experimental.plans import linear_backward, linear_forward
from tests.experimental.plans.coverage import PlanFamily, Size
from tests.experimental.plans.linear_sizes import Search, cost


def _with_scratch(size: Size, rng: np.random.Generator) -> None:
    """Limit the scratch memory in some sizes, so that a part has 128 or 256 positions."""
    tiles = int(rng.integers(0, 3))
    if tiles > 0:
        size["scratch_bytes"] = tiles * 128 * 4 * size["classes"]


# Of each kernel, whose plan is made once for all its families.
_KERNELS: tuple[tuple[list[PlanFamily], Any], ...] = (
    ([linear_forward.FORWARD_PLANS], None),
    ([linear_backward.OPERANDS, linear_backward.CLASSES], None),
    (
        [linear_backward.FORWARDS_IN_ONE, linear_backward.CLASSES_IN_ONE, linear_backward.OPERANDS_IN_ONE],
        _with_scratch,
    ),
)


def _shrink(families: list[PlanFamily], extend: Any, tries: int, most: float, rounds: int, seed: int) -> None:
    search = Search(families, seed, extend)
    tables = {family.name: family.rows() for family in families}
    for family in families:
        for row in tables[family.name]:
            search.take_row(row)
    search.try_at_random(tries)
    for family in families:
        for row in tables[family.name]:
            search.approach(family, row, most, rounds)
    for family in families:
        for row in tables[family.name]:
            search.make_smaller(family, row, most)
        rows = search.launches(family, tables[family.name], most)
        family.write(rows)
        dear = sorted((cost(row.launched) for row in rows), reverse=True)
        print(f"{family.name}: {len(rows)} rows, {sum(dear):.0f} in all, the dearest {dear[:8]}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="of which kernels; all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tries", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--most", type=float, default=600.0)
    asked = parser.parse_args()
    with using(target="trn2"):
        for kernel, extend in _KERNELS:
            if not asked.families or any(family.name in asked.families for family in kernel):
                _shrink(kernel, extend, asked.tries, asked.most, asked.rounds, asked.seed)
