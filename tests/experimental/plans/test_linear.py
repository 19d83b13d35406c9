"""Launches of every plan that the fused linear cross-entropy has by default, and tables that lack none of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nkilib.simulator
from tests.experimental.plans import linear_backward, linear_forward, linear_forward_backward
from tests.experimental.plans.coverage import PlanFamily, Row
from tests.experimental.plans.linear_search import ENDS, facts_of
from tests.experimental.plans.linear_sizes import DTYPES, SHARES, VARIANTS

KERNELS = (
    (linear_forward.FORWARD_PLANS,),
    (linear_backward.OPERANDS, linear_backward.CLASSES),
    (linear_forward_backward.FORWARDS, linear_forward_backward.CLASSES, linear_forward_backward.OPERANDS),
)
FAMILIES = tuple(family for kernel in KERNELS for family in kernel)
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


def _rows(family: PlanFamily) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", family.rows(), ids=lambda row: row.name)


@_rows(linear_forward.FORWARD_PLANS)
def test_blocks_of_the_forward(row: Row) -> None:
    linear_forward.FORWARD_PLANS.launch(row)


@_rows(linear_backward.OPERANDS)
def test_operands_of_the_backward(row: Row) -> None:
    linear_backward.OPERANDS.launch(row)


@_rows(linear_backward.CLASSES)
def test_classes_of_the_backward(row: Row) -> None:
    linear_backward.CLASSES.launch(row)


@_rows(linear_forward_backward.FORWARDS)
def test_forwards_of_one_launch(row: Row) -> None:
    linear_forward_backward.FORWARDS.launch(row)


@_rows(linear_forward_backward.CLASSES)
def test_classes_of_one_launch(row: Row) -> None:
    linear_forward_backward.CLASSES.launch(row)


@_rows(linear_forward_backward.OPERANDS)
def test_operands_of_one_launch(row: Row) -> None:
    linear_forward_backward.OPERANDS.launch(row)


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["sample", "wide"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_size_has_a_plan_that_the_table_lacks(family: PlanFamily, wide: bool) -> None:
    assert not family.missing(wide)


@pytest.mark.parametrize("families", KERNELS, ids=lambda families: families[0].name)
def test_launches_have_all_that_is_no_branch(families: tuple[PlanFamily, ...]) -> None:
    """All types, options, shares of cores, and ends of operands, whole and ragged, somewhere in the tables."""
    launched = [row.launched for family in families for row in family.rows()]
    assert {fact for size in launched for fact in facts_of(size)} == EVERY_FACT


def test_operands_stand_everywhere_with_all_that_is_no_branch() -> None:
    """W^T streams in 16 bits alone, and of several stripes of features; one tile of X^T always stays."""
    never = {
        "W^T streams by X^T": {"dtype: float32", "features: less than a tile"},
        "X^T streams": {"positions: less than a tile"},
    }
    lacks: dict[str, set[str]] = {}
    for row in linear_backward.OPERANDS.rows():
        facts = {fact for fact in EVERY_FACT if not fact.startswith("variant")}
        lacks.setdefault(row.branches["logits"], facts).difference_update(facts_of(row.launched))
    assert {logits: facts for logits, facts in lacks.items() if facts} == never
