"""The cross-entropy kernels, to be launched on their own; :mod:`nkilib.experimental.loss.inline` has the functions.

loss, lse = cross_entropy_forward[2](logits, targets, ...)
grad = cross_entropy_backward[2](logits, targets, lse, ...)
"""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
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

__all__ = [
    "cross_entropy_backward",
    "cross_entropy_forward",
    "extended_cross_entropy_backward",
    "extended_cross_entropy_forward",
]

cross_entropy_forward = launchable(kernels.cross_entropy_forward, CROSS_ENTROPY_FORWARD, forward_work, forward_trips)
cross_entropy_backward = launchable(kernels.cross_entropy_backward, CROSS_ENTROPY_BACKWARD, backward_work)
extended_cross_entropy_forward = launchable(
    extended_kernels.extended_cross_entropy_forward,
    EXTENDED_CROSS_ENTROPY_FORWARD,
    extended_forward_work,
    forward_trips,
)
extended_cross_entropy_backward = launchable(
    extended_kernels.extended_cross_entropy_backward, EXTENDED_CROSS_ENTROPY_BACKWARD, extended_backward_work
)
