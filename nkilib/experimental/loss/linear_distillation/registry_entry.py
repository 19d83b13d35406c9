# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of linear distillation to launch, with their guarantees and their work. For host code."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.linear_distillation import kernels
from nkilib.experimental.loss.linear_distillation.host.work import (
    LINEAR_DISTILLATION_BACKWARD,
    LINEAR_DISTILLATION_FORWARD,
    LINEAR_DISTILLATION_MIXTURE,
    mixture_work,
    pair_backward_work,
    pair_forward_work,
)

linear_distillation_forward = launchable(
    kernels.linear_distillation_forward, LINEAR_DISTILLATION_FORWARD, pair_forward_work
)
linear_distillation_backward = launchable(
    kernels.linear_distillation_backward, LINEAR_DISTILLATION_BACKWARD, pair_backward_work
)
linear_distillation_mixture = launchable(kernels.linear_distillation_mixture, LINEAR_DISTILLATION_MIXTURE, mixture_work)
