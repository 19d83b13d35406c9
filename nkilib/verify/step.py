# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A step of the command: what is launched, and how what came is judged."""

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
    MEASURE = "measure"  # beside it, once the process that launched is gone
    JUDGE = "judge"  # on the simulator
    SELF_CHECK = "self-check"  # launch and judge in one process on the simulator


ON_DEVICE: Final = (Stage.LAUNCH, Stage.JUDGE)
ON_SIMULATOR: Final = (Stage.SELF_CHECK,)


@dataclass(frozen=True)
class Step(ABC):
    """Something to be found out.

    Attributes:
        name: unique among all steps.
        is_quick: whether ``--quick`` has it.
    """

    name: str
    is_quick: bool

    @property
    def cores(self) -> int:
        """Of its launch."""
        return 1

    @property
    def runs_last(self) -> bool:
        """Whether it may leave the device in a state that nobody knows."""
        return False

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that its launch needs beside those of every step."""
        return {}

    @property
    def stages_on_device(self) -> tuple[Stage, ...]:
        """The processes that it takes where there is a device."""
        return ON_DEVICE

    @property
    @abstractmethod
    def what(self) -> str:
        """One line on what it finds out."""

    @abstractmethod
    def observe(self, is_device: bool) -> Observation:
        """Launch it in this process."""

    @abstractmethod
    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        """What the observation means; on the simulator."""

    def measure(self, observation: Observation, directory: Path) -> Observation:
        """What :attr:`Stage.MEASURE` adds to an observation; nothing where the step has no such stage."""
        return observation
