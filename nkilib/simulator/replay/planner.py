# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The planner of launches: records them with a recorder, and makes plans of their streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..launch.arguments import as_numpy, is_array
from ..launch.containers import leaves_of
from ..launch.kernel import Kernel
from .code import CodeWatch
from .errors import PlanError, ReplayFailed
from .key import Given
from .recording import RecordedLaunch, record_launch
from .replaying import Replay


@dataclass(frozen=True)
class _LaunchPlan:
    """A plan, for arguments with a key.

    Attributes:
        replay: the plan, with what the launch returns.
    """

    replay: Replay

    @property
    def nbytes(self) -> int:
        return self.replay.plan.nbytes

    def run(self, given: Given) -> Any:
        return self.replay.run(given.arrays, given.originals)


class LaunchPlanner:
    """Records launches of kernels, and makes plans of them."""

    def record(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Given,
        watch: CodeWatch,
        written: frozenset[int],
    ) -> RecordedLaunch:
        """Run a launch and take down what it does; ``watch`` notes which code runs."""
        before = {number: given.arrays[number].copy() for number in written}
        return record_launch(kernel, args, kwargs, given.originals, watch, before)

    def build(self, recorded: RecordedLaunch, given: Given) -> _LaunchPlan:
        """A plan of the launch that was just recorded, which leaves the same bits.

        Raises:
            Unplannable: if there is none.
            PlanError: if the plan leaves other bits than the launch has.
        """
        assert recorded.stream is not None
        replay = Replay(recorded.stream, given.originals)
        arrays = [recorded.before.get(number, array) for number, array in enumerate(given.arrays)]
        try:
            result = replay.run(arrays, arrays, waits=True)
        except ReplayFailed as error:
            raise PlanError(f"the plan does not run on the launch that it was made of: {error}") from error
        check_same_bits([result, *[recorded.before[n] for n in recorded.before]], _left(recorded, given))
        return _LaunchPlan(replay)


def _left(recorded: RecordedLaunch, given: Given) -> list[Any]:
    """What the launch itself left."""
    return [recorded.result, *[given.arrays[number] for number in recorded.before]]


def check_same_bits(ours: Any, theirs: Any) -> None:
    """Require that what two launches left is the same, bit by bit.

    Raises:
        PlanError: naming the first tensor that is not.
    """
    for number, (mine, other) in enumerate(zip(_arrays(ours), _arrays(theirs), strict=True)):
        is_alike = mine.shape == other.shape and mine.dtype == other.dtype
        if not is_alike or not np.array_equal(bits_of(mine), bits_of(other)):
            raise PlanError(f"tensor {number} of what the plan leaves has other bits than the launch has left")


def _arrays(value: Any) -> list[npt.NDArray[Any]]:
    return [as_numpy(leaf, "a result") for leaf in leaves_of(value) if is_array(leaf)]


def bits_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of its elements, in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
