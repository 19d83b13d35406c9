# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A step of the command: a launch, and the judgement of its outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from nkilib.verify.observation import Observation
from nkilib.verify.verdict import Verdict


class Stage(str, Enum):
    """A process of a step, in this order; the value names it on the command line of the worker."""

    LAUNCH = "launch"  # on the real NKI
    MEASURE = "measure"  # with a profiler, once the process that launched is gone
    JUDGE = "judge"  # on the simulator
    SELF_CHECK = "self-check"  # launch and judge in one process on the simulator


ON_DEVICE: Final = (Stage.LAUNCH, Stage.JUDGE)
ON_SIMULATOR: Final = (Stage.SELF_CHECK,)


@dataclass(frozen=True)
class Step(ABC):
    """A launch that finds something out, and the judgement of its outcome.

    Attributes:
        name: a name that is unique among all steps.
        is_quick: whether ``--quick`` includes the step.
    """

    name: str
    is_quick: bool

    @property
    def cores(self) -> int:
        """The number of cores of the launch."""
        return 1

    @property
    def runs_last(self) -> bool:
        """Whether the step may leave the device in an unknown state, so that it runs after the others."""
        return False

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that the launch needs in addition to those of every step."""
        return {}

    @property
    def stages_on_device(self) -> tuple[Stage, ...]:
        """The stages of the step if there is a device."""
        return ON_DEVICE

    @property
    @abstractmethod
    def what(self) -> str:
        """A line that says what the step finds out."""

    @abstractmethod
    def observe(self, is_device: bool) -> Observation:
        """Launch the kernel in this process."""

    @abstractmethod
    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        """Judge the observation, on the simulator."""

    def measure(self, observation: Observation, directory: Path) -> Observation:
        """Return the observation with what :attr:`Stage.MEASURE` adds, if the step has that stage."""
        return observation
