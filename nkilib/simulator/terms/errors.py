# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The errors that the simulator raises, and where in the user's kernel they came from."""

from __future__ import annotations

import sys
from types import FrameType

# The package whose frames are no user's kernel, by the name under which everybody imports it.
_SIMULATOR = "nkilib.simulator"


class NkiValidationError(Exception):
    """A rule of the hardware or of the documented API is violated.

    The name is the one that ``nki.isa`` documents. Every error that the simulator raises on a kernel's behalf is
    of this class or of a subclass, except plain Python errors such as a wrong number of arguments.

    Attributes:
        place: ``file:line`` of the kernel, once it is known.
        refusal: the message behind the place and the function of ``nki.language``.
        core: `` on core 1`` where a function of ``nki.language`` refused on one of several cores.
    """

    place = ""
    refusal = ""
    core = ""


class OutOfRangeError(NkiValidationError, IndexError):
    """An index, static or read from a tensor at run time, leaves the tensor that it indexes."""


class UninitializedReadError(NkiValidationError):
    """A register is read that was never set, or, with ``uninitialized="error"``, an element that was never written."""


class RegisterTypeError(NkiValidationError, TypeError):
    """Python is asked to go by a register or a scalar, whose value only the device knows, or to compute with it."""


class GridTypeError(NkiValidationError, TypeError):
    """A shape or an index of a grid of tiles is of the wrong type."""


class GridValueError(NkiValidationError, ValueError):
    """A shape or an index of a grid of tiles cannot be."""


class CapacityError(NkiValidationError):
    """The tensors that are live at one time do not fit SBUF or PSUM, or two placed by hand overlap.

    Attributes:
        made_at: ``file:line`` of the tensor that came to life last.
    """

    def __init__(self, message: str, made_at: str = "<unknown>:0") -> None:
        super().__init__(message)
        self.made_at = made_at


class RaceError(NkiValidationError):
    """Two cores access the same elements of a shared tensor, one of them writing, without a barrier in between."""


class IdenticalWritesError(RaceError):
    """Two cores write the same values to the same elements, with ``identical_writes="error"``."""


class PsumGroupError(NkiValidationError):
    """A matmul adds to a group of products in PSUM after another group was started in the same bank."""


class BarrierError(NkiValidationError):
    """A core or a rank waits for another one that cannot come any more, or that comes to something else."""


class UncomputedError(RuntimeError):
    """Somebody asks for the values of a result that a launch with ``skip_arithmetic`` has left out."""


class SimulatorWarning(UserWarning):
    """What would be an error, and a setting (``NKILIB_RACES=warn`` and its like) lets pass."""


class CoreAbortedError(BaseException):
    """Ends a core because the other one failed.

    Not an ``Exception``: a kernel that catches ``Exception`` must not keep a core alive whose partner is gone.
    """


# Of the files that were asked for, which are the simulator's.
_KNOWN: dict[str, bool] = {}


def _is_simulator(frame: FrameType) -> bool:
    """Whether a function of the simulator runs in ``frame``."""
    file = frame.f_code.co_filename
    name = str(frame.f_globals.get("__name__", ""))
    # What is compiled from a string has no file of its own.
    _KNOWN[file] = not file.startswith("<") and (name == _SIMULATOR or name.startswith(f"{_SIMULATOR}."))
    return _KNOWN[file]


def kernel_frame() -> FrameType | None:
    """The innermost frame outside the simulator, which is at the line of the user's kernel."""
    frame: FrameType | None = sys._getframe(1)
    known = _KNOWN
    while frame is not None:
        is_simulator = known.get(frame.f_code.co_filename)
        if not (_is_simulator(frame) if is_simulator is None else is_simulator):
            return frame
        frame = frame.f_back
    return None


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
    place = last_line(error)
    error.place = place or "<unknown>"
    error.args = (f"{place}: {core}{error}" if place else f"{core}{error}",)


def add_core(error: Exception, core: str) -> None:
    """Put behind the message of an exception that is not the simulator's on which core, and where, it was raised.

    For cores whose thread is not the caller's: all run the same lines. An exception that makes its message of
    something else than one string, as KeyError does, gets a note instead, from Python 3.11 on.
    """
    place = last_line(error)
    where = f"on {core}, {place}" if place else f"on {core}"
    before = error.args
    message = before[0] if len(before) == 1 else ""
    if len(before) < 2 and isinstance(message, str) and str(error) == message:
        if message.endswith(where) or message.endswith(f"{where})"):  # an object that is raised again
            return
        said = f"{message} ({where})" if message else where
        error.args = (said,)
        if str(error) == said:
            return
        error.args = before
    if hasattr(error, "add_note"):
        error.add_note(where)


def last_line(error: BaseException) -> str:
    """``file:line`` of the innermost frame of a traceback that is not the simulator's; empty if there is none."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        if not _is_simulator(traceback.tb_frame):
            place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def add_location(error: NkiValidationError, what: str) -> None:
    """Put kernel location and instruction in front of ``error``'s message, once."""
    if error.place:
        return
    error.place = kernel_location()
    error.refusal = f"{what}: {error}"
    error.args = (f"{error.place}: {error.refusal}",)


def add_function(error: NkiValidationError, function: str, core: str) -> None:
    """Put kernel location and a function of ``nki.language`` in front of ``error``'s message.

    The name of an instruction inside it that refused stays, behind that of the function; of functions that call each
    other the outermost one, which is the last to come here, takes the place of the others.

    Args:
        error: what the function, or an instruction inside it, raises.
        function: as the kernel calls it.
        core: what tells the core from others that run, or empty; an instruction has named it already.
    """
    if not error.place:
        error.place = kernel_location()
        error.refusal = str(error)
        error.core = f" on {core}" if core else ""
    error.args = (f"{error.place}: {function}{error.core}: {error.refusal}",)
