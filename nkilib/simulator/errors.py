"""The errors that the simulator raises, and where in the user's kernel they came from."""

from __future__ import annotations

import os
import sys

_PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep


class NkiValidationError(Exception):
    """A rule of the hardware or of the documented API is violated.

    The name is the one that ``nki.isa`` documents. Every error that the simulator raises on a kernel's behalf is
    of this class or of a subclass, except plain Python errors such as a wrong number of arguments.
    """


class OutOfRangeError(NkiValidationError, IndexError):
    """An index, static or read from a tensor at run time, leaves the tensor that it indexes."""


class UninitializedReadError(NkiValidationError):
    """An element is read that was never written (only with ``uninitialized="error"``)."""


class BarrierError(NkiValidationError):
    """A core waits at a barrier that the other core cannot reach any more."""


class CoreAbortedError(BaseException):
    """Ends a core because the other one failed.

    Not an ``Exception``: a kernel that catches ``Exception`` must not keep a core alive whose partner is gone.
    """


def kernel_location() -> str:
    """``file:line`` of the innermost frame outside the simulator, which is the line of the user's kernel."""
    frame = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE_DIRECTORY):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "<unknown>"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def add_location_of_traceback(error: NkiValidationError, core: str) -> None:
    """Put the kernel line that ``error`` came through in front of its message, unless an instruction has done so.

    For errors that no instruction raises: of a view, or of a function of the language.
    """
    if getattr(error, "is_located", False):
        return
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not os.path.abspath(code.co_filename).startswith(_PACKAGE_DIRECTORY):
            place = f"{code.co_filename}:{traceback.tb_lineno}: "
        traceback = traceback.tb_next
    error.is_located = True  # type: ignore[attr-defined]
    error.args = (f"{place}{core}{error}",)


def add_location(error: NkiValidationError, what: str) -> None:
    """Put kernel location and instruction in front of ``error``'s message, once."""
    if getattr(error, "is_located", False):
        return
    error.is_located = True  # type: ignore[attr-defined]
    error.args = (f"{kernel_location()}: {what}: {error}",)
