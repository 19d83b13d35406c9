# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Time of a profile with data beside that of the plain run."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks._against_torch import SharedInputs
from benchmarks._cases import Case, Tuning
from benchmarks._launch import forward, profile_forward
from benchmarks._timing import Contender, interleaved_minimum

PLAIN, PROFILE = "plain", "profile"


@dataclass(frozen=True)
class ProfileCost:
    """The forward of one case.

    Attributes:
        case, tuning: the case and the tiling that ran.
        profile: seconds of ``nkilib.simulator.profile``.
        plain: seconds of the launch alone.
    """

    case: Case
    tuning: Tuning
    profile: float
    plain: float

    @property
    def ratio(self) -> float:
        return self.profile / self.plain


def profile_cost(case: Case, inputs: SharedInputs, tuning: Tuning, runs: int) -> ProfileCost:
    """Profile the forward, and run it alone."""
    seconds = interleaved_minimum(
        {
            PLAIN: Contender(lambda: forward(inputs.logits, inputs.targets, tuning)),
            PROFILE: Contender(lambda: profile_forward(inputs.logits, inputs.targets, tuning)),
        },
        runs,
    )
    return ProfileCost(case, tuning, seconds[PROFILE], seconds[PLAIN])
