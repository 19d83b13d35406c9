"""The margins between targets and the other classes, to be launched on their own."""

from __future__ import annotations

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
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_trips, states_work

__all__ = ["multilabel_margin_loss_backward", "multilabel_margin_loss_forward"]

multilabel_margin_loss_forward = nki.jit(
    states_guarantee(MULTILABEL_MARGIN_LOSS_FORWARD)(
        states_trips(forward_trips)(states_work(forward_work)(kernels.multilabel_margin_loss_forward))
    )
)
multilabel_margin_loss_backward = nki.jit(
    states_guarantee(MULTILABEL_MARGIN_LOSS_BACKWARD)(
        states_trips(backward_trips)(states_work(backward_work)(kernels.multilabel_margin_loss_backward))
    )
)
