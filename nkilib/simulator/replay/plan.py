# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Plan``: the steps of a launch, to be run on the arrays of another launch of the same key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..machine.core import Core
from ..machine.observer import Observers
from ..machine.races import RaceLevels, RaceWatch
from ..numerics.blas_threads import one_thread
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from .arenas import ARENAS
from .builder import CoreBuilder
from .emission import cores_for, emit
from .errors import ReplayFailed, Unplannable
from .ghosts import Ghost, ghost_of
from .memory import Memory
from .passes.dead import without_dead
from .passes.groups import grouped
from .passes.loads import without_loads
from .passes.places import placed
from .passes.stores import without_stores
from .rounds import Round
from .stream import Stream, views_in
from .sums import Sum, with_sums
from .tracked import tracked_storages
from .work import Action, Check, Elementwise, Meeting, Whole, Work

Arrays = list[npt.NDArray[Any]]


class Plan:
    """The steps of a launch.

    Args:
        stream: the recorded launch.
        arguments: the number of arrays among a launch's arguments.

    Attributes:
        returned: the storages of the tensors that the kernel returns, except arguments.
        written: the numbers of the arguments that the launch writes.
        may_fail: whether a step may meet values for which the launch has to run instruction by instruction.
        instructions: the number of instructions of the launch.
        steps: the number of steps in place of these instructions.

    Raises:
        Unplannable: if no plan is possible.
    """

    def __init__(self, stream: Stream, arguments: int) -> None:
        self._arguments = arguments
        self.returned = _returned(stream.result)
        if len(stream.cores) > 1 and stream.options.races == "ignore":
            raise Unplannable("two cores may race for what they read")
        self._cores = cores_for(stream)
        tracked = tracked_storages(stream)
        works = _fewer(emit(self._cores, stream, tracked))
        storages = {
            ref.storage.number: ref.storage for core_works in works for work in core_works for ref in _refs(work)
        }
        self._ghosts = list(storages.values())
        self.written = sorted({ghost.label[1] for ghost in _written(works) if ghost.label[0] == "argument"})
        self.may_fail = bool(tracked.all) or any(_may_refuse(work) for core_works in works for work in core_works)
        self._watches_races, self._unwritten = bool(tracked.watched), tracked.unwritten
        self._checked = [view for view in views_in(stream.result) if ghost_of(view) in self._unwritten]
        self._memory = Memory(self._sources(storages.values()), len(self._cores))
        for ghost, content in stream.contents.items():
            self._memory.keep(ghost, content)
        self._late: list[_Late] = []
        groups = [grouped(core_works) for core_works in works]
        for core, core_works in zip(self._cores, groups, strict=True):
            self._place(core, core_works)
        self._give_memory(works)
        self._segments = [self._built(core, core_works) for core, core_works in zip(self._cores, groups, strict=True)]
        if len({len(segments) for segments in self._segments}) > 1:
            raise Unplannable("the cores meet unequally often")
        self._rounds = list(map(Round, zip(*self._segments, strict=True)))
        kinds = {type(work) for core_works in works for work in core_works}
        self._has_products, self._has_whole = Sum in kinds or Action in kinds, Whole in kinds or Meeting in kinds
        self._registers = _registers(self._cores, works)
        self.instructions = sum(map(len, stream.cores))
        self.steps = sum(len(segment.steps.all) for segments in self._segments for segment in segments)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the plan keeps."""
        return self._memory.nbytes

    def _sources(self, ghosts: Any) -> dict[int, int]:
        sources = {ghost.number: ghost.label[1] for ghost in ghosts if ghost.label[0] == "argument"}
        for position, ghost in enumerate(self.returned):
            sources[ghost.number] = self._arguments + position
        return sources

    def _give_memory(self, works: list[list[Work]]) -> None:
        """Give memory to the tensors of instructions that run as they are, and to those of reductions."""
        for core_works in works:
            for work in core_works:
                for view in _views_of(work):
                    self._give(view)

    def _give(self, view: View) -> None:
        ghost = ghost_of(view)
        if ghost not in self._unwritten:
            ghost.count_as_written()
        view.forget_array()
        source = self._memory.source_of(ghost)
        if source is None:
            ghost.give(self._memory.bytes_of(ghost))
            return
        late = next((entry for entry in self._late if entry.ghost is ghost), None)
        if late is None:
            late = _Late(ghost, source)
            self._late.append(late)
        if not any(view is known for known in late.views):
            late.views.append(view)

    def _place(self, core: Core, groups: Sequence[Sequence[Work]]) -> None:
        """Give the tiles of a core their places in its arena."""
        places = placed(groups, lambda ghost: ghost.label[0] == "core" and self._memory.source_of(ghost) is None)
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
        fresh = [np.empty(ghost.shape, ghost.numpy_dtype) for ghost in self.returned]
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
        """Point the slots of the steps to the arrays of a launch that begins."""
        for ghost in self._unwritten:
            ghost.forget_writes()
        for slot in self._memory.slots:
            slot.bind(arrays)
        for late in self._late:
            late.ghost.give(arrays[late.source].reshape(-1).view(np.uint8))
            for view in late.views:
                view.forget_array()

    def _unbind(self) -> None:
        """Release the arrays of a launch that is over."""
        for slot in self._memory.slots:
            slot.array = None
        for late in self._late:
            late.ghost.take_away()
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
        """Watch the cores for races on tensors of which the data decide what the cores touch."""
        options = self._cores[0].options
        watch = RaceWatch(RaceLevels(options.races, options.identical_writes))
        for core in self._cores:
            core.observers = Observers()
            core.observers.add(watch.watch(core.number, core.observers))
        return watch


@dataclass(eq=False)
class _Late:
    """A tensor that is an array of the launch, and that instructions access as a tensor instead of in a slot.

    Attributes:
        ghost: the storage of the tensor.
        source: the number of the launch's array.
        views: the views of the tensor.
    """

    ghost: Ghost
    source: int
    views: list[View] = field(default_factory=list)


def _registers(cores: Sequence[Core], works: list[list[Work]]) -> list[npt.NDArray[np.float32]]:
    """Return the accumulator registers of the cores that use any; each run begins with undefined values in them."""
    registers: list[npt.NDArray[np.float32]] = []
    for core, core_works in zip(cores, works, strict=True):
        if any(isinstance(work, Whole) or (isinstance(work, Elementwise) and work.reduction) for work in core_works):
            registers += [core.scalar_accumulators.values, core.vector_accumulators.values]
    return registers


def _may_refuse(work: Work) -> bool:
    """Tell whether some work may meet values for which the launch has to run instruction by instruction."""
    return isinstance(work, Whole | Check) or (isinstance(work, Action) and work.may_refuse)


def _fewer(emitted: list[list[Work]]) -> list[list[Work]]:
    """Return the work of each core after the passes, which combine products and remove unnecessary work."""
    works = [with_sums(core_works) for core_works in emitted]
    written = {ref.storage.number for core_works in works for work in core_works for ref in work.writes}
    return [without_stores(without_dead(without_loads(core_works, written))) for core_works in works]


def _returned(result: Any) -> list[Ghost]:
    ghosts: list[Ghost] = []
    for view in views_in(result):
        assert isinstance(view, NkiTensor)
        ghost = ghost_of(view)
        if ghost.label[0] != "argument" and ghost not in ghosts:
            ghosts.append(ghost)
    return ghosts


def _views_of(work: Work) -> list[View]:
    """Return the tensors that some work accesses as tensors, instead of receiving arrays."""
    if isinstance(work, Elementwise):
        return [] if work.reduction is None else views_in([work.reduction.destination, work.reduction.initial])
    if not isinstance(work, Whole):
        return []
    views = [touched.view for touched in work.call.tensors]
    indirect = [view.indirect_access for view in views if view.indirect_access is not None]
    return [*views, *[operand.index for operand in indirect if isinstance(operand.index, View)]]


def _refs(work: Work) -> list[Any]:
    return [*work.reads, *work.writes]


def _written(works: list[list[Work]]) -> set[Ghost]:
    return {ref.storage for core_works in works for work in core_works for ref in work.writes}
