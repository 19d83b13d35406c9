"""The margins between targets and the other classes, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.multilabel_margin.host.row import MULTILABEL_MARGIN

__all__ = ["MULTILABEL_MARGIN", "multilabel_margin_loss_backward", "multilabel_margin_loss_forward"]

multilabel_margin_loss_forward = MULTILABEL_MARGIN.forward
multilabel_margin_loss_backward = MULTILABEL_MARGIN.backward
