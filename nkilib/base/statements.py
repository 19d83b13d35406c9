# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Statements about a kernel, made next to it: its work, the iterations of its loops, and that it may be replayed.

- :func:`states_work` attaches a function that returns the :class:`Work` of a launch. Profiles compare the modelled time
  with the least time in which the hardware can do this work.
- :func:`states_trips` attaches the largest iteration counts of loops whose bounds only the device knows.
- :func:`replayable` states that launches may be replayed; in a block of :func:`unreplayed` no launch is replayed.

The simulator reads the statements with :func:`work_stated_for`, :func:`trips_stated_for`, :func:`is_replayable` and
:func:`is_unreplayed`. :data:`StatesWork` and :data:`StatesTrips` are the types of the attached functions.

This module imports nothing of this library, so that kernels can make statements on a device, without the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Work:
    """The amount of work of a computation, which does not depend on the kernel that computes it.

    Attributes:
        hbm_bytes: bytes that must be read from HBM or written to it.
        exponentials: elements that need an exponential or another activation function.
        maxima: elements that a maximum is taken over.
        multiply_adds: multiply-add operations of matrix products.
        dtype: NKI type of the elements on chip, such as ``nl.bfloat16``, or the name of the type.
    """

    hbm_bytes: int
    exponentials: int = 0
    maxima: int = 0
    multiply_adds: int = 0
    dtype: str = "float32"


# Functions of a kernel's parameters, by name: one returns the work, one the largest iteration counts of its loops.
StatesWork = Callable[..., Work]
StatesTrips = Callable[..., "int | Mapping[str, int]"]
Statement = TypeVar("Statement", bound=Callable[..., Any])

_WORK: WeakKeyDictionary[Callable[..., Any], StatesWork] = WeakKeyDictionary()
_TRIPS: WeakKeyDictionary[Callable[..., Any], StatesTrips] = WeakKeyDictionary()
_REPLAYABLE: WeakSet[Callable[..., Any]] = WeakSet()
# An item for each block of unreplayed() that is open. Of the process: launches run in several threads.
_UNREPLAYED: list[None] = []


def _attach(
    known: WeakKeyDictionary[Callable[..., Any], Statement], statement: Statement
) -> Callable[[Function], Function]:
    def state(function: Function) -> Function:
        known[function] = statement
        return function

    return state


def states_work(work: StatesWork) -> Callable[[Function], Function]:
    """Return a decorator that states the work of a kernel function and returns the function unchanged.

    ``work`` takes the kernel's parameters by name and returns the :class:`Work` of the launch.
    ``nkilib.simulator.profile`` computes a lower bound of the time from it.

    Example::

        @nki.jit
        @states_work(lambda x, **_: Work(hbm_bytes=2 * x.size * x.dtype.itemsize))
        def double(x): ...
    """
    return _attach(_WORK, work)


def states_trips(most: StatesTrips) -> Callable[[Function], Function]:
    """Return a decorator that states the largest iteration counts of a kernel's loops whose bounds only the device
    knows.

    The decorator returns the function unchanged. ``nkilib.simulator.profile`` of shapes without values then reports two
    times: with no iterations of these loops, and with the largest counts.

    Example::

        @nki.jit
        @states_trips(lambda x, **_: {"again": x.shape[0] // 128})
        def kernel(x):
            def again(i): ...

            nl.fori_loop(0, nisa.scalar_load(flagged), again)

    Args:
        most: a function that takes the kernel's parameters by name and returns one number for all these loops, or a
            mapping with a number for each loop. A key is the name of the function that is the loop's body, or the
            loop's line, ``"file.py:12"``.
    """
    return _attach(_TRIPS, most)


def replayable(function: Function) -> Function:
    """State that the result of a kernel depends only on its arguments, on the simulator's options and on constants.

    The simulator then replays its repeated launches from a recorded plan, without running its Python
    (docs/explanation/replay.md). The statement covers the kernel and all functions that it calls:

    - they read nothing else that changes while the process runs: no variable, attribute, list, dictionary or array that
      is assigned or written after the import, no file, environment variable, clock or random generator;
    - their only effect is to write tensors: they count, store and print nothing in Python.

    The author is responsible for the statement: if it is wrong, replayed launches use earlier values, without an error.
    The function or kernel is returned unchanged, and under the real NKI the statement has no effect. The decorator may
    stand above or below ``@nki.jit``. A function or class that is passed to a kernel needs a statement of its own.

    Example::

        @nki.jit
        @replayable
        def double(x): ...
    """
    # Of a kernel that nki.jit has made, its function states it: kernel[2] is another kernel with the same function.
    stated = function if isinstance(function, FunctionType) else getattr(function, "__wrapped__", function)
    with suppress(TypeError):  # no weak reference can point to it, which may be so for kernels of the real NKI
        _REPLAYABLE.add(stated)
    return function


def is_replayable(function: Callable[..., Any]) -> bool:
    """Return whether :func:`replayable` was applied to this very function; functions in its ``__wrapped__`` do not
    count.
    """
    try:
        return function in _REPLAYABLE
    except TypeError:  # a callable without a hash
        return False


@contextmanager
def unreplayed() -> Iterator[None]:
    """Turn off replay in the whole process for the ``with`` block, for code that changes constants of kernels."""
    _UNREPLAYED.append(None)
    try:
        yield
    finally:
        _UNREPLAYED.pop()


def is_unreplayed() -> bool:
    """Return whether a block of :func:`unreplayed` is open."""
    return bool(_UNREPLAYED)


def _found(known: WeakKeyDictionary[Callable[..., Any], Statement], function: Callable[..., Any]) -> Statement | None:
    try:
        stated = known.get(function)
    except TypeError:  # a callable without a hash, or that no weak reference can point to
        return None
    wrapped: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    return stated if stated is not None or wrapped is None else _found(known, wrapped)


def work_stated_for(function: Callable[..., Any]) -> StatesWork | None:
    """Return the function that states the work of a kernel, or of the function in its ``__wrapped__``; None if there is
    none.
    """
    return _found(_WORK, function)


def trips_stated_for(function: Callable[..., Any]) -> StatesTrips | None:
    """Return the function that states the iteration counts of a kernel; None if there is none.

    The statement may be attached to the kernel function or to the function in its ``__wrapped__``.
    """
    return _found(_TRIPS, function)
