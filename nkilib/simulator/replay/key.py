# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The key of a launch: everything that the instructions of a replayable kernel may depend on, except its arrays' data.

:func:`candidate_of` returns the key, in a :class:`Candidate`, or a :class:`Refusal` that says why a launch has none. A
kernel states that it is replayable with :func:`nkilib.nki.replayable`.

The key is made at every launch. For speed the key is flat: a sequence of hashable parts, in which each value follows
its type, and the items of a container follow its length. Objects that are compared by identity appear by ``id``. The
owner of the key also keeps weak references to these objects, so that the key does not keep a kernel and its data alive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import combinations, pairwise
from operator import attrgetter
from struct import pack
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.base import lnc
from nkilib.base.statements import is_replayable

from ..hardware.options import ALWAYS, Options, RawEnvironment
from ..isa.operators import Operator
from ..launch.arguments import as_numpy, is_array
from ..launch.settings import Launchable
from ..tensors.device_integers import DeviceInteger
from ..tensors.view import View
from ..terms.dtypes import LOW_PRECISION, DType
from ..terms.nki_object import NKIObject
from ..terms.spec import Spec

# The environment that a launch reads besides its options, here or in an instruction.
_environment = RawEnvironment((lnc.VARIABLE, lnc.FLAGS, "NKI_LNC1_SHARED_HBM", "NKI_PREFETCH_RING_SIZE"))
_values_of_options = attrgetter(*(field.name for field in fields(Options) if field.name != "replay"))

# Bits of numpy's ndarray.flags.num.
_CONTIGUOUS, _OWNER, _ALIGNED, _WRITEABLE = 0x1, 0x4, 0x100, 0x400
_FLAGS = _CONTIGUOUS | _ALIGNED | _WRITEABLE
# Up to this number of arrays each pair is compared; more arrays are sorted by address.
_FEW = 8

_LOW_PRECISION = frozenset(dtype.numpy for dtype in LOW_PRECISION)
# Types whose equal values are alike. Not float: 0.0 equals -0.0, and NaN equals nothing.
_PLAIN = frozenset({type(None), bool, int, str, bytes})
_PARAMETERS = "__dataclass_params__"
# Bit of a type's __flags__: Python code made it and can assign its attributes.
_HEAP_TYPE = 1 << 9


class Candidate(NamedTuple):
    """A launch that may be recorded or replayed.

    Attributes:
        key: a value that is equal for launches whose instructions may be the same.
        arrays: each array among the arguments once, in order of first appearance; they share the caller's memory.
        originals: the objects that the caller passed for these arrays.
        kept: the objects that the key names by ``id``, the kernel's function first; the key is valid while they live.
    """

    key: Hashable
    arrays: list[npt.NDArray[Any]]
    originals: list[Any]
    kept: list[Any]


class Refusal(NamedTuple):
    """The reason why a launch can be neither recorded nor replayed, in place of a key.

    Attributes:
        reason: the reason.
    """

    reason: str


class _Unkeyable(Exception):
    """An argument cannot be part of a key."""


def _is_constant(kind: type) -> bool:
    # Instances of a plain type of Python or a scalar type of numpy never change.
    return issubclass(kind, np.generic) or not kind.__flags__ & _HEAP_TYPE


def _check_slots(kind: type, known: Collection[str]) -> None:
    """Check that instances of the class ``kind`` have only the slots ``known``, because a key would lack any others.

    Raises:
        _Unkeyable: if they have others.
    """
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        if not {*([slots] if isinstance(slots, str) else slots)} <= {*known}:
            raise _Unkeyable(f"is a {kind.__name__}, which has slots")


class _Collected:
    """The parts of a key and the arrays of a launch, which are collected argument by argument.

    Args:
        widens: whether the launch copies arrays of low-precision types to hold them in float32.
        trusts_all: whether functions and classes may be arguments even if they are not marked as replayable.
    """

    __slots__ = ("_are_owners", "_numbers", "_trusts_all", "_widens", "arrays", "kept", "originals", "parts")

    def __init__(self, widens: bool, trusts_all: bool) -> None:
        self.parts: list[Any] = []
        self.arrays: list[npt.NDArray[Any]] = []
        self.originals: list[Any] = []
        self.kept: list[Any] = []
        self._numbers: dict[int, int] = {}  # of arrays, by id
        self._are_owners = _OWNER
        self._widens = widens
        self._trusts_all = trusts_all

    def add(self, value: Any) -> None:
        """Add an argument, or an item of a container among the arguments, to the key."""
        kind = type(value)
        if kind is np.ndarray:
            self._add_array(value)
        elif kind in _PLAIN:
            self.parts += (kind, value)
        elif kind is float:
            self._add_float(value)
        elif kind is tuple or kind is list:
            self.parts += (kind, len(value))
            for item in value:
                self.add(item)
        else:
            self._add_unusual(kind, value)

    def add_identity(self, value: Any) -> None:
        """Add an object by its ``id``, because it equals only itself.

        For a function, its code and the spec of its module are added too. The code may be replaced; and when a module
        is loaded again, names in the code refer to other functions.
        """
        self.parts += (type(value), id(value))
        self.kept.append(value)
        if type(value) is FunctionType:
            self.add_identity(value.__code__)
            self.add_identity(value.__globals__.get("__spec__"))

    def add_cells(self, cells: Iterable[CellType]) -> None:
        """Add the contents of a function's closure to the key."""
        for cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                self.parts.append(CellType)
                continue
            if type(value) in _PLAIN:
                self.parts += (type(value), value)
            else:
                self.add_identity(value)

    def may_overlap(self) -> bool:
        """Return whether two of the arrays may share bytes of memory."""
        arrays = self.arrays
        if len(arrays) < 2 or self._are_owners:
            return False
        if len(arrays) <= _FEW:
            return any(np.may_share_memory(first, second) for first, second in combinations(arrays, 2))
        ordered = sorted(arrays, key=lambda array: array.__array_interface__["data"][0])
        return any(np.may_share_memory(first, second) for first, second in pairwise(ordered))

    def _add_array(self, value: Any) -> None:
        known = self._numbers.get(id(value))
        if known is not None:
            self.parts += (type(value), known)
            return
        array: npt.NDArray[Any] = value
        if type(value) is not np.ndarray:
            array = self._converted(value)
        flags, dtype = array.flags.num, array.dtype
        if not flags & _CONTIGUOUS:
            raise _Unkeyable("is an array that is not C-contiguous")
        if not dtype.isnative or dtype.hasobject:
            raise _Unkeyable(f"is an array of {dtype}, not in the machine's byte order")
        if self._widens and dtype in _LOW_PRECISION:
            raise _Unkeyable(f"is an array of {dtype}, which NKI_PRECISE_FP=0 copies")
        if not array.size:
            raise _Unkeyable("is an array without elements")
        self._numbers[id(value)] = len(self.arrays)
        self.arrays.append(array)
        self.originals.append(value)
        self._are_owners &= flags
        self.parts += (type(value), array.shape, dtype, flags & _FLAGS)

    def _converted(self, value: Any) -> npt.NDArray[Any]:
        if isinstance(value, np.ndarray):
            return np.asarray(value)
        try:
            array = as_numpy(value, "an argument")
        except Exception as error:  # PyTorch's, too: the unplanned launch reports it with the argument's name
            raise _Unkeyable(f"is no tensor that numpy can share: {error}") from None
        self.parts += (value.dtype, value.requires_grad)
        return array

    def _add_float(self, value: float) -> None:
        # By its bits where equality is too weak (0.0 and -0.0) or too strong (NaN).
        self.parts += (float, value if value and value == value else pack("d", value))

    def _add_unusual(self, kind: type, value: Any) -> None:
        # The order of the types is that of ``map_leaves`` and of the kernel.
        if is_array(value):
            self._add_array(value)
        elif isinstance(value, tuple | list):
            self._add_sequence(kind, value, self.add)
        elif isinstance(value, dict):
            self._add_mapping(kind, value, self.add)
        elif isinstance(value, View | DeviceInteger):
            raise _Unkeyable(f"is a {kind.__name__}, which belongs to another launch")
        elif isinstance(value, NKIObject):
            self._add_object(kind, value)
        else:
            self._add_leaf(kind, value)

    def _add_sequence(self, kind: type, value: Iterable[Any], add: Callable[[Any], None]) -> None:
        items = [*value]
        self.parts += (kind, len(items))
        for item in items:
            add(item)

    def _add_mapping(self, kind: type, value: Mapping[Any, Any], add: Callable[[Any], None]) -> None:
        self.parts += (kind, len(value))
        for key, item in value.items():
            self._add_constant(key)
            add(item)

    def _add_object(self, kind: type, value: NKIObject) -> None:
        _check_slots(kind, {"__dict__"})
        self._add_mapping(kind, vars(value), self.add)

    def _add_constant(self, value: Any) -> None:
        # A value that a launch passes to the kernel as it is, without converting arrays.
        kind = type(value)
        if kind in _PLAIN:
            self.parts += (kind, value)
        elif kind is float:
            self._add_float(value)
        elif isinstance(value, tuple | list) and not isinstance(value, NKIObject):
            self._add_sequence(kind, value, self._add_constant)
        elif isinstance(value, dict):
            self._add_mapping(kind, value, self._add_constant)
        else:
            self._add_leaf(kind, value)

    def _add_leaf(self, kind: type, value: Any) -> None:
        if isinstance(value, np.generic):
            self.parts += (kind, value.dtype, value.tobytes())
        elif isinstance(value, Enum):
            self.parts += (kind, value.name if value.name is not None else value.value)
        elif kind is DType:
            self.parts += (kind, str(value))
        elif kind is complex:
            self.parts += (kind, pack("dd", value.real, value.imag))
        elif isinstance(value, np.dtype) or (isinstance(value, type) and _is_constant(value)):
            self.parts += (kind, value)
        elif isinstance(value, np.ufunc | Operator):
            self.add_identity(value)
        elif isinstance(value, FunctionType | BuiltinFunctionType | type):
            self._add_code(value)
        elif isinstance(value, Spec):
            raise _Unkeyable("is a spec: shapes only")
        elif is_dataclass(value) and getattr(kind, _PARAMETERS).frozen:
            # Besides the fields an instance has what its __post_init__ sets.
            names = [*dict.fromkeys([*(field.name for field in fields(value)), *getattr(value, "__dict__", ())])]
            _check_slots(kind, {*names, "__dict__", "__weakref__"})
            self._add_mapping(kind, {name: getattr(value, name) for name in names}, self._add_constant)
        else:
            raise _Unkeyable(f"holds a {kind.__module__}.{kind.__qualname__}, which has no value to compare")

    def _add_code(self, value: Callable[..., Any]) -> None:
        # It must be marked as replayable, because values that its code reads may change.
        if not self._trusts_all and not is_replayable(value):
            raise _Unkeyable(f"holds {value.__qualname__}, which does not state that it is nkilib.nki.replayable")
        self.add_identity(value)


def _argument(func: FunctionType, place: int | str | None) -> str:
    # The name of an argument in the reason of a refusal; ``place`` is None for the kernel's closure.
    if place is None:
        return "the kernel's closure"
    names = func.__code__.co_varnames[: func.__code__.co_argcount]
    return f"argument {names[place]!r}" if isinstance(place, int) and place < len(names) else f"argument {place!r}"


def candidate_of(
    kernel: Launchable, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Candidate | Refusal:
    """Return the key of a launch and its arrays, or the reason why it has none.

    Args:
        kernel: the kernel that is launched.
        options: the options in force.
        args: the positional arguments of the launch.
        kwargs: the keyword arguments of the launch.
    """
    func = kernel.func
    if type(func) is not FunctionType:
        return Refusal(f"the kernel is a {type(func).__name__}, not a Python function")
    collected = _Collected(not options.precise_fp, options.replay == ALWAYS)
    collected.add_identity(func)
    collected.parts += (kernel.cores, kernel.schedule, kernel.settings, _values_of_options(options), _environment())
    place: Any = None
    try:
        if func.__closure__ is not None:
            collected.add_cells(func.__closure__)
        for place, value in (*enumerate(args), *kwargs.items()):
            collected.parts.append(place)
            collected.add(value)
    except _Unkeyable as error:
        return Refusal(f"{_argument(func, place)} {error}")
    except RecursionError:
        return Refusal(f"{_argument(func, place)} is nested too deeply")
    if collected.may_overlap():
        return Refusal("arrays among the arguments overlap in memory")
    return Candidate(tuple(collected.parts), collected.arrays, collected.originals, collected.kept)
