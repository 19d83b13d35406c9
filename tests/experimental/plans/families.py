# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""All families whose plans are covered, by name, and the public kernels that need none."""

from __future__ import annotations

from tests.experimental.plans import (
    cross_entropy,
    ctc,
    distillation,
    elementwise,
    linear_backward,
    linear_distillation,
    linear_forward,
    linear_operands,
    margins,
    nll_loss,
    rowwise,
    softmax,
)
from tests.experimental.plans.coverage import PlanFamily

FAMILIES: dict[str, PlanFamily] = {
    family.name: family
    for family in (
        *softmax.COLUMN_FAMILIES,
        *softmax.SHORT_FAMILIES,
        *softmax.ROW_FAMILIES,
        cross_entropy.FAMILY,
        cross_entropy.LAYOUTS,
        elementwise.FAMILY,
        rowwise.FAMILY,
        distillation.FAMILY,
        distillation.LAYOUTS,
        nll_loss.FAMILY,
        margins.MULTI_MARGIN,
        margins.MULTILABEL_MARGIN,
        ctc.FAMILY,
        linear_forward.FORWARD_PLANS,
        linear_backward.OPERANDS,
        linear_backward.CLASSES,
        linear_backward.FORWARDS_IN_ONE,
        linear_backward.CLASSES_IN_ONE,
        linear_backward.OPERANDS_IN_ONE,
        linear_operands.FAMILY,
        linear_operands.FORWARDS,
        linear_operands.BACKWARDS,
        *linear_distillation.FAMILIES,
    )
}

WITHOUT_CHOICE: dict[str, str] = {}
"""Public kernels that choose no tiling, with the reason why there is nothing to choose."""
