"""Distillation from hidden states: the divergence of a student from a teacher, without the logits of either in HBM.

The kernels, to be launched on their own::

    divergence, entropy, *statistics = linear_distillation_forward[2](xs, ws, xt, wt, ...)

:mod:`nkilib.experimental.loss.inline` has the functions, to be called from NKI code.
"""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.linear_distillation import kernels
from nkilib.experimental.loss.linear_distillation.host.guarantees import LINEAR_DISTILLATION_FORWARD
from nkilib.experimental.loss.linear_distillation.host.work import pair_forward_work

__all__ = ["linear_distillation_forward"]

linear_distillation_forward = launchable(
    kernels.linear_distillation_forward, LINEAR_DISTILLATION_FORWARD, pair_forward_work
)
