# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Stream``: the recorded instructions of a launch, without the data of its arrays.

The tensors of these instructions are views of *placeholders* (:class:`PlaceholderStorage`): storages without memory,
until a plan provides it. A stream has *entries*: calls of instructions (:class:`RecordedCall`), and loads and stores of
registers (:class:`Guarded`, :class:`Stored`). A call refers to the tensors that it reads or writes
(:class:`TouchedTensor`), and to operands whose elements an index chose in each partition (:class:`Gathered`). Views
whose rows an index chose are listed apart (:class:`Indexed`). :func:`placeholder_of` and :func:`views_in` find
placeholders and views. Streams are compared by the keys of their entries (:func:`key_of`).
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ..engines.dma_instructions import as_oob_mode
from ..hardware.options import Options
from ..isa.definition import Definition
from ..isa.indirection import Choice
from ..memory.storage import Storage
from ..memory.written import WrittenMap
from ..tensors.device_integers import NkiScalar, VirtualRegister
from ..tensors.tensor import NkiTensor
from ..tensors.view import Indirect, View
from ..terms.enums import Engine, oob_mode
from ..terms.layout import Layout
from ..terms.nki_object import NKIObject
from ..terms.spec import DataNeeded

Bytes = npt.NDArray[np.uint8]
# The role of a storage in its launch: its kind and its number.
Label = tuple[Any, ...]
Elements = npt.NDArray[Any]

_NOTHING = np.empty(0, np.uint8)
# Types of parameters that hold no tensor; most are of one of these.
_PLAIN = frozenset({bool, int, float, str, type(...)})
# Instructions at which the cores of a launch on two cores wait for each other.
_MEETINGS = frozenset({"core_barrier", "sendrecv", "sendrecv_compute"})
_OOB_MODE = "oob_mode"


class PlaceholderStorage(Storage):
    """A storage that has the properties of a recorded launch's storage, but not its elements.

    While it has no memory, instructions that read or write elements raise ``DataNeeded``.

    Args:
        original: the storage of the recorded launch.
        label: the role of the storage in its launch, equal in every launch of the same kernel on the same shapes.
        has_data: whether its elements have values when the launch begins.
    """

    __slots__ = ("_has_memory", "label")

    def __init__(self, original: Storage, label: Label, *, has_data: bool) -> None:
        super().__init__(
            *(original.shape, original.dtype, original.region, original.name),
            precise_fp=not original.is_widened,
            data=_NOTHING,
            address=original.address,
        )
        self.label = label
        self._has_memory = False
        self.is_read_only = original.is_read_only
        self.written = self._make_map(has_data)
        self._accumulated = self._make_map(False)

    @property
    def has_data(self) -> bool:
        """Whether its elements have values when the launch begins."""
        return self.label[0] in ("argument", "constant")

    def memory(self, layout: Layout, numpy_type: np.dtype[Any]) -> npt.NDArray[Any]:
        if not self._has_memory:
            self._refuse()
        return super().memory(layout, numpy_type)

    def _refuse(self) -> NoReturn:
        raise DataNeeded(f"a recorded tensor {self.label}")

    def give(self, memory: Bytes) -> None:
        """Use ``memory`` for the elements, from now on."""
        self._bytes = memory
        self._has_memory = True

    def take_away(self) -> None:
        """Detach the memory."""
        self._bytes = _NOTHING
        self._has_memory = False

    def forget_writes(self) -> None:
        """Mark the elements as they are when a launch begins: written if :attr:`has_data`, else unwritten."""
        self.written = self._make_map(self.has_data)
        self._accumulated = self._make_map(False)

    def count_as_written(self) -> None:
        """Mark all elements as written.

        The recorded launch read no unwritten elements, and replays read the same elements.
        """
        self.written = WrittenMap(self.nbytes, self.numpy_dtype.itemsize, True)


def placeholder_of(view: View) -> PlaceholderStorage:
    """Return the placeholder whose elements a view of a recorded launch selects.

    Raises:
        TypeError: if the view belongs to another storage.
    """
    storage = view.storage
    if not isinstance(storage, PlaceholderStorage):
        raise TypeError(f"{view!r} is no tensor of a recorded launch")
    return storage


def _key_of(indirect: Indirect) -> Hashable:
    base = None if indirect.base is None else key_of(indirect.base)
    static = indirect.kind, indirect.stride, indirect.limit, indirect.dim, indirect.count
    return *static, key_of(indirect.index), base


def key_of(value: Any) -> Hashable:
    """Return a hashable key of a parameter of an instruction; values with the same effect have equal keys."""
    if isinstance(value, View):
        indirect = value.indirect_access
        return placeholder_of(value).label, value.layout, value.dtype, None if indirect is None else _key_of(indirect)
    if isinstance(value, float):
        return "float", struct.pack("d", value)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(key_of, value))
    if isinstance(value, dict):
        return "dict", tuple((key_of(key), key_of(item)) for key, item in value.items())
    if isinstance(value, np.ndarray | np.generic):
        return "array", value.dtype, value.shape, value.tobytes()
    if isinstance(value, VirtualRegister | NkiScalar):
        return type(value), repr(value)
    if isinstance(value, Enum):
        return type(value), value._name_
    return type(value), value


@dataclass(frozen=True)
class Guarded:
    """Elements from which a register, a scalar or an address was loaded.

    A plan is valid only for launches in which these elements have the same values.

    Attributes:
        view: the tensor.
        content: the bytes of its elements in the recorded launch.
    """

    view: NkiTensor
    content: bytes

    @property
    def key(self) -> Hashable:
        return "guard", key_of(self.view), self.content


@dataclass(frozen=True)
class Stored:
    """Elements to which a register or a scalar was stored.

    The value is known from the recorded launch, because all loads before are guarded (:class:`Guarded`).

    Attributes:
        view: the tensor.
        content: the bytes that were stored in it.
    """

    view: NkiTensor
    content: bytes

    @property
    def key(self) -> Hashable:
        return "stored", key_of(self.view), self.content


@dataclass(frozen=True)
class Gathered:
    """An operand that was passed as a view of ``NkiTensor.indirect``; see isa/indirection.py.

    Attributes:
        base: the tensor whose free elements are chosen, one row per partition.
        index: the tensor with the offsets of the chosen elements.
        choice: the way in which the offsets choose elements.
        elements: the tensor on which the instruction works instead of the operand.
        is_output: whether the elements are scattered back to ``base`` afterwards.
    """

    base: NkiTensor
    index: NkiTensor
    choice: Choice
    elements: NkiTensor
    is_output: bool

    @property
    def key(self) -> Hashable:
        views = tuple(map(key_of, (self.base, self.index, self.elements)))
        return views, self.choice, self.is_output

    def gather(self, into: Elements, base: Elements, index: Elements) -> None:
        """Copy the elements of ``base`` that ``index`` chooses to ``into``, an array like :attr:`elements`."""
        into[...] = np.take_along_axis(base, self.choice.of(index), 1)

    def scatter(self, base: Elements, elements: Elements, index: Elements) -> None:
        """Copy ``elements`` to the positions in ``base`` that ``index`` chooses.

        If ``index`` chooses a position more than once, its last element stays.
        """
        np.put_along_axis(base, self.choice.of(index), elements, 1)


class TouchedTensor(NamedTuple):
    """A tensor that an instruction reads or writes.

    Attributes:
        view: the view of the tensor.
        is_written: whether the instruction may write it.
    """

    view: View
    is_written: bool


def views_in(value: Any) -> list[View]:
    """Return all tensors in the value of a parameter, nested ones included."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, tuple | list):
        return [view for item in value for view in views_in(item)]
    if isinstance(value, dict):
        return [view for item in value.values() for view in views_in(item)]
    if isinstance(value, NKIObject):
        return [view for item in vars(value).values() for view in views_in(item)]
    return []


@dataclass(frozen=True)
class RecordedCall:
    """A call of an instruction.

    Attributes:
        definition: the instruction.
        values: its parameters without ``name=``, resolved; tensors are views of placeholders.
        engine: the engine that ran it.
        indirect: the operands that were passed as views of ``NkiTensor.indirect``.
    """

    definition: Definition
    values: tuple[Any, ...]
    engine: Engine
    indirect: tuple[Gathered, ...] = ()

    @property
    def is_collective(self) -> bool:
        """Whether the call is an operation among ranks; a recorded launch has this rank alone."""
        return self.definition.module != "nisa"

    @property
    def is_meeting(self) -> bool:
        """Whether the two cores of a launch wait for each other in this call."""
        return self.definition.name in _MEETINGS or self.is_collective

    @property
    def skips(self) -> bool:
        """Whether the instruction leaves out rows whose index is out of range, instead of raising an error."""
        names = self.definition.names
        return _OOB_MODE in names and as_oob_mode(self.values[names.index(_OOB_MODE)]) is oob_mode.skip

    @property
    def written(self) -> list[View]:
        """The outputs that the instruction certainly writes in full; empty for a collective operation."""
        if self.is_collective or self.skips:
            return []
        outputs = [self.values[place] for rule, place in self.definition.outputs if not rule.may_leave]
        return [view for view in outputs if view is not None and view.indirect_access is None]

    @cached_property
    def tensors(self) -> list[TouchedTensor]:
        """All tensors among the parameters, each with whether it is written."""
        outputs = self.definition.output_names
        touched = []
        for name, value in zip(self.definition.names, self.values, strict=False):
            if value is not None and type(value) not in _PLAIN:
                is_written = name in outputs or self.is_collective
                touched += [TouchedTensor(view, is_written) for view in views_in(value)]
        return touched

    @property
    def key(self) -> Hashable:
        indirect = tuple(gathered.key for gathered in self.indirect)
        return self.definition.label, self.engine._name_, tuple(map(key_of, self.values)), indirect


Entry = RecordedCall | Guarded | Stored


@dataclass(frozen=True, eq=False)
class Indexed:
    """A view whose rows an index tensor chose, and the values of the index in the recorded launch.

    Attributes:
        view: the view, with its ``indirect_access``.
        index: the values of the index.
    """

    view: NkiTensor
    index: npt.NDArray[Any]


@dataclass
class Stream:
    """The recorded instructions of a launch.

    Attributes:
        options: the options of the launch.
        grid_dimensions: the number of dimensions of its grid.
        cores: the entries of each core, in the order in which they ran.
        result: the value that the kernel returned; tensors are views of placeholders.
        contents: the bytes of the constants of the kernel, by storage.
        indexed: by core, the views in shared HBM whose rows an index chose. The index may differ in launches with equal
            streams.
    """

    options: Options
    grid_dimensions: int
    cores: list[list[Entry]]
    result: Any
    contents: dict[PlaceholderStorage, npt.NDArray[np.uint8]] = field(default_factory=dict)
    indexed: list[list[Indexed]] = field(default_factory=list)

    @property
    def written(self) -> frozenset[int]:
        """The numbers of the argument arrays that the launch writes, as in the labels of their storages."""
        return frozenset(storage.label[1] for storage in self._written_storages() if storage.label[0] == "argument")

    def _written_storages(self) -> Iterator[PlaceholderStorage]:
        for entry in [entry for entries in self.cores for entry in entries]:
            if isinstance(entry, RecordedCall):
                yield from (placeholder_of(touched.view) for touched in entry.tensors if touched.is_written)
            elif isinstance(entry, Stored):
                yield placeholder_of(entry.view)

    def differs_from(self, other: Stream) -> str:
        """Return a text that says how the instructions of ``other`` differ; empty if they are the same."""
        if len(self.cores) != len(other.cores):
            return "another number of cores"
        for number, (mine, others) in enumerate(zip(self.cores, other.cores, strict=True)):
            if len(mine) != len(others):
                return f"core {number} ran {len(mine)} and {len(others)} instructions"
            for place, (my_entry, their_entry) in enumerate(zip(mine, others, strict=True)):
                if my_entry.key != their_entry.key:
                    return f"instruction {place} of core {number} is another one or has other operands"
        if key_of(self.result) != key_of(other.result):
            return "the kernel returned something else"
        contents = [
            {storage.label: content.tobytes() for storage, content in stream.contents.items()}
            for stream in (self, other)
        ]
        return "" if contents[0] == contents[1] else "a constant of the kernel has other elements"
