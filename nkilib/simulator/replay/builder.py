# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The builder of a core's steps, which do the work (:class:`.work.Work`) of its instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..engines.dma.rows import cast_into
from ..machine.call import Call
from ..machine.core import Core
from ..numerics.transposing import SMALLEST_TRANSPOSED_BYTES, copy_in_order
from ..tensors.view import View
from ..terms.dtypes import DType
from .errors import ReplayFailed
from .ghosts import Ghost, ghost_of
from .memory import Memory
from .rows import blocks_for, needs_all_rows, rows_of, width_of
from .rowwise import RowwiseBuilder
from .steps import Steps
from .stream import Recorded
from .sums import Sum, SumBuilder
from .work import Action, Check, Elementwise, Meeting, Move, Reduced, Ref, Store, Whole, Work

Made = TypeVar("Made", bound=Work)


@dataclass
class Segment:
    """The steps of a core from one synchronisation with the other core to the next.

    Attributes:
        steps: the steps.
        meeting: the barrier or exchange at their end; None at the end of the launch.
        nbytes: about how many bytes the steps read and write.
    """

    steps: Steps = field(default_factory=Steps)
    meeting: Meeting | None = None
    nbytes: int = 0


class CoreBuilder:
    """A builder of the steps of one core.

    Attributes:
        segments: the segments built so far.
    """

    def __init__(self, core: Core, memory: Memory, unwritten: frozenset[Ghost]) -> None:
        self._core = core
        self._unwritten = unwritten
        self._memory = memory
        self._rowwise = RowwiseBuilder(core.number, memory)
        self._sums = SumBuilder(core.number, memory)
        self.segments = [Segment()]

    def build(self, groups: Iterable[Sequence[Work]]) -> None:
        """Build the steps of groups of work, one group after the other.

        All work of a group runs on a few rows, before any of it runs on the next rows.
        """
        for group in groups:
            steps = self.segments[-1].steps
            if len(group) > 1:
                self._build_together(steps, group)
            else:
                self._build(steps, group[0])
            for work in group:
                self._sums.changed(work)
                self.segments[-1].nbytes += sum(
                    ref.size * ref.numpy_type.itemsize for ref in (*work.reads, *work.writes)
                )

    def _build(self, steps: Steps, work: Work) -> None:
        if isinstance(work, Meeting):
            self.segments[-1].meeting = work
            self.segments.append(Segment())
            return
        _BUILDERS[type(work)](self, steps, work)

    def _build_together(self, steps: Steps, group: Sequence[Work]) -> None:
        """Build steps that do all work of the group on a block of rows, before any work on the next block."""
        width = max(width_of(work) for work in group)
        for work in group:
            if isinstance(work, Elementwise):
                self._rowwise.begin(steps, work)
        for rows in blocks_for(rows_of(group[0]), width):
            for work in group:
                self._build_rows(steps, work, rows)

    def _build_rows(self, steps: Steps, work: Work, rows: slice) -> None:
        if isinstance(work, Elementwise):
            self._rowwise.elementwise(steps, work, rows)
        elif isinstance(work, Reduced):
            self._rowwise.reduced(steps, work, rows)
            self._rowwise.store_reduced(steps, work, rows)

    def _build_elementwise(self, steps: Steps, work: Elementwise) -> None:
        self._rowwise.begin(steps, work)
        rows = slice(0, work.dst.rows)
        for block in [rows] if needs_all_rows(work) else blocks_for(rows.stop, width_of(work)):
            self._rowwise.elementwise(steps, work, block)

    def _build_reduced(self, steps: Steps, work: Reduced) -> None:
        rows = slice(0, work.tile.rows)
        for block in blocks_for(rows.stop, work.tile.width):
            self._rowwise.reduced(steps, work, block)
        self._rowwise.store_reduced(steps, work, rows)

    def _build_action(self, steps: Steps, work: Action) -> None:
        steps.call(work.function, *[self._memory.array(ref) for ref in work.operands])

    def _build_move(self, steps: Steps, work: Move) -> None:
        dst, src = work.dst, work.src
        into, values = self._memory.array(dst), self._memory.array(src)
        if dst.dtype != src.dtype:
            steps.call(_cast(src.dtype, dst.dtype), into, values)
        elif dst.layout.shape == src.layout.shape:
            steps.call(np.copyto if _is_small_or_in_order(src) else copy_in_order, into, values)
        else:
            steps.call(_copy_reshaped, into, values)

    def _build_sum(self, steps: Steps, work: Sum) -> None:
        self._sums.build(steps, work)

    def _build_store(self, steps: Steps, work: Store) -> None:
        ref = work.writes[0]
        content = np.frombuffer(work.stored.content, ref.numpy_type).reshape(ref.layout.shape)
        steps.call(np.copyto, self._memory.array(ref), content)
        if ref.storage in self._unwritten:
            steps.call(work.stored.view.mark_written)

    def _build_check(self, steps: Steps, work: Check) -> None:
        expected = work.guard.content

        def check(elements: npt.NDArray[Any]) -> None:
            if elements.tobytes() != expected:
                raise ReplayFailed("a register or an address was loaded with another value")

        steps.call(check, self._memory.array(work.reads[0]))

    def _build_whole(self, steps: Steps, work: Whole) -> None:
        steps.all.append(_whole_step(self._core, work.call, self._unwritten))


def _is_small_or_in_order(ref: Ref) -> bool:
    """Tell whether ``np.copyto`` already copies these elements in a good order, or they are few."""
    is_in_order = len(ref.layout.shape) < 2 or abs(ref.layout.strides[-1]) <= 1
    return is_in_order or ref.size * ref.numpy_type.itemsize < SMALLEST_TRANSPOSED_BYTES


def _cast(source: DType, target: DType) -> Callable[..., object]:
    def cast(into: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        cast_into(into, values.reshape(into.shape), source, target)

    return cast


def _copy_reshaped(into: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    copy_in_order(into, values.reshape(into.shape))


def _whole_step(core: Core, recorded: Recorded, unwritten: frozenset[Ghost]) -> Callable[[], object]:
    """Return a step that runs the function of an instruction as it is.

    It records its writes to the tensors in ``unwritten``, and fails if it reads elements of them that were not written.
    """
    definition, values, engine = recorded.definition, recorded.values, recorded.engine
    storages = {ghost_of(view) for view, _ in recorded.tensors}
    written = [values[place] for rule, place in definition.outputs if not rule.marks_itself]
    marked = [view for view in written if view is not None and ghost_of(view) in unwritten]
    accessed = [values[place] for rule, place, _ in definition.checks if rule.is_accessed and not rule.is_output]
    read = [view for view in accessed if isinstance(view, View) and ghost_of(view) in unwritten]

    def run() -> None:
        for view in read:
            if view.storage.count_unwritten(view.layout, view.dtype):
                raise ReplayFailed(f"{view} is read before it was written")
        call = Call(core, definition, [*values, None])
        call.engine = engine
        definition.function(call, *values)
        for view in marked:
            view.mark_written(definition.is_matmul)
        for storage in storages:
            _forget_derived(storage)

    return run


def _forget_derived(storage: Ghost) -> None:
    """Compute what a storage has deferred, and drop what was derived from it: other steps know of neither."""
    if storage.parts:
        storage.settle()
    storage.derived = None


# The builder of the steps of each kind of work.
_BUILDERS: dict[type[Work], Callable[[CoreBuilder, Steps, Any], None]] = {
    Elementwise: CoreBuilder._build_elementwise,
    Reduced: CoreBuilder._build_reduced,
    Action: CoreBuilder._build_action,
    Move: CoreBuilder._build_move,
    Sum: CoreBuilder._build_sum,
    Store: CoreBuilder._build_store,
    Check: CoreBuilder._build_check,
    Whole: CoreBuilder._build_whole,
}
