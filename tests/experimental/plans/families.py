"""All families whose plans are covered, by name."""

from __future__ import annotations

from tests.experimental.plans import (
    linear_backward,
    linear_forward,
    linear_forward_backward,
    softmax_columns,
    softmax_rows,
    softmax_short,
)
from tests.experimental.plans.coverage import PlanFamily
from tests.experimental.plans.losses import LOSSES

FAMILIES: dict[str, PlanFamily] = {
    family.name: family
    for family in (
        *softmax_columns.FAMILIES,
        *softmax_short.FAMILIES,
        *softmax_rows.FAMILIES,
        *LOSSES,
        linear_forward.FORWARD_PLANS,
        linear_backward.OPERANDS,
        linear_backward.CLASSES,
        linear_forward_backward.FORWARDS,
        linear_forward_backward.CLASSES,
        linear_forward_backward.OPERANDS,
    )
}
