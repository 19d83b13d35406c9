# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Conversion of what goes from a kernel to the simulator and back, with the documented types on this side.

Each class that kernels get objects of is paired with the simulator's: `Held` keeps such an object out of
sight.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from nkilib.simulator.api import collectives, compiler, isa, language
from nkilib.simulator.tensors.indexed_views import DynamicSlice

_FUNCTIONS: dict[Any, Any] = {}
_ENUMERATIONS: dict[type, type[Enum]] = {}
_CLASSES: dict[type, type[Held]] = {}
_PLAIN = (bool, int, float)


class Held:
    """An object of NKI, for whose value Python has no use."""

    __slots__ = ("__held",)
    __held: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"the stand-in for NKI makes no {cls.__name__}: the functions of NKI return them")

    @classmethod
    def _hold(cls, simulated: Any) -> Any:
        made = object.__new__(cls)
        made.__held = simulated
        return made

    def held(self) -> Any:
        return self.__held

    def __repr__(self) -> str:
        return repr(self.__held)

    def __format__(self, spec: str) -> str:
        return format(self.__held, spec)


class Opaque(Held):
    """An object that a kernel only hands on: a slice of `nl.ds`, an operator that is no function."""

    __slots__ = ()


# Held.held is for this package; a kernel finds no such method.
_held = Held.held
del Held.held


def pair_function(ours: Any, simulated: Any) -> None:
    """A function that kernels hand on, as an operator."""
    _FUNCTIONS[ours] = simulated


def pair_enumeration(simulated: type, ours: type[Enum]) -> None:
    """Enumerations with the same members."""
    _ENUMERATIONS[simulated] = ours
    for member in ours:
        _FUNCTIONS[member] = simulated[member.name]  # type: ignore[index]


def pair_class(simulated: type, ours: type[Held]) -> None:
    """The class of a simulated object, and the one that a kernel sees."""
    _CLASSES[simulated] = ours


def to_simulator(value: Any) -> Any:
    """A kernel's value as the simulator takes it."""
    if isinstance(value, Held):
        return _held(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(to_simulator, value))
    if isinstance(value, dict):
        return {name: to_simulator(item) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(*map(to_simulator, (value.start, value.stop, value.step)))
    if value is None or value is ... or isinstance(value, (*_PLAIN, str, collectives.ReplicaGroup)):
        return value
    try:
        return _FUNCTIONS[value]
    except (KeyError, TypeError):
        raise TypeError(f"NKI takes no {type(value).__module__}.{type(value).__qualname__}: {value!r}") from None


def to_kernel(value: Any) -> Any:
    """A value of the simulator as a kernel gets it."""
    if type(value) in _CLASSES:
        return _CLASSES[type(value)]._hold(value)
    if type(value) in _ENUMERATIONS:
        return _ENUMERATIONS[type(value)][value.name]
    if isinstance(value, DynamicSlice):
        return Opaque._hold(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(to_kernel, value))
    if isinstance(value, str):
        return str(value)  # a data type is a string, and knows nothing else
    if value is None or isinstance(value, (*_PLAIN, range)):
        return value
    return Opaque._hold(value)


SIMULATED = {
    "nki.collectives": collectives,
    "nki.compiler": compiler,
    "nki.isa": isa,
    "nki.language": language,
}
"""The simulator's modules, by the name of ours."""
