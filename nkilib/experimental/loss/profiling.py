# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that model the time of a launch of the kernels, from shapes only.

For host code, and in the simulator only.
"""

from nkilib.experimental.loss.cross_entropy.profiling import profile_launch
from nkilib.experimental.loss.distillation.host import profile_distillation_launch
from nkilib.experimental.loss.linear_cross_entropy.host.profiling import (
    profile_linear_launch,
    profile_token_scores_launch,
)
from nkilib.experimental.loss.linear_distillation.host.profiling import profile_linear_distillation_launch

__all__ = [
    "profile_distillation_launch",
    "profile_launch",
    "profile_linear_distillation_launch",
    "profile_linear_launch",
    "profile_token_scores_launch",
]
