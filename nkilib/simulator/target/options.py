"""Options of a simulation: one frozen dataclass, its defaults, and how to change them for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from .generation import Generation
from .limits import generation

# What a check does with what it finds.
Level = Literal["error", "warn", "ignore"]
LEVELS: tuple[Level, ...] = get_args(Level)
# The checks that have one; NKILIB_RACES and so on set them.
CHECKS = ("uninitialized", "capacity", "races", "identical_writes")
# What ``uninitialized="ignore"`` was called before it was a level like the others.
_NAN = "nan"

# The rules for loops and registers.
Frontend = Literal["tracer", "custom"]
FRONTENDS: tuple[Frontend, ...] = get_args(Frontend)
# AWS's variable for the way in which kernels are specialized, and what its values mean; unset is the tracer.
_FRONTEND_VARIABLE = "NKI_COMPILER_FRONTEND"
_FRONTENDS: dict[str, Frontend] = {
    "": "tracer",
    "tracer": "tracer",
    "custom": "custom",
    "parser": "custom",  # the same under the name that it had in 0.6
}


@dataclass(frozen=True)
class Options:
    """How kernels are simulated.

    Attributes:
        target: generation to simulate: ``trn1|inf2|gen2``, ``trn2|gen3`` or ``trn3|gen4``. The environment variable
            ``NEURON_PLATFORM_TARGET_OVERRIDE`` sets it; unset means ``trn2`` (AWS's simulator takes trn3).
            ``trn3_a0|trn3pre`` is the first silicon of trn3.
        precise_fp: store bfloat16 and float8 in their own width. ``NKI_PRECISE_FP=0`` keeps them in float32, so that
            an error of the algorithm can be told from a rounding.
        uninitialized: a read of an element that was never written: ``"error"`` (:class:`UninitializedReadError`),
            ``"warn"`` or ``"ignore"``; with these two it reads as NaN, and as 4 in integers, as in AWS's simulator.
            ``"nan"`` is an older name of ``"ignore"``.
        capacity: a kernel whose live tensors do not fit SBUF or PSUM, as soon as that is certain, at the latest at its
            end: ``"error"`` (:class:`CapacityError`), ``"warn"`` or ``"ignore"``, as in AWS's simulator.
        races: the two cores access the same elements of a shared tensor, one of them writing, without a barrier in
            between: ``"error"`` (:class:`RaceError`), ``"warn"`` or ``"ignore"``, as in AWS's simulator. What is read
            there is then what the memory holds at that moment.
        identical_writes: both cores write the same values to the same elements without a barrier in between, which is
            no race, and one of them works for nothing: ``"error"`` (:class:`RaceError`), ``"warn"`` or ``"ignore"``.
        frontend: the rules for loops and registers: ``"tracer"``, those of NKI 0.7, where no run-time value steers
            Python; or ``"custom"``, those of 0.6, with ``nl.dynamic_range`` and ``while`` on a register. The
            environment variable ``NKI_COMPILER_FRONTEND`` sets it.

    The four checks are set by ``NKILIB_UNINITIALIZED``, ``NKILIB_CAPACITY``, ``NKILIB_RACES`` and
    ``NKILIB_IDENTICAL_WRITES``. ``"warn"`` is a :class:`SimulatorWarning`, one for each line of a kernel and process.
    """

    target: str = "trn2"
    precise_fp: bool = True
    uninitialized: Level = "ignore"
    capacity: Level = "error"
    races: Level = "error"
    identical_writes: Level = "ignore"
    frontend: Frontend = "tracer"

    def __post_init__(self) -> None:
        generation(self.target)
        if not isinstance(self.precise_fp, bool):
            raise TypeError(f"Options.precise_fp must be a bool, got {self.precise_fp!r}")
        if self.uninitialized == _NAN:
            object.__setattr__(self, "uninitialized", "ignore")
        for name in CHECKS:
            _check_level(f"Options.{name}", getattr(self, name))
        if self.frontend not in FRONTENDS:
            raise ValueError(f"Options.frontend must be one of {', '.join(FRONTENDS)}, got {self.frontend!r}")

    @property
    def generation(self) -> Generation:
        return generation(self.target)

    @classmethod
    def from_environment(cls) -> Options:
        """Options as the environment sets them, by the variables of AWS's simulator and by ``NKILIB_RACES`` and so on.

        Raises:
            ValueError: if a variable has a value that is not documented.
        """
        levels: dict[str, Any] = {}
        for name in CHECKS:
            variable = f"NKILIB_{name.upper()}"
            value = os.environ.get(variable)
            if value:
                levels[name] = value
                _check_level(variable, "ignore" if value == _NAN and name == "uninitialized" else value)
        precise = os.environ.get("NKI_PRECISE_FP", "1")
        if precise not in ("0", "1"):
            raise ValueError(f"NKI_PRECISE_FP must be 0 or 1, got {precise!r}")
        target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or cls.target
        frontend = os.environ.get(_FRONTEND_VARIABLE, "")
        if frontend not in _FRONTENDS:
            raise ValueError(f"{_FRONTEND_VARIABLE} must be tracer or custom, got {frontend!r}")
        try:
            return cls(target=target, precise_fp=precise == "1", frontend=_FRONTENDS[frontend], **levels)
        except ValueError as error:
            raise ValueError(f"NEURON_PLATFORM_TARGET_OVERRIDE: {error}") from None


def _check_level(what: str, value: object) -> None:
    if value not in LEVELS:
        raise ValueError(f"{what} must be one of {', '.join(LEVELS)}, got {value!r}")


_CHANGES: ContextVar[dict[str, Any] | None] = ContextVar("nkilib_simulator_option_changes", default=None)


def current_options() -> Options:
    """The options in force: the environment's, with what :func:`using` changes."""
    return replace(Options.from_environment(), **(_CHANGES.get() or {}))


@contextmanager
def using(**changes: Any) -> Iterator[Options]:
    """Change fields of :class:`Options` for the kernels launched inside the ``with`` block.

    Example::

        with nkilib.simulator.using(target="trn3", uninitialized="error"):
            kernel[2](logits)

    Raises:
        TypeError: if a keyword is no field of :class:`Options`.
        ValueError: if a value is not accepted.
    """
    known = [field.name for field in fields(Options)]
    for name in changes.keys() - set(known):
        raise TypeError(f"using: there is no option {name!r}; there are {', '.join(known)}")
    token = _CHANGES.set({**(_CHANGES.get() or {}), **changes})
    try:
        yield current_options()
    finally:
        _CHANGES.reset(token)


@contextmanager
def preferring(target: str | None) -> Iterator[None]:
    """Simulate a kernel's own target, if it has one and neither :func:`using` nor the environment names another."""
    changes = _CHANGES.get() or {}
    if target is None or "target" in changes or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE"):
        yield
        return
    with using(target=target):
        yield
