"""The errors that the simulator raises, and where in the user's kernel they came from."""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType

_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class NkiValidationError(Exception):
    """A rule of the hardware or of the documented API is violated.

    The name is the one that ``nki.isa`` documents. Every error that the simulator raises on a kernel's behalf is
    of this class or of a subclass, except plain Python errors such as a wrong number of arguments.

    Attributes:
        place: ``file:line`` of the kernel, once it is known.
        refusal: the message behind the place and the function of ``nki.language``.
        core: `` on core 1`` where a function of ``nki.language`` refused on one of two cores.
    """

    place = ""
    refusal = ""
    core = ""


class OutOfRangeError(NkiValidationError, IndexError):
    """An index, static or read from a tensor at run time, leaves the tensor that it indexes."""


class UninitializedReadError(NkiValidationError):
    """A register is read that was never set, or, with ``uninitialized="error"``, an element that was never written."""


class RegisterTypeError(NkiValidationError, TypeError):
    """Python is asked to compute with a register, whose value only the device knows."""


class CapacityError(NkiValidationError):
    """The tensors that are live at one time do not fit SBUF or PSUM, or two placed by hand overlap."""


class RaceError(NkiValidationError):
    """Two cores access the same elements of a shared tensor, one of them writing, without a barrier in between."""


class BarrierError(NkiValidationError):
    """A core waits at a barrier that the other core cannot reach any more."""


class CoreAbortedError(BaseException):
    """Ends a core because the other one failed.

    Not an ``Exception``: a kernel that catches ``Exception`` must not keep a core alive whose partner is gone.
    """


@functools.cache
def _is_simulator(filename: str) -> bool:
    return os.path.abspath(filename).startswith(_PACKAGE_DIRECTORY)


def kernel_frame(above: int = 1) -> FrameType | None:
    """The innermost frame outside the simulator, which is at the line of the user's kernel.

    Args:
        above: how many frames above this one to begin; the caller knows those in between to be the simulator's.
    """
    frame: FrameType | None = sys._getframe(above)
    while frame is not None and _is_simulator(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def kernel_location() -> str:
    """``file:line`` of :func:`kernel_frame`."""
    frame = kernel_frame()
    return "<unknown>" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def add_location_of_traceback(error: NkiValidationError, core: str) -> None:
    """Put the kernel line that ``error`` came through in front of its message, unless an instruction has done so.

    For errors that no instruction raises: of a view, or of a function of the language.
    """
    if error.place:
        return
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not _is_simulator(code.co_filename):
            place = f"{code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    error.place = place or "<unknown>"
    error.args = (f"{place}: {core}{error}" if place else f"{core}{error}",)


def add_location(error: NkiValidationError, what: str) -> None:
    """Put kernel location and instruction in front of ``error``'s message, once."""
    if error.place:
        return
    error.place = kernel_location()
    error.refusal = f"{what}: {error}"
    error.args = (f"{error.place}: {error.refusal}",)


def add_function(error: NkiValidationError, function: str, core: int | None) -> None:
    """Put kernel location and a function of ``nki.language`` in front of ``error``'s message.

    The name of an instruction inside it that refused stays, behind that of the function; of functions that call each
    other the outermost one, which is the last to come here, takes the place of the others.

    Args:
        error: what the function, or an instruction inside it, raises.
        function: as the kernel calls it.
        core: number of the core where there are two; an instruction has named it already.
    """
    if not error.place:
        error.place = kernel_location()
        error.refusal = str(error)
        error.core = "" if core is None else f" on core {core}"
    error.args = (f"{error.place}: {function}{error.core}: {error.refusal}",)
