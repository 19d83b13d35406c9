# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The planner of launches: it records them, and makes plans of the recorded instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..launch.arguments import as_numpy, is_array
from ..launch.containers import leaves_of
from ..launch.kernel import Kernel
from .errors import PlanError, ReplayFailed
from .key import Candidate
from .recording import RecordedLaunch, record_launch
from .replaying import Replay


@dataclass(frozen=True)
class _LaunchPlan:
    """A plan that runs on the arguments of a launch with the same key.

    Attributes:
        replay: the plan, with the value that the launch returns.
    """

    replay: Replay

    @property
    def nbytes(self) -> int:
        return self.replay.plan.nbytes

    def run(self, candidate: Candidate) -> Any:
        return self.replay.run(candidate.arrays, candidate.originals)


class LaunchPlanner:
    """A planner that records launches of kernels and makes plans of them."""

    def record(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        candidate: Candidate,
        written: frozenset[int],
    ) -> RecordedLaunch:
        """Run a launch and record its instructions."""
        before = {number: candidate.arrays[number].copy() for number in written}
        return record_launch(kernel, args, kwargs, candidate.originals, before)

    def build(self, recorded: RecordedLaunch, candidate: Candidate) -> _LaunchPlan:
        """Return a plan of the launch that was just recorded, after checking that its results are bitwise identical.

        Raises:
            Unplannable: if no plan can be made.
            PlanError: if the plan's results differ from those of the launch.
        """
        assert recorded.stream is not None
        replay = Replay(recorded.stream, candidate.originals)
        arrays = [recorded.before.get(number, array) for number, array in enumerate(candidate.arrays)]
        try:
            result = replay.run(arrays, arrays, waits=True)
        except ReplayFailed as error:
            raise PlanError(f"the plan does not run on the launch that it was made of: {error}") from error
        check_same_bits([result, *[recorded.before[n] for n in recorded.before]], _left(recorded, candidate))
        return _LaunchPlan(replay)


def _left(recorded: RecordedLaunch, candidate: Candidate) -> list[Any]:
    """Return the results and the written arguments that the recorded launch left."""
    return [recorded.result, *[candidate.arrays[number] for number in recorded.before]]


def check_same_bits(ours: Any, theirs: Any) -> None:
    """Check that the results of two launches are bitwise identical.

    Raises:
        PlanError: if they are not; the message names the first tensor that differs.
    """
    for number, (mine, their) in enumerate(zip(_arrays(ours), _arrays(theirs), strict=True)):
        is_alike = mine.shape == their.shape and mine.dtype == their.dtype
        if not is_alike or not np.array_equal(bits_of(mine), bits_of(their)):
            raise PlanError(f"tensor {number} that the plan leaves is not bitwise identical to that of the launch")


def _arrays(value: Any) -> list[npt.NDArray[Any]]:
    return [as_numpy(leaf, "a result") for leaf in leaves_of(value) if is_array(leaf)]


def bits_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array's elements, in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
