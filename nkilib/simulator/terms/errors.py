# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The errors that the simulator raises, and the functions that add the line of the user's kernel to their messages.

- :class:`NkiValidationError` and its subclasses: a kernel broke a rule; :class:`SimulatorWarning`: the warning that
  replaces the error if an option asks for it;
- :func:`kernel_frame`, :func:`kernel_location`, :func:`last_line`, :func:`is_library`: find the line of the kernel;
- :func:`add_location`, :func:`add_function`, :func:`add_core`, :func:`add_location_of_traceback`: change a message.

*The user's code* is all code outside the simulator, numpy and the standard library.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import TypeVar

# The package whose frames are no user's kernel, by the name under which everybody imports it.
_SIMULATOR = "nkilib.simulator"
# Other packages whose frames are none: a kernel that calls them is meant, not they.
_LIBRARIES = (_SIMULATOR, "numpy")
# The directory of the standard library, and those in it that hold installed packages.
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
# Code without a file that belongs to the standard library, and to numpy before 1.25.
_WITHOUT_FILE = ("<frozen ", "<__array_function__ internals>")

Class = TypeVar("Class", bound=type)


def _public(error: Class) -> Class:
    # Python shows the module of an exception class in tracebacks: show the one from which users import it.
    error.__module__ = _SIMULATOR
    return error


@_public
class NkiValidationError(Exception):
    """The base of all errors that the simulator raises about a kernel that breaks a rule of the hardware or of the
    API.

    ``nki.isa`` documents this name.

    Attributes:
        place: ``file:line`` of the kernel; empty until it is known.
        refusal: the message without the location and without the name of the ``nki.language`` function.
        core: text such as `` on core 1`` if a function of ``nki.language`` failed on one of several cores; else empty.
    """

    place = ""
    refusal = ""
    core = ""


@_public
class OutOfRangeError(NkiValidationError, IndexError):
    """An index, static or read from a tensor at run time, is outside the tensor that it indexes."""


@_public
class UninitializedReadError(NkiValidationError):
    """A register that was never set is read, or, with ``uninitialized="error"``, an element that was never written."""


@_public
class ArgumentTypeError(NkiValidationError, TypeError):
    """An argument is missing, unknown or of a wrong type, in a call inside a kernel or in a launch.

    It is also a TypeError, which Python itself raises for such a call.
    """


@_public
class MissingNameError(NkiValidationError, AttributeError):
    """A module of NKI does not have the name that a kernel uses; the message says which name to use instead."""


@_public
class RegisterTypeError(NkiValidationError, TypeError):
    """Python is asked to branch on a register or a scalar, or to compute with one; only the device knows its value."""


@_public
class TensorTypeError(NkiValidationError, TypeError):
    """Python or numpy is asked to compute with a tensor, as in ``tile * 2``."""


@_public
class GridTypeError(NkiValidationError, TypeError):
    """A shape or an index of a grid of tiles has a wrong type."""


@_public
class GridValueError(NkiValidationError, ValueError):
    """A shape or an index of a grid of tiles has an impossible value."""


@_public
class CapacityError(NkiValidationError):
    """The tensors that are live at one time do not fit SBUF or PSUM, or two tensors placed by hand overlap.

    Attributes:
        made_at: ``file:line`` that created the tensor that became live last.
    """

    def __init__(self, message: str, made_at: str = "<unknown>:0") -> None:
        super().__init__(message)
        self.made_at = made_at


@_public
class RaceError(NkiValidationError):
    """Two cores access the same elements of a shared tensor without a barrier in between, and at least one writes."""


@_public
class IdenticalWritesError(RaceError):
    """Two cores write the same values to the same elements, with ``identical_writes="error"``."""


@_public
class PsumGroupError(NkiValidationError):
    """A matmul adds to an accumulation group in PSUM after another group was started in the same bank."""


@_public
class OverlappingCopyError(NkiValidationError):
    """A copy overlaps its source, or a copy or matmul writes an element twice, with ``overlapping_copies="error"``."""


@_public
class BarrierError(NkiValidationError):
    """A core or a rank waits for another, which has ended or waits at a different operation."""


@_public
class UncomputedError(RuntimeError):
    """A program reads the values of a result, but the launch with ``skip_arithmetic`` did not compute them."""


@_public
class SimulatorWarning(UserWarning):
    """A warning in place of an error, where an option such as ``NKILIB_RACES=warn`` asks for warnings."""


class CoreAbortedError(BaseException):
    """A signal that ends a core because another core failed.

    It is not an ``Exception``, so that a kernel that catches ``Exception`` does not keep the core running.
    """


# For each file seen so far, whether it is part of the simulator or of a library that kernels call.
_KNOWN: dict[str, bool] = {}


def _is_standard(file: str) -> bool:
    return file.startswith(_STANDARD) and not file[len(_STANDARD) :].startswith(_INSTALLED)


def is_library(frame: FrameType) -> bool:
    """Return whether ``frame`` runs a function of the simulator, of numpy or of the standard library."""
    file = frame.f_code.co_filename
    name = f"{frame.f_globals.get('__name__', '')}."
    is_named = name.startswith(tuple(f"{library}." for library in _LIBRARIES))
    if file.startswith("<"):  # no file of its own: many modules share the name, dataclasses of the simulator too
        return is_named or file.startswith(_WITHOUT_FILE)
    _KNOWN[file] = is_named or _is_standard(file)
    return _KNOWN[file]


def kernel_frame() -> FrameType | None:
    """Return the innermost frame of the user's code on the stack, or None if there is none.

    This frame is at the current line of the kernel.
    """
    frame: FrameType | None = sys._getframe(1)
    known = _KNOWN
    while frame is not None:
        is_known = known.get(frame.f_code.co_filename)
        if not (is_library(frame) if is_known is None else is_known):
            return frame
        frame = frame.f_back
    return None


def kernel_location() -> str:
    """Return ``file:line`` of the kernel's current line, or ``<unknown>`` if no frame is the user's."""
    frame = kernel_frame()
    return "<unknown>" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def add_location_of_traceback(error: NkiValidationError, core: str) -> None:
    """Prefix the message of ``error`` with the kernel line from its traceback, unless the error has a location already.

    This serves errors that no instruction raises, such as errors of a view or of a function of ``nki.language``.

    Args:
        error: the error, which is changed.
        core: text that follows the location, such as the name of the core; may be empty.
    """
    if error.place:
        return
    place = last_line(error)
    error.place = place or "<unknown>"
    error.args = (f"{place}: {core}{error}" if place else f"{core}{error}",)


def add_core(error: Exception, core: str) -> None:
    """Append the core and the kernel line to the message of an exception that is not one of the simulator's.

    All cores run the same lines, so the traceback does not tell which core failed. An exception whose message is not
    one string, such as KeyError, gets a note instead (from Python 3.11 on).

    Args:
        error: the exception, which is changed.
        core: the name of the core that failed.
    """
    place = last_line(error)
    where = f"on {core}, {place}" if place else f"on {core}"
    before = error.args
    message = before[0] if len(before) == 1 else ""
    if len(before) < 2 and isinstance(message, str) and str(error) == message:
        if message.endswith(where) or message.endswith(f"{where})"):  # an object that is raised again
            return
        text = f"{message} ({where})" if message else where
        error.args = (text,)
        if str(error) == text:
            return
        error.args = before
    if hasattr(error, "add_note"):
        error.add_note(where)


def last_line(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame of the user's code in an error's traceback, or an empty string."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        if not is_library(traceback.tb_frame):
            place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def add_location(error: NkiValidationError, instruction: str) -> None:
    """Prefix the message of ``error`` with the kernel's current line and the name of the instruction.

    If ``error`` has a location already, the function does nothing.
    """
    if error.place:
        return
    error.place = kernel_location()
    error.refusal = f"{instruction}: {error}"
    error.args = (f"{error.place}: {error.refusal}",)


def add_function(error: NkiValidationError, function: str, core: str) -> None:
    """Prefix the message of ``error`` with the kernel's current line and the name of a function of ``nki.language``.

    If an instruction inside the function failed, the name of the instruction stays in the message, after the name of
    the function. If functions of ``nki.language`` call each other, the message has the name of the outermost one.

    Args:
        error: the error that the function, or an instruction inside it, raises.
        function: the name by which the kernel calls the function.
        core: the name of the core if several run, else empty; ignored if the message names the core already.
    """
    if not error.place:
        error.place = kernel_location()
        error.refusal = str(error)
        error.core = f" on {core}" if core else ""
    error.args = (f"{error.place}: {function}{error.core}: {error.refusal}",)
