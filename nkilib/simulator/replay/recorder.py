# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Recording of the instructions of a launch while it runs in the normal way.

:func:`record_launch` runs a kernel and returns a :class:`RecordedLaunch`; a :class:`Recorder` watches the launch.

A *placeholder* is a storage without memory that stands for a storage of the launch (:mod:`.stream`); its *label* is the
role of the storage in the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..isa.indirection import IndirectOperand, resolve_scalar_offset, rows_layout
from ..launch.arguments import map_leaves
from ..launch.progress import launching
from ..launch.running import PreparedLaunch, run_cores
from ..launch.settings import Launchable
from ..machine.core import Core
from ..machine.observer import Issued, Observer, Observers, Watcher, watching
from ..memory.storage import Storage
from ..tensors.device_integers import DeviceInteger
from ..tensors.tensor import NkiTensor
from ..tensors.view import Indirect, View
from ..terms.enums import MemoryRegion
from ..terms.errors import OutOfRangeError
from ..terms.layout import Layout
from .errors import Unplannable
from .stream import Entry, Gathered, Guarded, Indexed, Label, PlaceholderStorage, RecordedCall, Stored, Stream

# Instructions that load a register or a scalar from a tensor, with the name of that operand.
_LOADS = {"register_load": "src", "scalar_load": "src"}
_STORES = {"register_store": "dst", "scalar_store": "dst"}
# Instructions on registers, whose values are known from the loads.
_OF_REGISTERS = frozenset({"register_move", "register_alloc"})


def _has_scalar_offset(value: Any) -> bool:
    return isinstance(value, View) and value.indirect_access is not None and value.indirect_access.kind == "scalar"


class _CoreRecorder(Observer):
    """An observer that records the instructions of one core."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self.entries: list[Entry] = []
        self.indexed: list[Indexed] = []
        self._recorder = recorder
        self._number = number
        self._count = 0

    def count(self) -> int:
        # The number of labels so far is the number in the next label.
        self._count += 1
        return self._count - 1

    def issued(self, call: Issued) -> None:
        try:
            self._take_down(call)
        except Unplannable as error:
            self._recorder.refuse(str(error))
        except Exception as error:  # a mistake here must not end the launch
            self._recorder.error = error
            self._recorder.refuse(f"{type(error).__name__}: {error}")

    def _take_down(self, call: Issued) -> None:
        definition = call.definition
        name = definition.name
        if name in _OF_REGISTERS or self._recorder.refusal:
            return
        values = call.values[:-1]
        if name in _LOADS:
            self._guard(values[definition.names.index(_LOADS[name])])
            return
        if name in _STORES:
            view = values[definition.names.index(_STORES[name])]
            self.entries.append(Stored(self._placeholder_of(view), view.array.tobytes()))
            return
        offsets = [*call.offsets, *[value.indirect_access for value in values if _has_scalar_offset(value)]]
        for indirect in offsets:
            self._guard_offset(indirect, values)
        indirect = tuple(self._gathered(operand, values) for operand in call.indirect)
        self.entries.append(RecordedCall(definition, tuple(map(self._taken, values)), call.engine, indirect))

    def _gathered(self, operand: IndirectOperand, values: list[Any]) -> Gathered:
        # The elements of a view of ``NkiTensor.indirect`` are gathered before the instruction runs.
        base, index, gathered = operand.base, operand.index, operand.gathered
        if index.storage is base.storage or any(value is index for value in values):
            raise Unplannable("an instruction uses the tensor of its own offsets")
        rows = self._placeholder_of(base.with_layout(rows_layout(base)))
        elements = self._placeholder_of(gathered.with_layout(operand.elements))
        return Gathered(rows, self._placeholder_of(index), operand.choice, elements, operand.is_output)

    def _guard(self, view: View) -> None:
        self.entries.append(Guarded(self._placeholder_of(view), view.array.tobytes()))

    def _guard_offset(self, indirect: Indirect, values: list[Any]) -> None:
        """Record the elements from which an operand's address was read, so that the plan checks their values.

        Args:
            indirect: the address of the operand.
            values: the arguments of the call.

        Raises:
            Unplannable: if an operand of the instruction is in the same storage, which the instruction may have
                overwritten.
        """
        index = indirect.index
        if not isinstance(index, View):
            return  # a register or a scalar: what it was loaded from is guarded
        if any(isinstance(value, View) and value.storage is index.storage for value in values):
            raise Unplannable("an instruction uses the tensor of its own address")
        self._guard(index)

    def _placeholder_of(self, view: View) -> NkiTensor:
        return self._recorder.placeholder_view(view, self._number)

    def _taken(self, value: Any) -> Any:
        # Tensors become views of placeholders, and registers are copied.
        if isinstance(value, NkiTensor):
            indirect = value.indirect_access
            if indirect is None:
                return self._placeholder_of(value)
            return self._indirect(value, indirect)
        if isinstance(value, DeviceInteger):
            return value.usable_anywhere()
        if type(value) in (tuple, list):
            return type(value)(map(self._taken, value))
        if isinstance(value, dict):
            return {key: self._taken(item) for key, item in value.items()}
        return value

    def _indirect(self, view: NkiTensor, indirect: Indirect) -> NkiTensor:
        """Return the recorded form of a view whose address was read at run time.

        If a vector chooses its rows, the plan reads the vector again. A scalar offset is replaced by its value, which
        the plan checks.
        """
        if indirect.kind == "scalar":
            try:
                return self._placeholder_of(resolve_scalar_offset("", view))
            except OutOfRangeError:
                raise Unplannable("an offset leads out of its tensor") from None
        if indirect.kind != "vector" or not isinstance(indirect.index, View):
            raise Unplannable(f"a view with a {indirect.kind} offset")
        index = self._placeholder_of(indirect.index)
        static = self._placeholder_of(view.with_layout(view.layout))
        recorded = static.with_indirect(replace(indirect, index=index, source=repr(indirect.source)))
        if view.buffer is MemoryRegion.shared_hbm:
            self.indexed.append(Indexed(recorded, indirect.index.array.copy()))
        return recorded


def _bytes_of(storage: Storage) -> npt.NDArray[np.uint8]:
    return storage.memory(Layout((storage.nbytes,), (1,), 0), np.dtype(np.uint8)).copy()


class Recorder(Watcher):
    """A watcher of a launch that records the instructions of its cores.

    Attributes:
        refusal: the reason why no plan can be made of the launch; empty if there is none so far.
        error: a fault of the recorder itself, which does not end the launch; None if there is none.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.error: Exception | None = None
        self._labels: dict[int, Label] = {}
        self._placeholders: dict[int, PlaceholderStorage] = {}
        self._views: dict[Hashable, NkiTensor] = {}
        self._lock = Lock()
        self._cores: list[_CoreRecorder] = []

    def name_arguments(self, numbers: Mapping[int, int]) -> None:
        """Label the storages of the launch's arguments, before it runs; ``numbers`` maps storage to argument number."""
        self._labels = {storage: ("argument", number) for storage, number in numbers.items()}

    def watch(self, number: int, observers: Observers) -> Observer:
        self._cores.append(_CoreRecorder(self, number))
        return self._cores[-1]

    def conclude(self, has_ended: bool) -> None:
        """Do nothing: the recording is read after the launch."""
        return

    def refuse(self, reason: str) -> None:
        """Record that no plan can be made of this launch, and the reason."""
        self.refusal = self.refusal or reason

    def stream(self, cores: list[Core], result: Callable[[Callable[[Any], Any]], Any]) -> Stream | None:
        """Return the recorded launch after its end; None if no plan can be made of it.

        Args:
            cores: the cores that ran.
            result: a function that takes a function, applies it to each leaf of the value that the kernel returned, and
                returns the new value.
        """
        launch = cores[0].launch
        for position, storage in enumerate(launch.shared):
            self._name(storage, ("shared", position))
        for key, storage in launch.constants.items():
            self._name(storage, ("constant", repr(key)))
        for core in cores:
            self._check_core(core)
        if self.refusal:
            return None
        returned = result(lambda leaf: self.placeholder_view(leaf, 0) if isinstance(leaf, NkiTensor) else leaf)
        contents = {
            self._placeholders[storage.number]: _bytes_of(storage)
            for storage in launch.constants.values()
            if storage.number in self._placeholders
        }
        for placeholder in contents:
            placeholder.forget_writes()
        entries = [recorder.entries for recorder in self._cores]
        indexed = [recorder.indexed for recorder in self._cores]
        return Stream(launch.options, launch.grid_dimensions, entries, returned, contents, indexed)

    def _name(self, storage: Storage, label: tuple[Any, ...]) -> None:
        placeholder = self._placeholders.get(storage.number)
        if placeholder is not None and placeholder.label[0] == "hbm":
            placeholder.label = label

    def _check_core(self, core: Core) -> None:
        if core.random.is_used:
            self.refuse("it draws random numbers")
        if core.at_end:
            self.refuse("an instruction of it waits for the end of the kernel")
        if core.unrepeatable:
            self.refuse(core.unrepeatable)

    def placeholder_view(self, view: View, core: int) -> NkiTensor:
        """Return the view of a placeholder that stands for ``view``, a tensor of core number ``core``, in the
        recording.
        """
        key = view.storage.number, view.layout, view.dtype, view.buffer
        with self._lock:
            placeholder_view = self._views.get(key)
            if placeholder_view is None:
                placeholder = self._placeholder(view.storage, core)
                whole = NkiTensor(placeholder.shape, view.dtype, placeholder, view.buffer, view.name)
                placeholder_view = self._views[key] = whole.with_layout(view.layout)
                placeholder_view.allow_access()
        return placeholder_view

    def _placeholder(self, storage: Storage, core: int) -> PlaceholderStorage:
        placeholder = self._placeholders.get(storage.number)
        if placeholder is None:
            label = self._labels.get(storage.number)
            if label is None and storage.region is MemoryRegion.shared_hbm:
                label = ("hbm", storage.number)  # gets its name at the end of the launch
            elif label is None:
                label = ("core", core, self._cores[core].count())
            placeholder = self._placeholders[storage.number] = PlaceholderStorage(
                storage, label, has_data=label[0] == "argument"
            )
        return placeholder


class RecordedLaunch(NamedTuple):
    """A launch that was recorded.

    Attributes:
        result: the value that the kernel returned to its caller.
        stream: the instructions of the launch; None if no plan can be made of them.
        refusal: the reason why no plan can be made, if ``stream`` is None.
        error: the fault of the recorder that prevents a plan; None if the recorder had none.
        before: copies of some of the argument arrays as they were before the launch, by number.
    """

    result: Any
    stream: Stream | None
    refusal: str
    error: Exception | None
    before: dict[int, npt.NDArray[Any]]


def record_launch(
    kernel: Launchable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    arrays: Sequence[Any],
    before: dict[int, npt.NDArray[Any]] | None = None,
) -> RecordedLaunch:
    """Run a kernel instruction by instruction, and record its instructions.

    Args:
        kernel: the kernel to launch.
        args: the positional arguments of the launch.
        kwargs: the keyword arguments of the launch.
        arrays: the arrays among the arguments.
        before: copies of some of the arrays from before the launch, by number, for ``RecordedLaunch.before``.
    """
    recorder = Recorder()
    with watching(recorder):
        launched = PreparedLaunch(kernel, args, kwargs)
    numbers = {id(array): number for number, array in enumerate(arrays)}
    recorder.name_arguments(
        {storage.number: numbers[id(original)] for original, storage in launched.arrays if id(original) in numbers}
    )
    for run in launched.running:
        run.core.is_recorded = True
    has_ended = False
    try:
        with launching(kernel.__name__, [run.core for run in launched.running]):
            run_cores(launched.running)
        launched.check_loop_counts()
        has_ended = True
    finally:
        launched.conclude(has_ended)
    stream = recorder.stream(
        [run.core for run in launched.running],
        lambda convert: map_leaves(launched.running[0].result, "", lambda leaf, _: convert(leaf)),
    )
    return RecordedLaunch(launched.results(), stream, recorder.refusal, recorder.error, before or {})
