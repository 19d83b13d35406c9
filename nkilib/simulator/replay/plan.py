# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Plan``: the steps of a launch, to be run on the arrays of another launch with the same key.

:class:`Plan` converts the recorded instructions to work, reduces the work by passes, builds the steps and runs them.

A *meeting* is an instruction at which both cores synchronise: a barrier, an exchange of tiles or a collective. A
*round* is the steps of all cores between two meetings; in a round the cores run one after the other, or in parallel if
that is faster. Some steps run the function of an instruction as in a normal launch, on tensors that have memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engines.between_cores import Parcel
from ..hardware.current import enter
from ..machine.core import Core
from ..machine.issue import Call
from ..machine.observer import Observers
from ..machine.races import RaceLevels, RaceWatch, SharedAccesses
from ..numerics.products import one_thread
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from .builder import CoreBuilder, Segment
from .data_dependence import data_dependent_tensors
from .emission import cores_for, emit
from .errors import ReplayFailed, Unplannable
from .memory import ARENAS, Memory, placed
from .passes import grouped, with_sums, without_dead, without_loads, without_stores
from .stream import PlaceholderStorage, Stream, placeholder_of, views_in
from .work import Action, Check, Elementwise, Meeting, Sum, Whole, Work

Arrays = list[npt.NDArray[Any]]

# Starting a thread and waiting for it takes about as long as moving this number of bytes.
_WORTH_A_THREAD = 1 << 20
# The number of timed runs of each way, and the largest ratio of the shortest parallel to the shortest sequential run
# that is worth the CPU time that two threads lose: they wait for the interpreter in every step and share one memory.
_TRIALS, _GAIN = 2, 0.75


class _Arrived:
    """A replacement for the launch's barrier while one core runs an exchange: it holds the tile of the other core."""

    def __init__(self, core: int, src: NkiTensor) -> None:
        self._core = core
        self._src = src
        self._values = src.array.copy()
        self.is_aborted = False

    def meet(self, place: str, item: Parcel) -> list[Any]:
        """Return the data of the other core: a copy of ``item``, this core's data, with the other's number and tile.

        The recording has checked that both cores exchange the same kind of data.
        """
        return [replace(item, core=self._core, src=self._src, values=self._values)]


class _Agreed:
    """A replacement for the launch's barrier while the first core runs a collective for both cores."""

    def __init__(self) -> None:
        self.is_aborted = False

    def meet(self, place: str, item: Any) -> list[Any]:
        """Return ``item``, the data of this core, as the data of the other core: both take part with the same data."""
        return [item]


def _call(core: Core, meeting: Meeting) -> Call:
    call = Call(core, meeting.call.definition, [*meeting.call.values, None])
    call.engine = meeting.call.engine
    return call


def _run_at(barrier: _Arrived | _Agreed, core: Core, meeting: Meeting) -> None:
    # ``barrier`` takes the place of the launch's barrier.
    launch_barrier, core.launch.barrier = core.launch.barrier, barrier  # type: ignore[assignment]
    try:
        call = _call(core, meeting)
        call.definition.function(call, *meeting.call.values)
    finally:
        core.launch.barrier = launch_barrier


def _run_collective(core: Core, meeting: Meeting) -> None:
    # A launch without other ranks: the collective runs on one core for both.
    if core.observers.find(SharedAccesses) is not None:
        raise ReplayFailed("an operation of the ranks, where the data decide what the cores touch")
    _run_at(_Agreed(), core, meeting)


def _synchronise(cores: Sequence[Core], meetings: Sequence[Meeting]) -> None:
    """Run the meeting at the end of a round.

    An exchange swaps the tiles of the cores, a collective runs on the first core, and a barrier is only reported to the
    observers.

    Args:
        cores: the cores.
        meetings: the meeting as recorded on each core.
    """
    if meetings[0].call.is_collective:
        _run_collective(cores[0], meetings[0])
        return
    if meetings[0].call.definition.name == "core_barrier":
        calls = [_call(core, meeting) for core, meeting in zip(cores, meetings, strict=True)]
        brought = [core.observers.arrive(call) for core, call in zip(cores, calls, strict=True)]
        for core, call, other in zip(cores, calls, reversed(brought), strict=True):
            core.observers.meet(call, other)
        return
    position = meetings[0].call.definition.names.index("src")
    sent = [_Arrived(core.number, call.call.values[position]) for core, call in zip(cores, meetings, strict=True)]
    for core, meeting, arrived in zip(cores, meetings, reversed(sent), strict=True):
        _run_at(arrived, core, meeting)


class _Ways:
    """The measured times of a round's first runs, sequential and parallel. They decide how later runs of the round run.

    Args:
        may_pay: whether the work is large enough for a second thread to be worth its cost.
    """

    def __init__(self, may_pay: bool) -> None:
        self._may_pay = may_pay
        self._seconds: dict[bool, list[float]] = {False: [], True: []}

    @property
    def is_side_by_side(self) -> bool:
        """Whether the cores run in parallel in the next run."""
        sequential, parallel = self._seconds[False], self._seconds[True]
        if not self._may_pay or len(sequential) < _TRIALS:
            return self._may_pay and len(parallel) < len(sequential)
        return len(parallel) < _TRIALS or min(parallel) < _GAIN * min(sequential)

    def note(self, is_side_by_side: bool, seconds: float) -> None:
        """Record the time of a run in seconds."""
        timings = self._seconds[is_side_by_side]
        if self._may_pay and len(timings) < _TRIALS:
            timings.append(seconds)


class _Run:
    """One run of the steps of a core in a round.

    Attributes:
        error: the error that :meth:`in_thread` caught; None if it caught none.
    """

    def __init__(self, core: Core, segment: Segment, enters: bool) -> None:
        self._core, self._segment, self._enters = core, segment, enters
        self.error: BaseException | None = None

    def __call__(self) -> None:
        if self._enters:
            enter(self._core)
        try:
            for step in self._segment.steps.all:
                step()
        finally:
            if self._enters:
                enter(None)

    def in_thread(self) -> None:
        # An error is kept for the thread that started this one.
        try:
            with np.errstate(all="ignore"):
                self()
        except BaseException as error:
            self.error = error


def _run_side_by_side(first: _Run, second: _Run) -> None:
    thread = Thread(target=second.in_thread, name="core 1, replayed")
    thread.start()
    try:
        first()
    finally:
        thread.join()
    if second.error is not None:
        raise second.error


class _Round:
    """The steps of all cores between two meetings.

    Args:
        segments: the steps of each core in this round.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        is_large = min(segment.nbytes for segment in segments) > _WORTH_A_THREAD
        self._ways = _Ways(len(segments) > 1 and is_large)

    def run(self, cores: Sequence[Core], *, enters: bool) -> None:
        """Run the steps of all cores in this round, and then the meeting at its end.

        Args:
            cores: the cores of the plan.
            enters: whether the plan has instructions that run as in a normal launch and look up the core of their
                thread.
        """
        runs = [_Run(core, segment, enters) for core, segment in zip(cores, self.segments, strict=True)]
        is_side_by_side, start = self._ways.is_side_by_side, perf_counter()
        if is_side_by_side:
            _run_side_by_side(*runs)
        else:
            for run in runs:
                run()
        self._ways.note(is_side_by_side, perf_counter() - start)
        meetings: list[Meeting] = [segment.meeting for segment in self.segments if segment.meeting is not None]
        if meetings:
            _synchronise(cores, meetings)


@dataclass(eq=False)
class _Late:
    """A tensor that is an array of the launch, so that its storage gets memory only when a launch begins.

    Some instructions run as in a normal launch, and use views of this tensor.

    Attributes:
        storage: the storage of the tensor.
        source: the number of the launch's array.
        views: the views of the tensor that the instructions use.
    """

    storage: PlaceholderStorage
    source: int
    views: list[View] = field(default_factory=list)


def _registers(cores: Sequence[Core], works: list[list[Work]]) -> list[npt.NDArray[np.float32]]:
    # Each run begins with undefined values in the accumulator registers that are used.
    registers: list[npt.NDArray[np.float32]] = []
    for core, core_works in zip(cores, works, strict=True):
        if any(isinstance(work, Whole) or (isinstance(work, Elementwise) and work.reduction) for work in core_works):
            registers += [core.scalar_accumulators.values, core.vector_accumulators.values]
    return registers


def _may_refuse(work: Work) -> bool:
    """Return whether ``work`` may find values for which the plan is not valid."""
    return isinstance(work, Whole | Check) or (isinstance(work, Action) and work.may_refuse)


def _fewer(emitted: list[list[Work]]) -> list[list[Work]]:
    works = [with_sums(core_works) for core_works in emitted]
    written = {ref.storage.number for core_works in works for work in core_works for ref in work.writes}
    return [without_stores(without_dead(without_loads(core_works, written))) for core_works in works]


def _returned(result: Any) -> list[PlaceholderStorage]:
    storages: list[PlaceholderStorage] = []
    for view in views_in(result):
        assert isinstance(view, NkiTensor)
        storage = placeholder_of(view)
        if storage.label[0] != "argument" and storage not in storages:
            storages.append(storage)
    return storages


def _views_of(work: Work) -> list[View]:
    # Tensors that ``work`` accesses as tensors need memory; other work gets arrays.
    if isinstance(work, Elementwise):
        return [] if work.reduction is None else views_in([work.reduction.destination, work.reduction.initial])
    if not isinstance(work, Whole):
        return []
    views = [touched.view for touched in work.call.tensors]
    indirect = [view.indirect_access for view in views if view.indirect_access is not None]
    return [*views, *[operand.index for operand in indirect if isinstance(operand.index, View)]]


def _refs(work: Work) -> list[Any]:
    return [*work.reads, *work.writes]


def _written(works: list[list[Work]]) -> set[PlaceholderStorage]:
    return {ref.storage for core_works in works for work in core_works for ref in work.writes}


class Plan:
    """The steps of a launch, which repeat it on other arrays.

    Args:
        stream: the recorded launch.
        arguments: the number of arrays among a launch's arguments.

    Attributes:
        returned: the storages of the tensors that the kernel returns, except arguments.
        written: the numbers of the arguments that the launch writes.
        may_fail: whether a step may find values for which the launch has to run instruction by instruction.
        instructions: the number of instructions of the launch.
        steps: the number of steps that replace these instructions.

    Raises:
        Unplannable: if no plan is possible.
    """

    def __init__(self, stream: Stream, arguments: int) -> None:
        self._arguments = arguments
        self.returned = _returned(stream.result)
        if len(stream.cores) > 1 and stream.options.races == "ignore":
            raise Unplannable("two cores may race for what they read")
        self._cores = cores_for(stream)
        dependent = data_dependent_tensors(stream)
        works = _fewer(emit(self._cores, stream, dependent))
        storages = {
            ref.storage.number: ref.storage for core_works in works for work in core_works for ref in _refs(work)
        }
        self.written = sorted({storage.label[1] for storage in _written(works) if storage.label[0] == "argument"})
        self.may_fail = bool(dependent.all) or any(_may_refuse(work) for core_works in works for work in core_works)
        self._watches_races, self._unwritten = bool(dependent.watched), dependent.unwritten
        self._checked = [view for view in views_in(stream.result) if placeholder_of(view) in self._unwritten]
        self._memory = Memory(self._sources(storages.values()), len(self._cores))
        for storage, content in stream.contents.items():
            self._memory.keep(storage, content)
        self._late: list[_Late] = []
        groups = [grouped(core_works) for core_works in works]
        for core, core_works in zip(self._cores, groups, strict=True):
            self._place(core, core_works)
        self._give_memory(works)
        self._segments = [self._built(core, core_works) for core, core_works in zip(self._cores, groups, strict=True)]
        if len({len(segments) for segments in self._segments}) > 1:
            raise Unplannable("the cores meet unequally often")
        self._rounds = list(map(_Round, zip(*self._segments, strict=True)))
        kinds = {type(work) for core_works in works for work in core_works}
        self._has_products, self._has_whole = Sum in kinds or Action in kinds, Whole in kinds or Meeting in kinds
        self._registers = _registers(self._cores, works)
        self.instructions = sum(map(len, stream.cores))
        self.steps = sum(len(segment.steps.all) for segments in self._segments for segment in segments)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the plan keeps between launches."""
        return self._memory.nbytes

    def _sources(self, storages: Any) -> dict[int, int]:
        sources = {storage.number: storage.label[1] for storage in storages if storage.label[0] == "argument"}
        for position, storage in enumerate(self.returned):
            sources[storage.number] = self._arguments + position
        return sources

    def _give_memory(self, works: list[list[Work]]) -> None:
        for core_works in works:
            for work in core_works:
                for view in _views_of(work):
                    self._give(view)

    def _give(self, view: View) -> None:
        storage = placeholder_of(view)
        if storage not in self._unwritten:
            storage.count_as_written()
        view.forget_array()
        source = self._memory.source_of(storage)
        if source is None:
            storage.give(self._memory.bytes_of(storage))
            return
        late = next((entry for entry in self._late if entry.storage is storage), None)
        if late is None:
            late = _Late(storage, source)
            self._late.append(late)
        if not any(view is known for known in late.views):
            late.views.append(view)

    def _place(self, core: Core, groups: Sequence[Sequence[Work]]) -> None:
        places = placed(groups, lambda storage: storage.label[0] == "core" and self._memory.source_of(storage) is None)
        self._memory.place(core.number, places)

    def _built(self, core: Core, groups: Sequence[Sequence[Work]]) -> Any:
        builder = CoreBuilder(core, self._memory, self._unwritten)
        builder.build(groups)
        return builder.segments

    def run(self, arguments: Arrays, *, waits: bool = False) -> Arrays:
        """Run the steps on the arrays of a launch, and return the arrays of the tensors in :attr:`returned`.

        Args:
            arguments: the argument arrays of the launch; the plan writes those that the launch writes.
            waits: whether to wait for a launch that is replayed in another thread.

        Raises:
            ReplayFailed: if the launch has to run instruction by instruction; the arguments are unchanged then.
        """
        if not ARENAS.take(waits=waits):
            raise ReplayFailed("another launch is replayed in another thread")
        before = {number: arguments[number].copy() for number in self.written if self.may_fail}
        fresh = [np.empty(storage.shape, storage.numpy_dtype) for storage in self.returned]
        try:
            self._bind([*arguments, *fresh])
            with np.errstate(all="ignore"):
                if self._has_products:
                    with one_thread():
                        self._run()
                else:
                    self._run()
        except Exception as error:
            if len(before) < len(self.written):
                raise  # by mistake: no step was to refuse anything, and arguments have been written
            for number, content in before.items():
                np.copyto(arguments[number], content)
            raise ReplayFailed(str(error)) from error
        finally:
            self._unbind()
            ARENAS.give_back()
        return fresh

    def _bind(self, arrays: Arrays) -> None:
        for storage in self._unwritten:
            storage.forget_writes()
        for slot in self._memory.slots:
            slot.bind(arrays)
        for late in self._late:
            late.storage.give(arrays[late.source].reshape(-1).view(np.uint8))
            for view in late.views:
                view.forget_array()

    def _unbind(self) -> None:
        for slot in self._memory.slots:
            slot.array = None
        for late in self._late:
            late.storage.take_away()
            for view in late.views:
                view.forget_array()

    def _run(self) -> None:
        for registers in self._registers:
            registers.fill(np.nan)
        races = self._watch_races() if self._watches_races else None
        for round_ in self._rounds:
            round_.run(self._cores, enters=self._has_whole)
        if races is not None:
            races.conclude(has_ended=True)
        for view in self._checked:
            if view.storage.count_unwritten(view.layout, view.dtype):
                raise ReplayFailed(f"{view} is returned and was not written")

    def _watch_races(self) -> RaceWatch:
        # For tensors whose accessed elements depend on data.
        options = self._cores[0].options
        watch = RaceWatch(RaceLevels(options.races, options.identical_writes))
        for core in self._cores:
            core.observers = Observers()
            core.observers.add(watch.watch(core.number, core.observers))
        return watch
