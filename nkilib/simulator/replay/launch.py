# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of how a launch runs: from a plan, or instruction by instruction, with or without recording.

- :class:`Launches`: chooses, for the launches of a process (:data:`LAUNCHES`);
- :class:`LaunchPlanner`: records launches and makes plans of them; :class:`Replay`: a plan with a function that makes
  the value that the launch returns to the caller;
- :func:`bits_of`, :func:`check_same_bits`: compare a replayed launch with one that ran instruction by instruction.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.base.statements import is_replayable, is_unreplayed

from ..hardware.options import ALWAYS, CHECKS, CHECKS_OF_SHAPES, Options, raises_errors_of_replay
from ..launch.arguments import as_numpy, is_array, is_torch, leaves_of, map_leaves, note_written, to_torch
from ..launch.kernel import Kernel, UnreplayedRun
from ..launch.settings import LaunchEnvironment
from ..machine.observer import active_watchers
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from .counts import TALLIES
from .entries import Entries, Entry, Planner
from .errors import PlanError, ReplayFailed, Unplannable
from .key import Candidate, Refusal, candidate_of
from .plan import Arrays, Plan
from .recorder import RecordedLaunch, record_launch
from .stream import Stream, placeholder_of, views_in


class _Left(NamedTuple):
    """The arrays that exist after a replayed launch, from which the value that it returns is made.

    Attributes:
        arrays: the argument arrays, followed by the arrays of the tensors that the plan returns.
        originals: the arguments that are arrays, as the caller passed them.
    """

    arrays: Arrays
    originals: Sequence[Any]


_Result = Callable[[_Left], Any]


def _result_of(value: Any, tensor: Callable[[View], _Result]) -> _Result:
    """Return a function that makes a launch's return value from a :class:`_Left`, with the same nesting as ``value``.

    Args:
        value: the value that the recorded launch returned.
        tensor: a function that takes a tensor in ``value``, and returns the function that makes this tensor.
    """
    if isinstance(value, NkiTensor):
        return tensor(value)
    if type(value) in (tuple, list):
        kind, items = type(value), [_result_of(item, tensor) for item in value]
        return lambda left: kind([item(left) for item in items])
    if not views_in(value):
        return lambda left: value
    return lambda left: map_leaves(value, "", lambda leaf, _: _result_of(leaf, tensor)(left))


def _tensor(view: View, place: int | None, *, as_torch: bool) -> _Result:
    """Return a function that makes one of the tensors that a launch returns, from a :class:`_Left`.

    The tensor is an array that the plan returns, an argument itself, or a view of either.

    Args:
        view: the tensor that the recorded launch returned.
        place: the index in ``_Left.arrays`` of the array that has the tensor's elements; None if an argument has them.
        as_torch: whether to make a tensor of PyTorch.
    """
    storage, dtype = placeholder_of(view), view.dtype
    is_all = view.covers_storage() and view.shape == storage.shape and dtype == storage.dtype
    if place is None and is_all:
        argument = storage.label[1]
        return lambda left: left.originals[argument]
    source = storage.label[1] if place is None else place
    numpy_type = storage.numpy_type_of(dtype)
    offset, strides = view.offset * numpy_type.itemsize, [stride * numpy_type.itemsize for stride in view.strides]

    def array_of(left: _Left) -> Any:
        array = left.arrays[source]
        if not is_all:
            array = np.ndarray(view.shape, numpy_type, array, offset, strides)
        return to_torch(array, dtype) if as_torch else array

    return array_of


class Replay:
    """A plan of a launch (:class:`.plan.Plan`), with the function that makes the value that the launch returns.

    Args:
        stream: a recorded launch.
        originals: the arguments of that launch that are arrays, as the caller passed them.

    Raises:
        Unplannable: if no plan can be made.
    """

    def __init__(self, stream: Stream, originals: Sequence[Any]) -> None:
        if any(view.dtype.is_packed for view in views_in(stream.result)):
            raise Unplannable("it returns a tensor of a packed type")
        self.plan = Plan(stream, len(originals))
        as_torch = any(map(is_torch, originals))
        places = {storage.number: len(originals) + place for place, storage in enumerate(self.plan.returned)}
        self._result = _result_of(
            stream.result, lambda view: _tensor(view, places.get(view.storage.number), as_torch=as_torch)
        )

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the plan holds between launches."""
        return self.plan.nbytes

    def replay(self, candidate: Candidate) -> Any:
        """Run the plan on the arrays of a launch with the same key; see :meth:`run`."""
        return self.run(candidate.arrays, candidate.originals)

    def run(self, arrays: Arrays, originals: Sequence[Any], *, waits: bool = False) -> Any:
        """Run the plan on other arguments of the same shapes, and return the value that the kernel returns for them.

        Args:
            arrays: the argument arrays; the plan writes those that the kernel writes.
            originals: the same arguments, as the caller passed them.
            waits: whether to wait for a launch that is replayed in another thread.

        Raises:
            ReplayFailed: if the launch has to run instruction by instruction.
        """
        fresh = self.plan.run(arrays, waits=waits)
        note_written(originals[number] for number in self.plan.written)
        return self._result(_Left([*arrays, *fresh], originals))


def _left(recorded: RecordedLaunch, candidate: Candidate) -> list[Any]:
    # The result, and the arguments that the launch may have written.
    return [recorded.result, *[candidate.arrays[number] for number in recorded.before]]


def _arrays(value: Any) -> list[npt.NDArray[Any]]:
    return [as_numpy(leaf, "a result") for leaf in leaves_of(value) if is_array(leaf)]


def bits_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array's elements, in row-major order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def check_same_bits(ours: Any, theirs: Any) -> None:
    """Check that two values contain bitwise identical tensors.

    Args:
        ours: the tensors that a plan leaves.
        theirs: the tensors that the launch leaves.

    Raises:
        PlanError: if they differ; the message gives the number of the first tensor that differs.
    """
    for number, (mine, their) in enumerate(zip(_arrays(ours), _arrays(theirs), strict=True)):
        is_alike = mine.shape == their.shape and mine.dtype == their.dtype
        if not is_alike or not np.array_equal(bits_of(mine), bits_of(their)):
            raise PlanError(f"tensor {number} that the plan leaves is not bitwise identical to that of the launch")


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
        """Run a launch instruction by instruction, and record it.

        The argument arrays ``written`` are copied before, so that a plan can be checked.
        """
        before = {number: candidate.arrays[number].copy() for number in written}
        return record_launch(kernel, args, kwargs, candidate.originals, before)

    def build(self, recorded: RecordedLaunch, candidate: Candidate) -> Replay:
        """Return a plan of the launch that was just recorded, and check that its results are bitwise identical.

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
        return replay


_levels_of = attrgetter(*[name for name in CHECKS if name not in CHECKS_OF_SHAPES])
_STATES_NOTHING = "it does not state that it may be replayed: nkilib.nki.replayable"


def _has_debugger() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


def _hindrance(kernel: Kernel, options: Options, free: Options | None) -> str:
    """Return the reason why no launch of a kernel can be recorded or replayed now; empty if there is none.

    Args:
        kernel: the kernel.
        options: the options in force.
        free: an options object that an earlier call has accepted, so that it is not checked again; or None.
    """
    if not options.replay or is_unreplayed():
        return "replay is off"
    if options.replay != ALWAYS and not is_replayable(kernel.func):
        return _STATES_NOTHING
    if active_watchers():
        return "the launch is observed"
    if sys.gettrace() is not None or _has_debugger():
        return "a debugger or a tracer is active"
    if options is free:
        return ""
    if options.frontend != "tracer":
        return "the front end is custom"
    return 'a check is at level "warn"' if "warn" in _levels_of(options) else ""


def _refused(
    reason: str,
    kernel: Kernel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    environment: LaunchEnvironment,
    run_unreplayed: UnreplayedRun,
) -> Any:
    result = run_unreplayed(kernel, args, kwargs, environment)
    TALLIES.of(kernel.__name__).add("as_today", reason)
    return result


class Launches:
    """The launches of a process. Each of them runs through :meth:`run`.

    Args:
        planner: the planner that records and plans; with None all launches run instruction by instruction.
    """

    def __init__(self, planner: Planner | None) -> None:
        self.entries = Entries()
        self._planner = planner
        self._free: Options | None = None  # options that keep no launch from being replayed

    def run(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        environment: LaunchEnvironment,
        run_unreplayed: UnreplayedRun,
        /,
    ) -> Any:
        """Run a launch and return the value that the kernel returns.

        Args:
            kernel: the kernel to launch.
            args: the positional arguments of the launch.
            kwargs: the keyword arguments of the launch.
            environment: the options and the other settings under which it runs.
            run_unreplayed: the function that runs it instruction by instruction.

        Raises:
            Exception: any exception that ``run_unreplayed`` raises.
        """
        planner = self._planner
        if planner is None:
            return run_unreplayed(kernel, args, kwargs, environment)
        options = environment.options
        hindrance = _hindrance(kernel, options, self._free)
        if hindrance:
            return _refused(hindrance, kernel, args, kwargs, environment, run_unreplayed)
        self._free = options
        candidate = candidate_of(kernel, options, args, kwargs)
        if isinstance(candidate, Refusal):
            return _refused(candidate.reason, kernel, args, kwargs, environment, run_unreplayed)
        entry = self.entries.of(candidate, kernel.__name__)
        if entry is None:
            result = _refused("", kernel, args, kwargs, environment, run_unreplayed)
            self.entries.note_end(candidate)
            return result
        if entry.reason:
            return _refused(entry.reason, kernel, args, kwargs, environment, run_unreplayed)
        if not entry.lock.acquire(blocking=False):
            return _refused("the same launch runs in another thread", kernel, args, kwargs, environment, run_unreplayed)
        try:
            replayed = entry.replay(candidate)
            if replayed is not None:
                return replayed.result
            if entry.is_to_be_recorded:
                return self._record(planner, entry, candidate, kernel, args, kwargs)
            entry.check_failures()
            return _refused(entry.reason, kernel, args, kwargs, environment, run_unreplayed)
        finally:
            entry.lock.release()

    def _record(
        self,
        planner: Planner,
        entry: Entry,
        candidate: Candidate,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        # A plan is made if an earlier recording was equal.
        recorded = planner.record(kernel, args, kwargs, candidate, entry.written)
        try:
            entry.learn(recorded, candidate, planner)
        except Unplannable as error:
            entry.refuse(str(error))
        except Exception as error:
            entry.refuse(f"planning failed with {type(error).__name__}: {error}")
            if raises_errors_of_replay():
                raise
        entry.check_failures()
        entry.tally.add("recorded", entry.reason)
        self.entries.trim()
        return recorded.result


LAUNCHES = Launches(LaunchPlanner())
