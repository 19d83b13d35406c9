# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The outcome of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(str, Enum):
    """The status of a step; the value appears in the report."""

    AS_EXPECTED = "as expected"
    DIFFERS = "differs"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    MEASURED = "measured"  # by a clock that is too coarse to judge by
    MODELLED = "modelled"
    NOT_RUN = "not run"
    RUNNING = "running"

    @property
    def is_difference(self) -> bool:
        """Whether a step with this status makes the command exit with 1."""
        return self not in (Status.AS_EXPECTED, Status.MEASURED, Status.MODELLED, Status.NOT_RUN)

    @property
    def has_ended_badly(self) -> bool:
        """Whether a step with this status gave no information and may be run again on request."""
        return self in (Status.FAILED, Status.CRASHED, Status.TIMED_OUT, Status.RUNNING)


@dataclass(frozen=True)
class Verdict:
    """The judgement of a step.

    Attributes:
        status: the status of the step.
        text: a text for people, one line or several.
        details: numbers and names for programs, in a form that JSON can represent.
    """

    status: Status
    text: str
    details: dict[str, Any] = field(default_factory=dict)
