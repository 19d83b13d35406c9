# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Facts that are no branch of a plan of the fused linear cross-entropy vary over the rows of its tables."""

from __future__ import annotations

import pytest

from tests.experimental.plans import linear_backward, linear_forward, linear_forward_backward
from tests.experimental.plans.coverage import PlanFamily, Row
from tests.experimental.plans.linear_search import ENDS, facts_of
from tests.experimental.plans.linear_sizes import DTYPES, SHARES, VARIANTS

KERNELS = (
    (linear_forward.FORWARD_PLANS,),
    (linear_backward.OPERANDS, linear_backward.CLASSES),
    (linear_forward_backward.FORWARDS, linear_forward_backward.CLASSES, linear_forward_backward.OPERANDS),
)
EVERY_FACT = {
    *(f"{name}: {end}" for name in ("positions", "features", "classes") for end in ENDS),
    *(f"dtype: {dtype}" for dtype in DTYPES),
    "layout: vd",
    "layout: dv",
    *(f"variant: {variant}" for variant in VARIANTS),
    *(f"cores: {shares}" for shares in SHARES),
}


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
