# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Conversion of recorded instructions to work: the functions of the instructions run on tensors without memory.

With an emitter on the core, the function of an instruction *emits* its work (:class:`.work.Work`) instead of computing.
:func:`emit` returns the work of each core; :func:`cores_for` makes the cores on which the functions run.
:func:`check_all_written` checks that a plan reads no unwritten element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..hardware.current import enter
from ..machine.core import Core, Launch
from ..machine.issue import Call
from ..machine.synchronisation import CoreBarrier
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.enums import MemoryRegion
from ..terms.spec import DataNeeded
from .data_dependence import DataDependent, OwnedRows
from .errors import Unplannable
from .stream import Entry, Gathered, Guarded, PlaceholderStorage, RecordedCall, Stored, Stream, placeholder_of, views_in
from .work import Action, Check, Elementwise, Meeting, Move, Product, Reduced, Ref, Store, Whole, Work


def cores_for(stream: Stream) -> list[Core]:
    """Return new cores for a launch like the recorded one, without observers."""
    launch = Launch(stream.options, len(stream.cores), stream.grid_dimensions, CoreBarrier(len(stream.cores)))
    cores = [Core(number, launch) for number in range(len(stream.cores))]
    for core in cores:
        core.defers_results = False
    return cores


def _mark_outputs(entry: RecordedCall, is_whole: bool) -> None:
    """Mark the outputs of an instruction as written.

    An output that the function of the instruction marks itself (``rule.marks_itself``) is marked here only if that
    function did not run to its end and certainly writes all of the output.

    Args:
        entry: the instruction.
        is_whole: whether the function of the instruction did not run to its end.

    Raises:
        Unplannable: if data decide which elements in PSUM the instruction writes. Those are no longer results of a
            matmul to which a later one may add.
    """
    definition = entry.definition
    for rule, position in definition.outputs:
        written = entry.values[position]
        if written is None:
            continue
        if not rule.marks_itself:
            written.mark_written(definition.is_matmul)
        elif is_whole and written.indirect_access is None:
            if not rule.may_leave and not entry.skips:
                written.mark_written()
            elif written.buffer is MemoryRegion.psum:
                raise Unplannable("the data decide which elements of PSUM it writes")


def check_all_written(ref: Ref) -> None:
    """Check that instructions have written all elements of ``ref``; in a plan unwritten elements have arbitrary values.

    Raises:
        Unplannable: if some were not written; the message names the tensor.
    """
    if not ref.storage.written.is_written(ref.layout, ref.numpy_type.itemsize):
        raise Unplannable(f"{ref.view} is read where no instruction has written")


class _Emission:
    """The emitter of a core (``Emitter`` of machine/core.py), which collects the work of the core's instructions.

    Attributes:
        works: the emitted work.
        shared_reads: the elements in shared HBM that the work reads, which the other core may have written.
    """

    def __init__(self, dependent: frozenset[PlaceholderStorage], sides: dict[PlaceholderStorage, OwnedRows]) -> None:
        self._dependent = dependent
        self._sides = sides
        self.works: list[Work] = []
        self.shared_reads: list[Ref] = []

    def take(self, core: Core, entry: Entry) -> None:
        """Add the work of a recorded call or register access, and mark the elements that it writes as written."""
        if isinstance(entry, Guarded):
            self._add(Check(entry))
        elif isinstance(entry, Stored):
            self._add(Store(entry))
            entry.view.mark_written()
        else:
            self._take_call(core, entry)

    def _take_call(self, core: Core, entry: RecordedCall) -> None:
        definition = entry.definition
        is_meeting = entry.is_meeting and core.launch.cores > 1
        for operand in entry.indirect:
            self._gather(operand)
        if self._sides:
            self._check_sides(entry)
        mark, is_whole = len(self.works), is_meeting
        if is_meeting:
            self._add(Meeting(entry))
        else:
            call = Call(core, definition, [*entry.values, None])
            call.engine = entry.engine
            try:
                if self._is_dependent(entry):
                    raise DataNeeded("what is touched")
                definition.function(call, *entry.values)
            except DataNeeded:
                del self.works[mark:]
                self._add(Whole(entry))
                is_whole = True
        _mark_outputs(entry, is_whole)
        for operand in entry.indirect:
            if operand.is_output:
                self._add(
                    Action.of(operand.scatter, (), (operand.elements, operand.index), (operand.base,), may_refuse=True)
                )

    def _check_sides(self, entry: RecordedCall) -> None:
        """Add checks of row indices: in a tensor whose rows the cores divide, this core may access only its own
        rows.
        """
        for view, _ in entry.tensors:
            side, indirect = self._sides.get(placeholder_of(view)), view.indirect_access
            if side is not None and indirect is not None and isinstance(indirect.index, View):
                self._add(Action.of(side.checking(view), (), (indirect.index,), (), may_refuse=True))

    def _gather(self, operand: Gathered) -> None:
        # If the operand is an output, its tensor must have been written before.
        written = operand.base.storage.written
        if operand.is_output and written.is_untouched:
            raise Unplannable("elements are scattered to a tensor that is not written yet")
        self._add(Action.of(operand.gather, (operand.elements,), (operand.base, operand.index), (), may_refuse=True))
        operand.elements.mark_written()

    def _is_dependent(self, entry: RecordedCall) -> bool:
        return bool(self._dependent) and any(placeholder_of(view) in self._dependent for view, _ in entry.tensors)

    def _add(self, work: Work) -> None:
        # A whole instruction counts as reading everything that it may only write, and checks such tensors itself.
        is_whole = isinstance(work, Whole)
        for ref in work.reads:
            if ref in work.chosen or (is_whole and (ref in work.writes or ref.storage in self._dependent)):
                continue
            if ref.storage.region is MemoryRegion.shared_hbm:
                self.shared_reads.append(ref)  # the other core may have written it
            else:
                check_all_written(ref)
        self.works.append(work)

    def elementwise(
        self, dst: View, tiles: Sequence[View], apply: Callable[..., object], reduction: Any, columns: Sequence[Any]
    ) -> None:
        scalars = [Ref(column) if isinstance(column, NkiTensor) else column for column in columns]
        destination = None
        if reduction is not None and reduction.destination is not None:
            destination = Ref(reduction.destination)
        self._add(Elementwise(Ref(dst), list(map(Ref, tiles)), apply, reduction, scalars, destination))

    def reduce_rows(self, dst: View, tile: View, reduce: Callable[..., object], reads_bfloat16: bool) -> None:
        self._add(Reduced(Ref(dst), Ref(tile), reduce, reads_bfloat16))

    def act(
        self,
        function: Callable[..., object],
        writes: Sequence[View],
        reads: Sequence[View],
        updates: Sequence[View],
        chosen: Sequence[View],
        may_refuse: bool,
    ) -> None:
        self._add(Action.of(function, writes, reads, updates, chosen, may_refuse=may_refuse))

    def move(self, target: View, source: View) -> None:
        self._add(Move(Ref(target), Ref(source)))

    def multiply(self, dst: View, stationary: View, moving: View, is_added: bool) -> None:
        self._add(Product(Ref(dst), Ref(stationary), Ref(moving), is_added))


def _emit_core(core: Core, entries: Iterable[Entry], dependent: DataDependent) -> _Emission:
    emission = _Emission(dependent.all, {storage: sides[core.number] for storage, sides in dependent.divided.items()})
    core.emitter = emission
    enter(core)
    try:
        for entry in entries:
            emission.take(core, entry)
    finally:
        core.emitter = None
        enter(None)
    return emission


def emit(cores: Sequence[Core], stream: Stream, dependent: DataDependent) -> list[list[Work]]:
    """Return the work of each core.

    An instruction on a tensor in ``dependent.all`` becomes a :class:`.work.Whole`, which runs as in a normal launch.

    Raises:
        Unplannable: if an instruction reads elements that no instruction has written.
    """
    emissions = [_emit_core(core, entries, dependent) for core, entries in zip(cores, stream.cores, strict=True)]
    for emission in emissions:
        for ref in emission.shared_reads:
            check_all_written(ref)
    for view in views_in(stream.result):
        if placeholder_of(view) not in dependent.all:
            check_all_written(Ref(view))
    return [emission.works for emission in emissions]
