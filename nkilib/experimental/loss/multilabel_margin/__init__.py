"""The margins between targets and the other classes, to be launched on their own."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.multilabel_margin import kernels
from nkilib.experimental.loss.multilabel_margin.host.guarantees import (
    MULTILABEL_MARGIN_LOSS_BACKWARD,
    MULTILABEL_MARGIN_LOSS_FORWARD,
)
from nkilib.experimental.loss.multilabel_margin.host.work import (
    backward_trips,
    backward_work,
    forward_trips,
    forward_work,
)

__all__ = ["multilabel_margin_loss_backward", "multilabel_margin_loss_forward"]

multilabel_margin_loss_forward = launchable(
    kernels.multilabel_margin_loss_forward, MULTILABEL_MARGIN_LOSS_FORWARD, forward_work, forward_trips
)
multilabel_margin_loss_backward = launchable(
    kernels.multilabel_margin_loss_backward, MULTILABEL_MARGIN_LOSS_BACKWARD, backward_work, backward_trips
)
