# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Values that a plan may rely on: those that a program defines once, not those that differ from call to call."""

from __future__ import annotations

import os
import sys
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

from .errors import Unplannable

_ENVIRONMENT = (os.environ, getattr(os, "environb", None), os.getenv, os.urandom)
_STREAMS = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
# The effect of code that uses something of these modules, as a reason.
_UNSTEADY = {
    "random": "reads random numbers",
    "_random": "reads random numbers",
    "secrets": "reads random numbers",
    "numpy.random": "reads random numbers",
    "uuid": "reads random numbers",
    "time": "reads a clock",
    "datetime": "reads a clock",
    "logging": "writes to a log",
    "warnings": "may warn",
    "_warnings": "may warn",
}
# Packages whose classes and objects are compared by identity alone; of the standard library only the classes are.
_LIBRARIES = frozenset({"numpy", "ml_dtypes", "torch", "jax"})
_SIMULATOR = "nkilib.simulator."
_BOUND = (BuiltinFunctionType, BuiltinMethodType, MethodType)


def check_steady(value: Any) -> None:
    """Check that a value that code reads is no source that differs from call to call, and has no effect outside.

    Sources are random generators, clocks and the environment; effects are those of streams, logs and warnings.

    Raises:
        Unplannable: if it is such a source or has such an effect; the message says which.
    """
    if any(value is unsteady for unsteady in _ENVIRONMENT):
        raise Unplannable("its code reads the environment")
    if any(value is unsteady for unsteady in _STREAMS):
        raise Unplannable("its code uses a stream")
    origin = _origin_of(value)
    for name, why in _UNSTEADY.items():
        if origin == name or origin.startswith(f"{name}."):
            raise Unplannable(f"its code {why}")


def _origin_of(value: Any) -> str:
    """Return the module of a value: itself, the module of its class, or that of the owner of a method."""
    home = value.__self__ if isinstance(value, _BOUND) else value
    if isinstance(home, ModuleType):
        return home.__name__
    if home is None or not isinstance(home, type | FunctionType):
        home = type(home)
    origin = getattr(home, "__module__", "")
    return origin if isinstance(origin, str) else ""


def is_settled(kind: type) -> bool:
    """Tell whether a class comes from NKI, a library or the standard library: the program does not change it then."""
    return is_opaque(kind) or _origin_of(kind).partition(".")[0] in sys.stdlib_module_names


def is_opaque(kind: type) -> bool:
    """Tell whether a class comes from NKI or a library: the program changes nothing in its objects that code reads."""
    origin = _origin_of(kind)
    return origin.startswith(_SIMULATOR) or origin.partition(".")[0] in _LIBRARIES
