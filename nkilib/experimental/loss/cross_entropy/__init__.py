"""The cross-entropy kernels, to be launched on their own; :mod:`nkilib.experimental.loss.inline` has the functions.

loss, lse = cross_entropy_forward[2](logits, targets, ...)
grad = cross_entropy_backward[2](logits, targets, lse, ...)
"""

from __future__ import annotations

from nkilib.experimental.loss.cross_entropy import extended_kernels, kernels
from nkilib.experimental.loss.cross_entropy.host.guarantees import (
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    EXTENDED_CROSS_ENTROPY_BACKWARD,
    EXTENDED_CROSS_ENTROPY_FORWARD,
)
from nkilib.experimental.loss.cross_entropy.host.work import (
    backward_work,
    extended_backward_work,
    extended_forward_work,
    forward_trips,
    forward_work,
)
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_trips, states_work

__all__ = [
    "cross_entropy_backward",
    "cross_entropy_forward",
    "extended_cross_entropy_backward",
    "extended_cross_entropy_forward",
]

cross_entropy_forward = nki.jit(
    states_guarantee(CROSS_ENTROPY_FORWARD)(
        states_trips(forward_trips)(states_work(forward_work)(kernels.cross_entropy_forward))
    )
)
cross_entropy_backward = nki.jit(
    states_guarantee(CROSS_ENTROPY_BACKWARD)(states_work(backward_work)(kernels.cross_entropy_backward))
)
extended_cross_entropy_forward = nki.jit(
    states_guarantee(EXTENDED_CROSS_ENTROPY_FORWARD)(
        states_trips(forward_trips)(states_work(extended_forward_work)(extended_kernels.extended_cross_entropy_forward))
    )
)
extended_cross_entropy_backward = nki.jit(
    states_guarantee(EXTENDED_CROSS_ENTROPY_BACKWARD)(
        states_work(extended_backward_work)(extended_kernels.extended_cross_entropy_backward)
    )
)
