"""The families of plans of all losses but linear cross-entropy."""

from __future__ import annotations

from tests.experimental.plans import cross_entropy, ctc, distillation, elementwise, margins, nll_loss, rowwise

LOSSES = (
    cross_entropy.FAMILY,
    elementwise.FAMILY,
    rowwise.FAMILY,
    distillation.FAMILY,
    nll_loss.FAMILY,
    margins.MULTI_MARGIN,
    margins.MULTILABEL_MARGIN,
    ctc.FAMILY,
)
