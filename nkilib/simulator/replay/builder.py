# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The builder of the steps of a core, which do the work (:class:`.work.Work`) of its instructions.

A *step* is a call without arguments. *Row-wise* work (elementwise results and reductions of rows) may run on a block of
rows at a time. A *meeting* is an instruction at which the two cores synchronise.

:class:`CoreBuilder` makes the steps, one :class:`Segment` between each two meetings; it uses a :class:`RowwiseBuilder`
for the row-wise work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engines.dma_endpoints import cast_into
from ..engines.rowwise import is_in_16_bits
from ..machine.core import Core
from ..machine.issue import Call
from ..numerics.casts import FLOAT32, copy_as_float32, store_float
from ..numerics.copies import SMALLEST_TRANSPOSED_BYTES, copy_in_order
from ..numerics.products import transposed_product
from ..tensors.view import View
from ..terms.dtypes import DType, tfloat32
from ..terms.layout import Layout
from .errors import ReplayFailed
from .memory import Memory, Operand, Slot
from .stream import PlaceholderStorage, RecordedCall, placeholder_of
from .work import (
    Action,
    Check,
    Elementwise,
    Meeting,
    Move,
    Reduced,
    Ref,
    Side,
    Store,
    Sum,
    Whole,
    Work,
    blocks_for,
    everything,
    needs_all_rows,
    row_count_of,
    width_of,
)

Step = Callable[[], object]


def _with_one_late(function: Callable[..., object], operands: tuple[Any, ...], place: int) -> Step:
    slot, before, after = operands[place], operands[:place], operands[place + 1 :]
    if not before and not after:
        return lambda: function(slot.array)
    if not before:
        return lambda: function(slot.array, *after)
    if not after:
        return lambda: function(*before, slot.array)
    return lambda: function(*before, slot.array, *after)


def _with_several_late(function: Callable[..., object], operands: tuple[Any, ...]) -> Step:
    if len(operands) == 2:
        first, second = operands
        return lambda: function(first.array, second.array)
    return lambda: function(*[operand.array if isinstance(operand, Slot) else operand for operand in operands])


class Steps:
    """The steps of a core between two meetings, in the order in which they run."""

    def __init__(self) -> None:
        self.all: list[Step] = []

    def call(self, function: Callable[..., object], *operands: Any, **keywords: Any) -> None:
        """Add a step that calls ``function`` with these operands.

        An operand that is a ``Slot`` is replaced by its array when the step runs.
        """
        late = [place for place, operand in enumerate(operands) if isinstance(operand, Slot)]
        if not late:
            self.all.append(partial(function, *operands, **keywords))
        elif len(late) == 1:
            self.all.append(_with_one_late(partial(function, **keywords) if keywords else function, operands, late[0]))
        else:
            self.all.append(_with_several_late(partial(function, **keywords) if keywords else function, operands))


def _store(dtype: DType, into: npt.NDArray[Any], values: npt.NDArray[np.float32]) -> None:
    store_float(into, values, dtype)


def _copy_column(into: npt.NDArray[np.float32], elements: npt.NDArray[Any]) -> None:
    np.copyto(into, elements.reshape(into.shape), casting="unsafe")


def _apply(
    steps: Steps, apply: Callable[..., object], tiles: list[Operand], columns: list[Operand], values: Operand
) -> None:
    if not any(isinstance(operand, Slot) for operand in (*tiles, *columns, values)):
        steps.all.append(partial(apply, tiles, columns, values))
        return
    count = len(tiles)

    def spread(into: Any, *operands: Any) -> None:
        apply(operands[:count], operands[count:], into)

    steps.call(spread, values, *tiles, *columns)


class RowwiseBuilder:
    """A builder of the steps for a core's row-wise work; each step handles a block of rows."""

    def __init__(self, core: int, memory: Memory) -> None:
        self._core = core
        self._memory = memory

    def elementwise(self, steps: Steps, work: Elementwise, rows: slice) -> None:
        """Add the steps that compute the results of ``work`` in the rows ``rows``."""
        columns = [self._column(steps, work, number, column, rows) for number, column in enumerate(work.columns)]
        values, is_direct = self._results(work, rows)
        tiles = [
            self._float32(steps, f"source {number}", tile, rows, None if is_direct or number else values)
            for number, tile in enumerate(work.tiles)
        ]
        _apply(steps, work.apply, tiles, columns, values)
        reduction = work.reduction
        if reduction is not None:
            if reduction.is_active:
                steps.call(partial(reduction.add_rows, rows), values)
            steps.call(reduction.finish, rows)
        if not is_direct and not work.is_dst_dead:
            self._store(steps, work.dst, rows, values)

    def begin(self, steps: Steps, work: Elementwise) -> None:
        """Add a step that reads the initial values of the reduction of ``work``, in all rows; nothing if there are
        none.

        Call this before adding any step that stores results, which may overwrite these values.
        """
        if work.reduction is not None and work.reduction.initial is not None:
            steps.call(work.reduction.begin)

    def reduced(self, steps: Steps, work: Reduced, rows: slice) -> None:
        """Add the steps that reduce the rows ``rows`` into a buffer, from which :meth:`store_reduced` stores the
        results.
        """
        results = self._all_results(work)[rows]
        view, matrix = work.tile.view, work.tile.as_matrix()
        if work.reads_bfloat16 and matrix is not None and is_in_16_bits(view):
            steps.call(work.reduce, self._memory.array(work.tile, rows, matrix), results)
        else:
            steps.call(work.reduce, self._float32(steps, "source 0", work.tile, rows, None), results)

    def store_reduced(self, steps: Steps, work: Reduced, rows: slice) -> None:
        """Add the steps that store the reductions of the rows ``rows`` from the buffer of :meth:`reduced`."""
        self._store(steps, work.dst, rows, self._all_results(work)[rows])

    def _all_results(self, work: Reduced) -> npt.NDArray[np.float32]:
        results: npt.NDArray[np.float32] = self._memory.scratch(self._core, "reduced", (work.tile.rows, work.dst.width))
        return results

    def _column(self, steps: Steps, work: Elementwise, number: int, value: Any, rows: slice) -> Operand:
        """Return a scalar operand of ``work`` for the rows ``rows``: a number, or float32 elements [rows, 1].

        Elements that ``work`` overwrites are copied to a buffer first.

        Args:
            steps: the steps, to which a copy is added if one is necessary.
            work: the row-wise work.
            number: the position of the operand among the scalar operands.
            value: the operand.
            rows: the block of rows.
        """
        if not isinstance(value, Ref):
            return np.float32(value)
        shape = (rows.stop - rows.start, 1)
        layout = value.as_matrix()
        elements = self._memory.array(value, rows, layout)
        is_ready = value.numpy_type == FLOAT32 and layout is not None
        if is_ready and not any(value.meets(written) for written in work.writes):
            return elements
        copied = self._memory.scratch(self._core, f"column {number}", shape)
        steps.call(_copy_column, copied, elements)
        return copied

    def _results(self, work: Elementwise, rows: slice) -> tuple[Operand, bool]:
        """Return the array into which ``work`` computes its results, and whether this array is their destination.

        Otherwise it is a buffer: the destination is not float32 or not a matrix, or nothing reads the results there.
        """
        dst = work.dst
        layout = dst.as_matrix()
        is_float32 = dst.numpy_type == FLOAT32 and dst.dtype != tfloat32
        if is_float32 and layout is not None and not work.is_dst_dead:
            return self._memory.array(dst, rows, layout), True
        return self._memory.scratch(self._core, "result", (rows.stop - rows.start, dst.width)), False

    def _float32(self, steps: Steps, role: str, ref: Ref, rows: slice, landing: Operand | None) -> Operand:
        """Return the rows ``rows`` of the tile ``ref`` in float32.

        A tile of another type, or that is no matrix, is cast into ``landing``; if that is None, into the buffer
        ``role``.
        """
        layout = ref.as_matrix()
        elements = self._memory.array(ref, rows, layout)
        if layout is not None and ref.numpy_type == FLOAT32:
            return elements
        shape = (rows.stop - rows.start, ref.width)
        values = self._memory.scratch(self._core, role, shape) if landing is None else landing
        into = values if layout is not None else values.reshape((shape[0], *ref.layout.shape[1:]))
        steps.call(copy_as_float32, into, elements)
        return values

    def _store(self, steps: Steps, dst: Ref, rows: slice, values: npt.NDArray[np.float32]) -> None:
        # ``values`` are results in float32, which the step casts to the type of ``dst``.
        layout = dst.as_matrix()
        into = self._memory.array(dst, rows, layout)
        if layout is None:
            values = values.reshape((rows.stop - rows.start, *dst.layout.shape[1:]))
        if dst.dtype.is_integer or dst.dtype == tfloat32:
            steps.call(partial(_store, dst.dtype), into, values)
        else:
            steps.call(np.copyto, into, values, casting="unsafe")


@dataclass(frozen=True)
class _Copy:
    """A float32 copy of operands of a sum: ``values`` are the elements of ``ref``, which lie in ``storage``."""

    ref: Ref
    storage: PlaceholderStorage
    values: npt.NDArray[np.float32]


class _SumBuilder:
    """A builder of the steps for sums of products. It keeps a float32 copy of each operand until the operand
    changes.
    """

    def __init__(self, core: int, memory: Memory) -> None:
        self._core = core
        self._memory = memory
        self._copies: dict[tuple[Any, ...], _Copy] = {}
        self._buffers: dict[int, list[npt.NDArray[np.float32]]] = {}

    def changed(self, work: Work) -> None:
        """Drop the float32 copies of operands that ``work`` overwrites."""
        for key, copy in list(self._copies.items()):
            if any(ref.storage is copy.storage and ref.place.meets(copy.ref.place) for ref in work.writes):
                del self._copies[key]
                self._buffers.setdefault(copy.values.size, []).append(copy.values)

    def build(self, steps: Steps, work: Sum) -> None:
        """Add the steps that compute ``work``, a sum of products."""
        into = self._memory.array(work.dst)
        is_begun = work.is_added
        for run in work.runs:
            left, right, count = self._matrix(steps, run.left), self._matrix(steps, run.right), run.left.count
            for number in range(count):
                factors = left[number::count], right[number::count]
                if is_begun:
                    product = self._memory.scratch(self._core, "product", into.shape)
                    steps.call(transposed_product, *factors, product)
                    steps.call(np.add, into, product, into)
                else:
                    steps.call(transposed_product, *factors, into)
                is_begun = True

    def _matrix(self, steps: Steps, side: Side) -> npt.NDArray[np.float32]:
        copy = self._copies.get(side.key)
        if copy is None:
            (rows, columns), (step, _), offset = side.first.layout
            layout = Layout((rows, side.count, columns), (step, side.distance, 1), offset)
            size = rows * side.count * columns
            free = self._buffers.get(size)
            values = free.pop() if free else self._memory.take(self._core, 4 * size).view(np.float32)
            ref = Ref(side.first.view.with_layout(layout))
            ref.place = everything(ref.storage) if side.count > 1 and side.distance < 0 else ref.place
            steps.call(copy_as_float32, values.reshape(rows, side.count, columns), self._memory.array(ref))
            copy = self._copies[side.key] = _Copy(ref, ref.storage, values)
        (rows, columns), _, _ = side.first.layout
        return copy.values.reshape(rows * side.count, columns)


@dataclass
class Segment:
    """The steps of a core between two meetings, and the meeting at their end.

    Attributes:
        steps: the steps.
        meeting: the barrier, exchange or collective at their end; None at the end of the launch.
        nbytes: about how many bytes the steps read and write.
    """

    steps: Steps = field(default_factory=Steps)
    meeting: Meeting | None = None
    nbytes: int = 0


def _is_small_or_in_order(ref: Ref) -> bool:
    # ``np.copyto`` is fast enough for few elements, and for elements that are contiguous along the last dimension.
    is_in_order = len(ref.layout.shape) < 2 or abs(ref.layout.strides[-1]) <= 1
    return is_in_order or ref.size * ref.numpy_type.itemsize < SMALLEST_TRANSPOSED_BYTES


def _cast(source: DType, target: DType) -> Callable[..., object]:
    def cast(into: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        cast_into(into, values.reshape(into.shape), source, target)

    return cast


def _copy_reshaped(into: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    copy_in_order(into, values.reshape(into.shape))


def _forget_derived(storage: PlaceholderStorage) -> None:
    # Other steps change the memory without updating what was derived from the contents.
    if storage.parts:
        storage.settle()
    storage.derived = None


def _whole_step(core: Core, recorded: RecordedCall, unwritten: frozenset[PlaceholderStorage]) -> Callable[[], object]:
    """Return a step that runs the function of an instruction as in a normal launch.

    The step records its writes to the tensors in ``unwritten``, and raises ``ReplayFailed`` if it reads elements of
    these tensors that were not written.
    """
    definition, values, engine = recorded.definition, recorded.values, recorded.engine
    storages = {placeholder_of(view) for view, _ in recorded.tensors}
    written = [values[place] for rule, place in definition.outputs if not rule.marks_itself]
    marked = [view for view in written if view is not None and placeholder_of(view) in unwritten]
    accessed = [values[place] for rule, place, _ in definition.checks if rule.is_accessed and not rule.is_output]
    read = [view for view in accessed if isinstance(view, View) and placeholder_of(view) in unwritten]

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


class CoreBuilder:
    """A builder of the steps of one core.

    Attributes:
        segments: the segments built so far.
    """

    def __init__(self, core: Core, memory: Memory, unwritten: frozenset[PlaceholderStorage]) -> None:
        self._core = core
        self._unwritten = unwritten
        self._memory = memory
        self._rowwise = RowwiseBuilder(core.number, memory)
        self._sums = _SumBuilder(core.number, memory)
        self.segments = [Segment()]

    def build(self, groups: Iterable[Sequence[Work]]) -> None:
        """Build the steps of all groups of work, in their order.

        The steps of a group do all its work on one block of rows before they go on to the next block.
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
        # All work of the group runs on one block of rows before the next block.
        width = max(width_of(work) for work in group)
        for work in group:
            if isinstance(work, Elementwise):
                self._rowwise.begin(steps, work)
        for rows in blocks_for(row_count_of(group[0]), width):
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
