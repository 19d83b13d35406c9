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
    linear_forward_backward,
    linear_ids,
    linear_operand_types,
    margins,
    nll_loss,
    rowwise,
    softmax_columns,
    softmax_rows,
    softmax_short,
)
from tests.experimental.plans.coverage import PlanFamily

FAMILIES: dict[str, PlanFamily] = {
    family.name: family
    for family in (
        *softmax_columns.FAMILIES,
        *softmax_short.FAMILIES,
        *softmax_rows.FAMILIES,
        cross_entropy.FAMILY,
        elementwise.FAMILY,
        rowwise.FAMILY,
        distillation.FAMILY,
        nll_loss.FAMILY,
        margins.MULTI_MARGIN,
        margins.MULTILABEL_MARGIN,
        ctc.FAMILY,
        linear_forward.FORWARD_PLANS,
        linear_backward.OPERANDS,
        linear_backward.CLASSES,
        linear_forward_backward.FORWARDS,
        linear_forward_backward.CLASSES,
        linear_forward_backward.OPERANDS,
        linear_operand_types.FAMILY,
        linear_ids.FORWARDS,
        linear_ids.BACKWARDS,
        *linear_distillation.FAMILIES,
    )
}

WITHOUT_CHOICE: dict[str, str] = {}
"""Public kernels that choose no tiling, with the reason why there is nothing to choose."""
