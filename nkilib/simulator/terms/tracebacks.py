# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tracebacks of errors that leave a launch: they show the frames of the user's code, without those of the simulator.

- :func:`shortened`: removes the simulator's frames from an error's traceback;
- :func:`is_fault`: whether an error is a fault of the simulator;
- :func:`misuse_of`: the error to raise instead, where a wrong call or a float instead of an integer is the cause.
"""

from __future__ import annotations

import os
from types import FrameType, TracebackType

from .argument_checks import wrong_value
from .calls import PUBLIC_NAMES, with_hint, wrong_call_in
from .errors import ArgumentTypeError, NkiValidationError, UncomputedError, is_library

# The environment variable that shows all frames, and the value that it must have.
VARIABLE = "NKILIB_TRACEBACK"
FULL = "full"

_DIRECTORY = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PACKAGE = __name__.rpartition(".terms")[0]
# Exceptions that the simulator raises to tell the user something. Another one that arises in its code is a fault there.
_MEANT = (NkiValidationError, NotImplementedError, UncomputedError, Warning, MemoryError, RecursionError, OSError)


def _is_simulators(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<"):  # code that a dataclass makes, for instance
        return f"{frame.f_globals.get('__name__', '')}.".startswith(f"{_PACKAGE}.")
    return file.startswith(_DIRECTORY)


def _are_users(entries: list[TracebackType], is_inside: bool) -> list[bool]:
    """Return, for each entry of a traceback, whether it belongs to the user's code.

    Entries of the simulator, and of libraries that the simulator has called, do not belong to the user's code.

    Args:
        entries: the entries of a traceback, the outermost one first.
        is_inside: whether the simulator has called the code of the first entry.
    """
    are_users = []
    for entry in entries:
        is_inside = _is_simulators(entry.tb_frame) or (is_inside and is_library(entry.tb_frame))
        are_users.append(not is_inside)
    return are_users


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _is_internal(error: BaseException) -> bool:
    # Such an exception was raised and caught within the simulator.
    return not any(_are_users(_entries(error.__traceback__), False))


def _shorten(error: BaseException, is_whole: bool) -> None:
    while error.__context__ is not None and _is_internal(error.__context__):
        error.__context__ = error.__context__.__context__
    if is_fault(error):
        return
    kept = None
    entries = _entries(error.__traceback__)
    for entry, is_users in reversed([*zip(entries, _are_users(entries, is_whole), strict=True)]):
        if is_users:
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = kept


def shortened(error: Exception, *, is_whole: bool = False) -> Exception:
    """Remove the simulator's frames from the traceback of ``error`` and of the exceptions chained to it; return
    ``error``.

    The traceback of a fault of the simulator (:func:`is_fault`) stays as it is. With ``NKILIB_TRACEBACK=full`` all
    tracebacks stay as they are.

    Args:
        error: the exception, which is changed.
        is_whole: whether the traceback starts at the first frame of the process, where the frames that run a module
            precede those of the user.
    """
    if os.environ.get(VARIABLE) != FULL:
        seen: set[int] = set()
        chain: list[BaseException | None] = [error]
        while chain:
            item = chain.pop()
            if item is not None and id(item) not in seen:
                seen.add(id(item))
                _shorten(item, is_whole and item is error)
                chain += [item.__cause__, item.__context__]
    return error


def is_fault(error: BaseException) -> bool:
    """Return whether code of the simulator raised ``error``, and ``error`` is none of the simulator's own errors."""
    if isinstance(error, _MEANT):
        return False
    entries = _entries(error.__traceback__)
    return bool(entries) and not _are_users(entries, False)[-1]


def misuse_of(error: Exception) -> ArgumentTypeError | None:
    """Return the error for an exception that a wrong call of a function or method of NKI has caused, or an operation of
    Python on a float instead of an integer; None for other exceptions.

    This serves functions that do not check their arguments: Python itself rejects the arguments, or an argument that is
    no value of NKI fails somewhere inside the function. The returned error has the traceback of ``error``.
    """
    entries = _entries(error.__traceback__)
    users = [place for place, is_users in enumerate(_are_users(entries, False)) if is_users]
    if not users:
        return None
    inner = entries[users[-1] + 1 :]
    if inner:
        code, values = inner[0].tb_frame.f_code, inner[0].tb_frame.f_locals
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        wrong = wrong_value(PUBLIC_NAMES.label_of(code), {name: values[name] for name in names if name in values})
        if wrong is not None:
            wrong.__cause__ = error
    else:
        wrong = wrong_call_in(entries[users[-1]].tb_frame, error) or with_hint(error)
        if wrong is not None:
            wrong.__suppress_context__ = True
    return None if wrong is None else wrong.with_traceback(error.__traceback__)
