# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The Python code that a kernel runs, and what that code reads besides its arguments and locals.

A plan is valid as long as the code is the recorded one. The functions that ran are watched. What they read is found by
their names and compared by identity before each replay: globals, attributes of the modules, classes and objects that
these are, closures, defaults, and the items of short lists, dictionaries and sets. Changes deeper in an object are not
noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any

import ml_dtypes
import numpy as np

from .errors import Unplannable
from .reads import Reads
from .snapshot import Snapshot


def _directory(file: str | None) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(file or "")), "")


# Code of libraries that no program replaces: its names are not examined.
_SIMULATOR = _directory(os.path.dirname(__file__))
_FOREIGN = (_SIMULATOR, _directory(np.__file__), _directory(ml_dtypes.__file__), "<frozen ")
_STANDARD = _directory(os.__file__)
# Directories of installed packages, in or beside the directory of the standard library.
_INSTALLED = tuple(os.path.join(os.sep, name, "") for name in ("site-packages", "dist-packages"))
# Names of a first parameter whose type is the class of a method.
_RECEIVERS = ("self", "cls")


@dataclass(frozen=True)
class Ran:
    """A piece of code that ran.

    Attributes:
        code: the code object.
        scope: the globals of its module.
        owner: the class of the object that it ran for; None for a plain function.
    """

    code: CodeType
    scope: dict[str, Any]
    owner: type | None


@dataclass
class CodeWatch:
    """A watch that notes the Python code that runs in the threads inside :meth:`here`, for all cores of a launch.

    Attributes:
        is_on: whether it watches; else :meth:`here` does nothing.
    """

    is_on: bool = True
    _ran: dict[int, Ran] = field(default_factory=dict)  # by the id of the code

    @contextmanager
    def here(self) -> Iterator[None]:
        """Watch the calling thread; the trace function of a debugger that starts meanwhile stays in place."""
        if not self.is_on:
            yield
            return
        ran = self._ran

        def watch(frame: FrameType, event: str, argument: Any) -> None:
            # A code object's hash covers all it holds; its id is at hand, and no other has it while the code is kept.
            if id(frame.f_code) not in ran:
                ran[id(frame.f_code)] = _seen(frame)

        before = sys.gettrace()
        sys.settrace(watch)
        try:
            yield
        finally:
            if sys.gettrace() is watch:
                sys.settrace(before)

    def snapshot(self, functions: Sequence[FunctionType]) -> Snapshot:
        """Return the present values of everything that the code that ran has read.

        Args:
            functions: the kernel's function and the functions among its arguments; the snapshot does not keep them
                alive.

        Raises:
            Unplannable: if the code reads something that cannot be compared: the environment, a clock, a file.
        """
        watched = [ran for ran in self._ran.values() if _is_watched(ran.code.co_filename)]
        reads = Reads(
            names={name for ran in watched for name in ran.code.co_names}, codes={id(ran.code) for ran in watched}
        )
        for ran in self._ran.values():
            if ran.code.co_filename.startswith(_SIMULATOR) and "print" in ran.code.co_names:
                raise Unplannable("it prints")
        for function in functions:
            reads.add_root(function)
        for ran in watched:
            reads.add_code(ran.code, ran.scope)
            if ran.owner is not None:
                reads.add(ran.owner)
        return reads.snapshot()


def _seen(frame: FrameType) -> Ran:
    code = frame.f_code
    owner: type | None = None
    if code.co_argcount and code.co_varnames[0] in _RECEIVERS and _is_watched(code.co_filename):
        variables: Mapping[str, Any] = frame.f_locals
        receiver = variables.get(code.co_varnames[0])
        owner = receiver if isinstance(receiver, type) else type(receiver)
    return Ran(code, frame.f_globals, owner)


def _is_watched(file: str) -> bool:
    """Tell whether code of a file may change or read something that changes: kernels and the modules they import."""
    if file.startswith(_FOREIGN):
        return False
    return not file.startswith(_STANDARD) or any(directory in file for directory in _INSTALLED)
