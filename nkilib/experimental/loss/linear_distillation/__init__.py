"""Distillation from hidden states: the divergence of a student from a teacher, without the logits of either in HBM.

The kernels, to be launched on their own::

    divergence, entropy, *statistics = linear_distillation_forward[2](xs, ws, xt, wt, ...)
    grad_xs, grad_ws = linear_distillation_backward[2](xs, ws, xt, wt, *statistics, grad_divergence, ...)
    sums = linear_distillation_mixture[2](xs, ws, xt, wt, *statistics_of_all_shards, ...)

:mod:`nkilib.experimental.loss.inline` has the functions, to be called from NKI code.
"""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.linear_distillation import backward_kernels, kernels, mixture_kernels
from nkilib.experimental.loss.linear_distillation.host.guarantees import (
    LINEAR_DISTILLATION_BACKWARD,
    LINEAR_DISTILLATION_FORWARD,
    LINEAR_DISTILLATION_MIXTURE,
)
from nkilib.experimental.loss.linear_distillation.host.work import mixture_work, pair_backward_work, pair_forward_work

__all__ = ["linear_distillation_backward", "linear_distillation_forward", "linear_distillation_mixture"]

linear_distillation_forward = launchable(
    kernels.linear_distillation_forward, LINEAR_DISTILLATION_FORWARD, pair_forward_work
)
linear_distillation_backward = launchable(
    backward_kernels.linear_distillation_backward, LINEAR_DISTILLATION_BACKWARD, pair_backward_work
)
linear_distillation_mixture = launchable(
    mixture_kernels.linear_distillation_mixture, LINEAR_DISTILLATION_MIXTURE, mixture_work
)
