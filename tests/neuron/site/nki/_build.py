# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Makes the names of a module out of what is documented of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

from nkilib.simulator.api import isa

from . import _objects
from ._boundary import SIMULATED, pair_enumeration, pair_function, to_kernel, to_simulator
from ._documented import API, bind, signature

_ABSENT = "{} is documented, and the simulator does not have it"


def names_of(module: str) -> dict[str, Any]:
    """Everything that `nki.isa` or another module documents, by name."""
    # Enumerations first: constants are of their types.
    documented = sorted(API[module].items(), key=lambda item: "members" not in item[1])
    return {name: _make(module, name, what) for name, what in documented if not name.startswith("_")}


def _make(module: str, name: str, documented: dict[str, Any]) -> Any:
    if "members" in documented:
        return _enumeration(module, name, documented["members"])
    if "parameters" in documented:
        special = _SPECIAL.get(name)
        return special(module, name) if special else _function(module, name, documented["parameters"])
    if "removed" in documented:
        return _removed(f"{module}.{name}", documented["removed"])
    if "methods" in documented:
        return _class(module, name)
    return _constant(module, name, documented["type"])


def _simulated(module: str, name: str) -> Any:
    """Return the simulator's object of a name, None if there is none. Names of older releases do not count."""
    return vars(SIMULATED[module]).get(name) if module in SIMULATED else None


def _enumeration(module: str, name: str, members: dict[str, Any]) -> type[Enum]:
    enumeration = Enum(name, members)  # type: ignore[misc]
    simulated = _simulated(module, name)
    if simulated is not None:
        pair_enumeration(simulated, enumeration)
    return enumeration


def _class(module: str, name: str) -> Any:
    if name == "NkiValidationError":
        return isa.NkiValidationError
    return getattr(_objects, name, None) or _absent(f"{module}.{name}")


def _constant(module: str, name: str, kind: str | None) -> Any:
    if name == "DType":
        return str
    if kind == "DType":
        return name.removesuffix("_")
    if kind == "_TileSize":
        return _TileSize()
    return to_kernel(_simulated(module, name))  # an operator without parameters is handed on, never called


def _function(module: str, name: str, parameters: list[list[str]]) -> Callable[..., Any]:
    what, documented = f"{module}.{name}", signature(parameters)
    simulated = _simulated(module, name)
    known = set(inspect.signature(simulated).parameters) if simulated is not None else set()

    def function(*args: Any, **kwargs: Any) -> Any:
        inputs = bind(what, documented, args, kwargs)
        if simulated is None:
            raise NotImplementedError(_ABSENT.format(what))
        for parameter in inputs.keys() - known:
            raise NotImplementedError(_ABSENT.format(f"{what}({parameter}=...)"))
        return _returned(simulated(**{parameter: to_simulator(value) for parameter, value in inputs.items()}))

    function.__name__ = function.__qualname__ = name
    function.__signature__ = documented  # type: ignore[attr-defined]
    pair_function(function, simulated)
    return function


def _returned(value: Any) -> Any:
    # nl.no_reorder gives a context manager, which is Python's.
    return value if hasattr(value, "__enter__") else to_kernel(value)


def _removed(what: str, instead: str) -> Callable[..., NoReturn]:
    def removed(*_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{what} was removed in NKI 0.7; use {instead}")

    return removed


def _absent(what: str) -> Callable[..., NoReturn]:
    def absent(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(_ABSENT.format(what))

    return absent


def _fori_loop(module: str, name: str) -> Callable[..., Any]:
    simulated = _simulated(module, name)

    def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
        simulated(to_simulator(lower), to_simulator(upper), lambda value: body_fun(to_kernel(value)), step)

    return fori_loop


def _while_loop(module: str, name: str) -> Callable[..., Any]:
    simulated = _simulated(module, name)

    def while_loop(init: Any, body_fun: Callable[[Any], Any]) -> None:
        simulated(to_simulator(init), lambda value: to_simulator(body_fun(to_kernel(value))))

    return while_loop


_SPECIAL = {"fori_loop": _fori_loop, "while_loop": _while_loop}


class _TileSize:
    """The limits of the target, by their documented names."""

    def __getattr__(self, name: str) -> int:
        if name not in API["nki.language"]["_TileSize"]["attributes"]:
            raise AttributeError(f"nl.tile_size has no documented attribute {name!r}")
        limit: int = getattr(SIMULATED["nki.language"].tile_size, name)
        return limit
