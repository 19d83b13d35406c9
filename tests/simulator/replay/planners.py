# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Planners that stand for the real one: what they record is what a test says, and their plans are Python functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.replay.errors import ReplayFailed, Unplannable
from nkilib.simulator.replay.key import Candidate


@dataclass
class Stream:
    """The actions of a launch, as a test states them."""

    did: Any
    written: frozenset[int] = frozenset()

    def differs_from(self, other: Stream) -> str:
        return "" if self.did == other.did else f"{self.did} is not {other.did}"


@dataclass
class Recorded:
    """A launch that a planner of a test has recorded."""

    result: Any
    stream: Stream | None
    refusal: str
    error: Exception | None = None


@dataclass
class Plan:
    """Doubles its first array, if what decides is what it was when it was recorded."""

    wanted: Any
    decides: Callable[[Candidate], Any]
    nbytes: int
    runs: int = 0

    def replay(self, candidate: Candidate) -> Any:
        if self.decides(candidate) != self.wanted:
            raise ReplayFailed("another value")
        self.runs += 1
        return ["replayed", candidate.arrays[0] * 2]


@dataclass
class Planner:
    """Records and plans; its streams are what ``decides`` says of a launch.

    Attributes:
        decides: a function that returns the value on which the stream of a launch depends, besides its key.
        nbytes: the size of each plan in bytes.
        refusal: the refusal of each recording; empty for none.
        recording_error: a mistake in recording.
        error: raised in building.
        recorded, built: how often.
    """

    decides: Callable[[Candidate], Any] = lambda argument: 0
    nbytes: int = 1000
    refusal: str = ""
    recording_error: Exception | None = None
    error: Exception | None = None
    recorded: int = 0
    built: list[Plan] = field(default_factory=list)

    def record(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        candidate: Candidate,
        written: frozenset[int],
    ) -> Recorded:
        self.recorded += 1
        result = kernel.func(*args, **kwargs)
        stream = None if self.refusal else Stream(self.decides(candidate))
        return Recorded(result, stream, self.refusal, self.recording_error)

    def build(self, recorded: Recorded, candidate: Candidate) -> Plan:
        stream = recorded.stream
        assert stream is not None
        if self.error is not None:
            raise self.error
        if stream.did == "unplannable":
            raise Unplannable("it is not to be planned")
        self.built.append(Plan(stream.did, self.decides, self.nbytes))
        return self.built[-1]
