# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loops of ``nki.language``. All run as Python loops, eagerly; loops of the device count in scalars or registers.

- :func:`static_range`, :func:`affine_range`, :func:`sequential_range`: loops that the compiler unrolls.
- :func:`dynamic_range`, :func:`fori_loop`, :func:`while_loop`: loops of the device.
- :func:`no_reorder`: a block whose instructions keep program order.

In a launch on shapes, iterations of a device loop that only repeat earlier ones are counted without being run.

Sources: docstrings of the loops and page of ``fori_loop`` (2.33), ``nki/deep-dives/nki-dynamic-loops.rst``,
``nki/get-started/nki-language-guide.rst`` (Dynamic Control Flow) and ``nki/migration/index.rst`` (Rules for migrated
loops; removals of 0.7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..hardware.current import is_traced
from ..machine.core import Core, current_core, current_core_or_none
from ..machine.loops import LoopRun, RunTimeLoop, name_of_body
from ..tensors.device_integers import DeviceInteger, NkiScalar, VirtualRegister, int32_of
from ..tensors.tensor import NkiTensor
from ..terms.argument_checks import DIVISION, is_integer
from ..terms.dtypes import int32
from ..terms.errors import ArgumentTypeError, NkiValidationError, RegisterTypeError, kernel_location
from ..terms.spec import DataNeeded, ValuesWanted

_INT32 = np.iinfo(np.int32)

# Loops with fewer run whole: to see that iterations repeat takes half as many.
FEWEST_ITERATIONS = 24

Bound = int | DeviceInteger


def _unrolled(what: str, start: int, stop: int | None, step: int) -> range:
    bounds = (0, start) if stop is None else (start, stop)
    for value in (*bounds, step):
        if isinstance(value, float | np.floating):
            raise NkiValidationError(f"{what}: bounds and step must be integers, got the float {value!r}{DIVISION}")
    try:
        return range(*bounds, step)
    except RegisterTypeError:
        raise
    except (TypeError, ValueError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else NkiValidationError
        raise kind(f"{what}: bounds must be integers, and step one that is not 0: {error}") from None


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Return a ``range`` with the documented argument order, for a loop that the compiler unrolls.

    Raises:
        NkiValidationError: a bound or the step is a float, such as the result of ``/``.
    """
    return _unrolled("nl.static_range", start, stop, step)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Return a ``range``, as :func:`static_range` does: in the documentation both are aliases of ``range()``.

    Raises:
        NkiValidationError: a bound or the step is a float, such as the result of ``/``.
    """
    return _unrolled("nl.affine_range", start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Return a ``range``, as :func:`static_range` does: in the documentation both are aliases of ``range()``.

    Raises:
        NkiValidationError: a bound or the step is a float, such as the result of ``/``.
    """
    return _unrolled("nl.sequential_range", start, stop, step)


@dataclass(frozen=True)
class _Counted:
    """A loop whose number of iterations is known when it starts.

    Attributes:
        core: the core of this thread.
        count: the number of iterations.
        first: the loop variable in the first iteration; None if it is unknown in a launch without data.
        step: the difference between the loop variables of consecutive iterations.
        place: ``file:line`` of the kernel.
        register: the number of the last instruction that loaded a bound into its register or scalar; 0 if none did.
    """

    core: Core
    count: int
    first: int | None
    step: int
    place: str
    register: int

    def value(self, iteration: int) -> int | None:
        """Return the loop variable in iteration number ``iteration``, from 0; None if it is unknown."""
        return None if self.first is None else self.first + iteration * self.step


def _iterate(counted: _Counted) -> Iterator[VirtualRegister]:
    core = counted.core
    loop_run = LoopRun("nl.dynamic_range", counted.place, core.loops.depth, counted.register)
    core.observers.tell_entered(loop_run)
    for iteration in range(counted.count):
        with core.loops.iteration():
            yield VirtualRegister(counted.value(iteration), frozen=True)
        loop_run.count += 1
        core.observers.tell_iterated(loop_run)
    core.observers.tell_left(loop_run)


def _start_loop(name: str) -> Core:
    core = current_core(name)
    core.loops.check_may_start(name)
    return core


def _loop_of(body: Any) -> RunTimeLoop:
    return RunTimeLoop(body if isinstance(body, str) else name_of_body(body), kernel_location())


def _known(what: str, integer: DeviceInteger, may_be_unknown: bool) -> int | None:
    """Return the value of a register or scalar that decides the number of iterations of a loop; None if it is unknown.

    Args:
        what: the name of the value, for messages.
        integer: the register or scalar.
        may_be_unknown: whether the caller of the launch states the number of iterations; the value is then not needed.

    Raises:
        ValuesWanted: the launch did not compute the value, and no number of iterations is stated.
    """
    try:
        return int32_of(what, integer)
    except DataNeeded:
        return None
    except ValuesWanted:
        if may_be_unknown:
            return None
        raise


def _bound(what: str, bound: Any, may_be_unknown: bool) -> int | None:
    """Return the value of a loop bound: an integer, register or scalar; None if it is unknown (see :func:`_known`)."""
    if isinstance(bound, DeviceInteger):
        return _known(what, bound, may_be_unknown)
    if not isinstance(bound, int | np.integer) or not _INT32.min <= bound <= _INT32.max:
        remedy = "; nisa.scalar_load reads a scalar from it" if isinstance(bound, NkiTensor) else ""
        raise NkiValidationError(f"{what} must be an int32, a register or a scalar, got {bound!r}{remedy}")
    return int(bound)


def _check_body(what: str, body_fun: Any) -> None:
    if not callable(body_fun):
        raise NkiValidationError(f"{what}: body_fun must be a function, got {body_fun!r}")


def _checked_loop(what: str, lower: Any, upper: Any, step: Any, names: tuple[str, str], body: Any) -> _Counted:
    """Check the arguments of a loop function, and return the loop that it runs.

    Args:
        what: the name of the loop function, for messages.
        lower, upper, step: the kernel's arguments.
        names: the names of the two bounds in messages.
        body: the function that is the loop's body, or a name for the body.
    """
    core = _start_loop(what)
    if not is_integer(step) or step < 1:
        raise NkiValidationError(f"{what}: step must be a positive integer, got {step!r}")
    loop, trips = _loop_of(body), core.launch.trips
    first, end = (
        _bound(f"{what}: {name}", bound, trips.says(loop)) for name, bound in zip(names, (lower, upper), strict=True)
    )
    if not isinstance(body, str):
        _check_body(what, body)
    if first is None or end is None:
        unknown = names[0] if first is None else names[1]
        count = trips.expected(f"{what}: {unknown} is a value", loop)
    else:
        count = len(range(first, end, int(step)))
    if isinstance(lower, DeviceInteger) or isinstance(upper, DeviceInteger):
        trips.add(loop, core.number, count)
    register = max(bound.loaded_by if isinstance(bound, DeviceInteger) else 0 for bound in (lower, upper))
    return _Counted(core, count, first, int(step), loop.place, register)


def dynamic_range(start: Bound, stop: Bound | None = None, step: int = 1) -> Iterator[VirtualRegister]:
    """Iterate on the device from ``start`` (0 if only one bound is given) to ``stop``, exclusive.

    NKI 0.7 removed this function; it works with the front end of 0.6 (``NKI_COMPILER_FRONTEND=custom``). Bounds are
    integers or registers, read when the loop starts. The loop variable is a register that the body may not write.

    Raises:
        RegisterTypeError: the front end is that of 0.7.
        NkiValidationError: ``step`` is not a positive integer, a bound is not an int32, or the loop is in
            ``nl.no_reorder``.
        UninitializedReadError: a bound is a register that was never set.
    """
    name = "nl.dynamic_range"
    if is_traced():
        raise RegisterTypeError(
            f"{name} was removed in NKI 0.7: give the body to nl.fori_loop(lower, upper, body), or to "
            f"nl.while_loop(register, body). NKI_COMPILER_FRONTEND=custom runs the loops of NKI 0.6"
        )
    lower, upper = (0, start) if stop is None else (start, stop)
    return _iterate(_checked_loop(name, lower, upper, step, ("start", "stop"), name))


def _skip_repeated(core: Core, loop: LoopRun, left: int) -> None:
    """Skip the remaining iterations that only repeat earlier ones, and update all counters and observers for them.

    ``left`` is the number of remaining iterations.
    """
    skip = core.observers.repeats(loop, left)
    if skip is not None:
        core.observers.tell_repeated(loop, skip)
        core.tally.repeat(skip)
        core.skip_numbers(skip.times * skip.instructions)
        loop.count += skip.times * skip.period


def _run_loop(core: Core, loop: LoopRun, left: Callable[[], int], run: Callable[[], None]) -> None:
    """Run a loop until no iteration is left; iterations that only repeat earlier ones are counted without a call.

    Args:
        core: the core of this thread.
        loop: the record of the loop.
        left: a function that returns the known number of remaining iterations, the next one included; 0 at the end.
        run: a function that runs one iteration and counts it in ``loop.count``.
    """
    observers, tally, meetings = core.observers, core.tally, core.meetings
    loop.may_repeat = core.is_abstract and left() >= FEWEST_ITERATIONS
    observers.tell_entered(loop)
    tally.enter()
    while left():
        run()
        observers.tell_iterated(loop)
        tally.iterate()
        # With data each iteration computes something; and at a barrier others wait for this core.
        if loop.may_repeat and core.meetings == meetings:
            _skip_repeated(core, loop, left())
    tally.leave()
    observers.tell_left(loop)


def fori_loop(lower: Bound, upper: Bound, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """Run ``for i in range(lower, upper, step): body_fun(i)`` on the device.

    Bounds are integers, registers or scalars of int32, read when the loop starts. ``i`` is an ``NkiScalar``. If a bound
    is a register, and always with the front end of NKI 0.6, ``i`` is a register, a new one in every iteration, so that
    writing ``i`` does not affect the loop.

    Raises:
        NkiValidationError: ``step`` is not a positive integer, a bound is not an int32, the body returns a value or
            does not run the same instructions in every iteration, or the loop is in ``nl.no_reorder``; at the end of
            the kernel, two cores have run the loop a different number of times.
        UninitializedReadError: a bound is a register that was never set.
    """
    name = "nl.fori_loop"
    counted = _checked_loop(name, lower, upper, step, ("lower", "upper"), body_fun)
    core = counted.core
    counts_in_register = isinstance(lower, VirtualRegister) or isinstance(upper, VirtualRegister)
    counts_in_register |= not core.is_traced
    loop_run = core.loops.started(name, counted.register)

    def run() -> None:
        value = counted.value(loop_run.count)
        with core.loops.iteration() as ran:
            index = VirtualRegister(value) if counts_in_register else NkiScalar.holding(value, int32)
            result = body_fun(index)
        loop_run.ended_iteration(ran, is_compared=core.is_traced)
        if result is not None:
            raise NkiValidationError(
                f"{name}: body_fun must return nothing, got {result!r}; carry values from one iteration to the next in "
                f"SBUF or HBM"
            )

    _run_loop(core, loop_run, lambda: counted.count - loop_run.count, run)


class _Condition:
    """The condition of a running ``nl.while_loop``.

    Attributes:
        loop: the loop.
        value: the present value of the condition; None if it is unknown in a launch without data.
        register: the number of the last instruction that wrote the register of the condition; 0 if none did.
    """

    def __init__(self, core: Core, loop: RunTimeLoop) -> None:
        self.loop = loop
        self.value: int | None = None
        self.register = 0
        self._trips = core.launch.trips

    def take(self, what: str, register: Any) -> None:
        """Read the next value of the condition from ``register``; ``what`` is its name in messages.

        Raises:
            NkiValidationError: ``register`` is not a register that holds an integer.
            UninitializedReadError: the register was never set.
        """
        if not isinstance(register, VirtualRegister):
            remedy = "; nisa.scalar_store it, and nisa.register_load it from there"
            raise NkiValidationError(
                f"{what} must be a register of nisa.register_alloc, got {register!r}"
                f"{remedy if isinstance(register, NkiScalar) else ''}"
            )
        self.value = _known(what, register, self._trips.says(self.loop))
        self.register = register.loaded_by

    def left(self, count: int) -> int:
        """Return the number of iterations that are left after ``count`` iterations.

        If the value of the condition is known, the result is 1, or 0 at the end of the loop. Otherwise it follows from
        the stated number of iterations.
        """
        if self.value is not None:
            return int(self.value != 0)
        return max(0, self._trips.expected("nl.while_loop: the condition is a value", self.loop) - count)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Run ``r = init``, then ``while r != 0: r = body_fun(r)``, on the device.

    The body gets a copy of the condition, so that ``init`` keeps its value.

    Raises:
        NkiValidationError: ``init`` or the value that the body returns is not a register that holds an integer, the
            body does not run the same instructions in every iteration, or the loop is in ``nl.no_reorder``; at the end
            of the kernel, two cores have run the loop a different number of times.
        UninitializedReadError: the condition is a register that was never set.
    """
    name = "nl.while_loop"
    core = _start_loop(name)
    _check_body(name, body_fun)
    condition = _Condition(core, _loop_of(body_fun))
    condition.take(f"{name}: init", init)
    loop_run = core.loops.started(name, condition.register)

    def run() -> None:
        with core.loops.iteration() as ran:
            result = body_fun(VirtualRegister(condition.value))
        loop_run.ended_iteration(ran, is_compared=core.is_traced)
        condition.take(f"{name}: what body_fun returns", result)

    _run_loop(core, loop_run, lambda: condition.left(loop_run.count), run)
    core.launch.trips.add(condition.loop, core.number, loop_run.count)


def no_reorder() -> AbstractContextManager[None]:
    """Return a context manager for a block whose instructions keep program order; no dynamic loop may start in it. The
    simulator keeps program order everywhere.
    """
    core = current_core_or_none()
    return nullcontext() if core is None else core.loops.no_reorder()
