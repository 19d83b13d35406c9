# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The work of a kernel, stated next to the kernel. Profiles compare the modelled time with the least time in which the
hardware could do this work.

This module imports nothing of this library, so that kernels state their work also on a device, without a simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Work:
    """The amount of work of a computation, which does not depend on the kernel that computes it.

    Attributes:
        hbm_bytes: bytes that must cross HBM, in either direction.
        exponentials: elements that need the exponential (or another activation function).
        maxima: elements that must pass through a maximum.
        multiply_adds: scalar multiplications with an addition, of a matrix product.
        dtype: NKI type of the elements on chip, such as ``nl.bfloat16``, or its name.
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


def states_work(work: StatesWork) -> Callable[[Function], Function]:
    """Attach a statement of work to a kernel function, from which ``nkilib.simulator.profile`` computes a lower bound
    of its time.

    The function itself stays as it is. ``work`` returns the :class:`Work` of a call, from the kernel's parameters by
    name.

    Example::

        @nki.jit
        @states_work(lambda x, **_: Work(hbm_bytes=2 * x.size * x.dtype.itemsize))
        def double(x): ...
    """
    return _states(_WORK, work)


def states_trips(most: StatesTrips) -> Callable[[Function], Function]:
    """Attach the largest iteration counts of a kernel function's loops whose bounds only the device knows.

    ``nkilib.simulator.profile`` of shapes without values then reports the times with no iterations of these loops and
    with all. The function itself stays as it is.

    Example::

        @nki.jit
        @states_trips(lambda x, **_: {"again": x.shape[0] // 128})
        def kernel(x):
            def again(i): ...

            nl.fori_loop(0, nisa.scalar_load(flagged), again)

    Args:
        most: a function of the kernel's parameters, by name, that returns one number for all such loops, or a mapping
            with a number for each loop, named by the function that is its body or by its line, ``"file.py:12"``.
    """
    return _states(_TRIPS, most)


def stated_work(function: Callable[..., Any]) -> StatesWork | None:
    """Return the statement of work of a kernel function, or of the function that it wraps; None if there is none."""
    return _stated(_WORK, function)


def stated_trips(function: Callable[..., Any]) -> StatesTrips | None:
    """Return the iteration counts stated for a kernel function, or for the function that it wraps; None without any."""
    return _stated(_TRIPS, function)


def _states(
    known: WeakKeyDictionary[Callable[..., Any], Statement], statement: Statement
) -> Callable[[Function], Function]:
    def state(function: Function) -> Function:
        known[function] = statement
        return function

    return state


def _stated(known: WeakKeyDictionary[Callable[..., Any], Statement], function: Callable[..., Any]) -> Statement | None:
    try:
        stated = known.get(function)
    except TypeError:  # a callable without a hash, or that no weak reference can point to
        return None
    wrapped: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    return stated if stated is not None or wrapped is None else _stated(known, wrapped)
