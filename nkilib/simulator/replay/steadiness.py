# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a plan may rely on: what gives another answer at every call is told from what a program defines once."""

from __future__ import annotations

import os
import sys
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

from .errors import Unplannable

_ENVIRONMENT = (os.environ, getattr(os, "environb", None), os.getenv, os.urandom)
_STREAMS = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
# What code does that uses something of these modules.
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
    """Refuse what differs from call to call, and what is seen outside.

    Raises:
        Unplannable: saying what it is.
    """
    if any(value is each for each in _ENVIRONMENT):
        raise Unplannable("its code reads the environment")
    if any(value is each for each in _STREAMS):
        raise Unplannable("its code uses a stream")
    origin = _origin_of(value)
    for name, why in _UNSTEADY.items():
        if origin == name or origin.startswith(f"{name}."):
            raise Unplannable(f"its code {why}")


def _origin_of(value: Any) -> str:
    """The module that something comes from: itself, that of its class, or that of what a method belongs to."""
    home = value.__self__ if isinstance(value, _BOUND) else value
    if isinstance(home, ModuleType):
        return home.__name__
    if home is None or not isinstance(home, type | FunctionType):
        home = type(home)
    origin = getattr(home, "__module__", "")
    return origin if isinstance(origin, str) else ""


def is_settled(kind: type) -> bool:
    """Whether a class is none of a program's own, so that nobody changes it."""
    return is_opaque(kind) or _origin_of(kind).partition(".")[0] in sys.stdlib_module_names


def is_opaque(kind: type) -> bool:
    """Whether a program changes nothing in objects of a class that code reads: those of NKI, and of libraries."""
    origin = _origin_of(kind)
    return origin.startswith(_SIMULATOR) or origin.partition(".")[0] in _LIBRARIES
