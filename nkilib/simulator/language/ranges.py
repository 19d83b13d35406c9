"""Loops of ``nki.language``. All run as Python loops, eagerly; those of the device count in registers.

Sources: docstrings of the loops, ``nki/deep-dives/nki-dynamic-loops.rst``, ``nki/get-started/nki-language-guide.rst``
(Dynamic Control Flow) and ``nki/migration/index.rst`` (Rules for migrated loops).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ..machine.core import Core, current_core, current_core_or_none
from ..tensors.registers import VirtualRegister
from ..tensors.tensor import NkiTensor
from ..terms.errors import NkiValidationError

_INT32 = np.iinfo(np.int32)

Bound = int | VirtualRegister


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """``range`` with the documented argument order: a loop that the compiler unrolls."""
    return range(0, start, step) if stop is None else range(start, stop, step)


def dynamic_range(start: Bound, stop: Bound | None = None, step: int = 1) -> Iterator[VirtualRegister]:
    """A loop that runs on the device, from ``start`` (0 if only one bound is given) to ``stop``, exclusive.

    Bounds are integers or registers, read when the loop starts. The loop's value is a frozen register. Deprecated since
    NKI 0.6 in favour of :func:`fori_loop`.

    Raises:
        NkiValidationError: if ``step`` is no positive integer, a bound is no int32, or the loop is in
            ``nl.no_reorder``.
        UninitializedReadError: if a bound is a register that was never set.
    """
    lower, upper = (0, start) if stop is None else (start, stop)
    return _iterate(*_checked_loop("nl.dynamic_range", lower, upper, step, ("start", "stop")))


def _iterate(core: Core, values: range) -> Iterator[VirtualRegister]:
    for value in values:
        with core.loops.iteration():
            yield VirtualRegister(value, frozen=True)


def fori_loop(lower: Bound, upper: Bound, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """``for i in range(lower, upper, step): body_fun(i)`` on the device; ``i`` is a register.

    Bounds are integers or registers, read when the loop starts. Each iteration gets a register of its own, so that the
    body may write it without an effect on the loop.

    Raises:
        NkiValidationError: if ``step`` is no positive integer, a bound is no int32, the body returns a value, or the
            loop is in ``nl.no_reorder``.
        UninitializedReadError: if a bound is a register that was never set.
    """
    what = "nl.fori_loop"
    core, values = _checked_loop(what, lower, upper, step, ("lower", "upper"))
    _check_body(what, body_fun)
    for value in values:
        with core.loops.iteration():
            result = body_fun(VirtualRegister(value))
        if result is not None:
            raise NkiValidationError(
                f"{what}: body_fun must return nothing, got {result!r}; carry values from one iteration to the next in "
                f"SBUF or HBM"
            )


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """``r = init``, then ``while r != 0: r = body_fun(r)``, on the device.

    The body gets a copy of the condition: ``init`` keeps its value, whatever the body writes.

    Raises:
        NkiValidationError: if ``init`` or what the body returns is no register that holds an integer, or the loop is in
            ``nl.no_reorder``.
        UninitializedReadError: if the condition is a register that was never set.
    """
    what = "nl.while_loop"
    core = _start_loop(what)
    _check_body(what, body_fun)
    condition = _condition(f"{what}: init", init)
    while condition:
        with core.loops.iteration():
            result = body_fun(VirtualRegister(condition))
        condition = _condition(f"{what}: what body_fun returns", result)


def no_reorder() -> AbstractContextManager[None]:
    """A region whose instructions keep program order, without dynamic loops. The simulator keeps it everywhere."""
    core = current_core_or_none()
    return nullcontext() if core is None else core.loops.no_reorder()


def _start_loop(what: str) -> Core:
    core = current_core(what)
    core.loops.check_may_start(what)
    return core


def _checked_loop(what: str, lower: Any, upper: Any, step: Any, names: tuple[str, str]) -> tuple[Core, range]:
    """The core of this thread and the values that a counted loop takes."""
    core = _start_loop(what)
    if not isinstance(step, int) or step < 1:
        raise NkiValidationError(f"{what}: step must be a positive integer, got {step!r}")
    first, end = (_bound(f"{what}: {name}", bound) for name, bound in zip(names, (lower, upper), strict=True))
    return core, range(first, end, step)


def _bound(what: str, bound: Any) -> int:
    if isinstance(bound, VirtualRegister):
        return bound.value(what)
    if not isinstance(bound, int | np.integer) or not _INT32.min <= bound <= _INT32.max:
        remedy = "; nisa.register_load it into a register" if isinstance(bound, NkiTensor) else ""
        raise NkiValidationError(f"{what} must be an int32 or a register, got {bound!r}{remedy}")
    return int(bound)


def _condition(what: str, register: Any) -> int:
    if not isinstance(register, VirtualRegister):
        raise NkiValidationError(f"{what} must be a register of nisa.register_alloc, got {register!r}")
    return register.value(what)


def _check_body(what: str, body_fun: Any) -> None:
    if not callable(body_fun):
        raise NkiValidationError(f"{what}: body_fun must be a function, got {body_fun!r}")
