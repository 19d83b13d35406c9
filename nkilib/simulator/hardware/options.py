# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The options of a simulation; they also decide what happens when a check fails.

- :class:`Options`: the options; :func:`current_options`: the options in force, from the environment and :func:`using`;
- :func:`using`, :func:`preferring`: context managers that change options;
- :func:`refuse`: raises the error of a failed check, or warns, according to its :data:`Level`;
- :func:`forget_warnings`: lets warnings appear again;
- :class:`RawEnvironment`: a fast reader of environment variables; every launch reads :data:`OPTION_VARIABLES`;
- :func:`raises_errors_of_replay`: a setting that has an environment variable only.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from ..terms.errors import NkiValidationError, SimulatorWarning
from .generations import Generation, generation

# The reaction of a check to a finding.
Level = Literal["error", "warn", "ignore"]
LEVELS: tuple[Level, ...] = get_args(Level)
# The checks that have one; NKILIB_RACES and so on set them.
CHECKS = (
    "uninitialized",
    "capacity",
    "races",
    "identical_writes",
    "psum_groups",
    "overlapping_copies",
    "lost_results",
)
# Of these the checks that depend on no values: a launch may be replayed although one is at level "warn", since a launch
# with a finding is not.
CHECKS_OF_SHAPES = ("psum_groups", "overlapping_copies")
# The word for all of them, a keyword of using(): each that is not set itself is "error".
_ALL_CHECKS = "strict"
STRICT_VARIABLE = "NKILIB_STRICT"
# What ``uninitialized="ignore"`` was called before it was a level like the others.
_NAN = "nan"

# The rules for loops and registers.
Frontend = Literal["tracer", "custom"]
FRONTENDS: tuple[Frontend, ...] = get_args(Frontend)
# AWS's variable for the way in which kernels are specialized, and the meaning of its values; unset is the tracer.
_FRONTEND_VARIABLE = "NKI_COMPILER_FRONTEND"
_FRONTENDS: dict[str, Frontend] = {
    "": "tracer",
    "tracer": "tracer",
    "custom": "custom",
    "parser": "custom",  # the same under the name that it had in 0.6
}
_PRECISION_VARIABLE = "NKI_PRECISE_FP"
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
# Which launches may be replayed: of kernels that state that they are replayable, of all kernels, of none.
Replay = Literal[True, "always", False]
ALWAYS: Literal["always"] = "always"
# "strict" is for developers of the simulator: the same launches as with "1", and errors of the replay are raised.
REPLAY_VARIABLE = "NKILIB_REPLAY"
_STRICT = "strict"
_REPLAYS: dict[str, Replay] = {"": True, "1": True, _STRICT: True, ALWAYS: ALWAYS, "0": False}


def _check_level(what: str, value: object) -> None:
    if value not in LEVELS:
        raise ValueError(f"{what} must be one of {', '.join(LEVELS)}, got {value!r}")


def _variable_of(check: str) -> str:
    return f"NKILIB_{check.upper()}"


@dataclass(frozen=True)
class Options:
    """The options of a simulation.

    Attributes:
        target: the generation to simulate: ``trn1|inf2|gen2``, ``trn2|gen3`` or ``trn3|gen4``. The environment variable
            ``NEURON_PLATFORM_TARGET_OVERRIDE`` sets it; unset means ``trn2`` (the default of AWS's simulator is trn3).
            ``trn3_a0|trn3pre`` is the first silicon of trn3.
        precise_fp: whether bfloat16 and float8 are stored in their own width. ``NKI_PRECISE_FP=0`` keeps them in
            float32, which tells errors of the algorithm from roundings.
        uninitialized: the reaction to a read of an element that was never written: ``"error"``
            (:class:`UninitializedReadError`), ``"warn"`` or ``"ignore"``; with the latter two the element reads as NaN,
            in integers as 4, as in AWS's simulator. ``"nan"`` is an older name of ``"ignore"``.
        capacity: the reaction to a kernel whose live tensors do not fit SBUF or PSUM: ``"error"``
            (:class:`CapacityError`), ``"warn"`` or ``"ignore"``, as in AWS's simulator.
        races: the reaction if the two cores access the same elements of a shared tensor without a barrier in between,
            and at least one of them writes: ``"error"`` (:class:`RaceError`), ``"warn"`` or ``"ignore"``, as in AWS's
            simulator. With the latter two a read returns the content of the memory at that moment.
        identical_writes: the reaction if both cores write the same values to the same elements without a barrier in
            between. The result is defined, but the work of one core is wasted: ``"error"`` (:class:`RaceError`),
            ``"warn"`` or ``"ignore"``.
        psum_groups: the reaction if a matmul adds to an accumulation group in PSUM after another group was started in
            the same bank: ``"error"`` (:class:`PsumGroupError`), ``"warn"`` or ``"ignore"``, as in AWS's simulator.
            With the latter two the sum is computed as documented. A device has been seen to lose a part of such a sum.
            The default is ``"warn"``, because public kernels do this
            (docs/reference/simulator_readings_instructions.md).
        overlapping_copies: the reaction if a DMA or a transpose overwrites elements of its own source, or if a DMA or a
            matmul writes an element twice. The result then depends on the undocumented order in which elements move:
            ``"error"`` (:class:`OverlappingCopyError`), ``"warn"`` or ``"ignore"``, as in AWS's simulator. With the
            latter two the source is read before the destination is written, and the last value written stays.
        lost_results: the reaction to a kernel that returns nothing and writes no argument: ``"error"``
            (:class:`NkiValidationError`), ``"warn"`` or ``"ignore"``.
        frontend: the rules for loops and registers: ``"tracer"``, the rules of NKI 0.7, where Python cannot branch on
            values that only the device knows; or ``"custom"``, the rules of 0.6, with ``nl.dynamic_range`` and
            ``while`` on a register. The environment variable ``NKI_COMPILER_FRONTEND`` sets it.
        replay: whether a launch that equals earlier ones may run from a recorded plan, with bitwise identical results:
            ``True`` replays kernels that are marked :func:`nkilib.nki.replayable`, as the kernels of this library are;
            ``"always"`` replays all kernels, but a kernel that reads Python values that change between launches
            silently gives wrong results; ``False`` replays none. ``NKILIB_REPLAY=1``, ``always`` and ``0`` set it.

    The environment variables ``NKILIB_UNINITIALIZED``, ``NKILIB_CAPACITY``, ``NKILIB_RACES``,
    ``NKILIB_IDENTICAL_WRITES``, ``NKILIB_PSUM_GROUPS``, ``NKILIB_OVERLAPPING_COPIES`` and ``NKILIB_LOST_RESULTS`` set
    the reactions of the checks. ``"warn"`` gives a :class:`SimulatorWarning`, at most one for each line of a kernel in
    a process. ``NKILIB_STRICT=1`` sets to ``"error"`` every check that neither its own variable nor :func:`using` sets.
    """

    target: str = "trn2"
    precise_fp: bool = True
    uninitialized: Level = "ignore"
    capacity: Level = "error"
    races: Level = "error"
    identical_writes: Level = "ignore"
    psum_groups: Level = "warn"
    overlapping_copies: Level = "warn"
    lost_results: Level = "ignore"
    frontend: Frontend = "tracer"
    replay: Replay = True

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
        if not isinstance(self.replay, bool) and self.replay != ALWAYS:
            raise TypeError(f"Options.replay must be True, False or {ALWAYS!r}, got {self.replay!r}")

    @property
    def generation(self) -> Generation:
        return generation(self.target)

    @classmethod
    def from_environment(cls, strict: bool | None = None) -> Options:
        """Return the options that the environment sets: variables of AWS's simulator, ``NKILIB_RACES`` and so on.

        Args:
            strict: whether checks without a variable have the level ``"error"``; with None ``NKILIB_STRICT`` decides.

        Raises:
            ValueError: if a variable has a value that is not documented.
        """
        everything = os.environ.get(STRICT_VARIABLE) or "0"
        if everything not in ("0", "1"):
            raise ValueError(f"{STRICT_VARIABLE} must be 0 or 1, got {everything!r}")
        is_strict = everything == "1" if strict is None else strict
        levels: dict[str, Any] = dict.fromkeys(CHECKS, "error") if is_strict else {}
        for name in CHECKS:
            variable = _variable_of(name)
            value = os.environ.get(variable)
            if value:
                levels[name] = value
                _check_level(variable, "ignore" if value == _NAN and name == "uninitialized" else value)
        precise = os.environ.get(_PRECISION_VARIABLE, "1")
        if precise not in ("0", "1"):
            raise ValueError(f"{_PRECISION_VARIABLE} must be 0 or 1, got {precise!r}")
        replays = os.environ.get(REPLAY_VARIABLE, "")
        if replays not in _REPLAYS:
            raise ValueError(f"{REPLAY_VARIABLE} must be 0, 1, {ALWAYS} or {_STRICT}, got {replays!r}")
        target = os.environ.get(TARGET_VARIABLE) or cls.target
        frontend = os.environ.get(_FRONTEND_VARIABLE, "")
        if frontend not in _FRONTENDS:
            raise ValueError(f"{_FRONTEND_VARIABLE} must be tracer or custom, got {frontend!r}")
        try:
            return cls(
                target=target,
                precise_fp=precise == "1",
                frontend=_FRONTENDS[frontend],
                replay=_REPLAYS[replays],
                **levels,
            )
        except ValueError as error:
            raise ValueError(f"{TARGET_VARIABLE}: {error}") from None


class RawEnvironment:
    """A reader of environment variables that takes a microsecond, because unlike ``os.environ`` it decodes no value.

    Args:
        names: the names of the variables.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._keys: tuple[Any, ...] = tuple(map(getattr(os.environ, "encodekey", str), self._names))

    def __call__(self) -> tuple[Any, ...]:
        """Return the values of the variables in order, None for a variable that is not set.

        The values may be bytes, so they are for comparison only.
        """
        raw = getattr(os.environ, "_data", None)
        # A test may have put another mapping in the place of os.environ.
        return tuple(map(os.environ.get, self._names)) if raw is None else tuple(map(raw.get, self._keys))


# The variables that options are read from.
OPTION_VARIABLES = (
    *map(_variable_of, CHECKS),
    STRICT_VARIABLE,
    _PRECISION_VARIABLE,
    TARGET_VARIABLE,
    _FRONTEND_VARIABLE,
    REPLAY_VARIABLE,
)
_raw_environment = RawEnvironment(OPTION_VARIABLES)


class _Changes(NamedTuple):
    """The changes of options that enclosing ``with using(...)`` blocks make.

    Attributes:
        values: the changed values by field.
        key: the names, types and values of the changes. It identifies them in a cache, where True must differ from 1.
    """

    values: dict[str, Any]
    key: tuple[Any, ...]


_NO_CHANGES = _Changes({}, ())
_CHANGES: ContextVar[_Changes] = ContextVar("nkilib_simulator_option_changes", default=_NO_CHANGES)
# Options by raw environment and changes. A program has a handful; a larger cache is cleared.
_KNOWN: dict[tuple[Any, ...], Options] = {}
_MOST_KNOWN = 64


def _changed(changes: Mapping[str, Any]) -> Options:
    fields_changed = {name: value for name, value in changes.items() if name != _ALL_CHECKS}
    return replace(Options.from_environment(changes.get(_ALL_CHECKS)), **fields_changed)


def current_options() -> Options:
    """Return the options in force: the environment's, with the changes of :func:`using`.

    Raises:
        ValueError: if a variable has a value that is not documented.
    """
    changes = _CHANGES.get()
    key = (_raw_environment(), changes.key)
    known = _KNOWN.get(key)
    if known is None:
        known = _changed(changes.values)
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = known
    return known


def raises_errors_of_replay() -> bool:
    """Return whether ``NKILIB_REPLAY=strict``: errors in recording and planning are raised instead of only counted."""
    return os.environ.get(REPLAY_VARIABLE) == _STRICT


@contextmanager
def using(**changes: Any) -> Iterator[Options]:
    """Change fields of :class:`Options` for the kernels launched inside the ``with`` block.

    ``strict=True`` sets to ``"error"`` every check that neither this call, nor an enclosing ``with`` block, nor the
    check's environment variable sets. ``strict=False`` ends the effect of an enclosing ``strict=True`` and of
    ``NKILIB_STRICT``.

    Example::

        with nkilib.simulator.using(target="trn3", strict=True):
            kernel[2](logits)

    Raises:
        TypeError: if a keyword is neither a field of :class:`Options` nor ``strict``, or ``strict`` is no bool.
        ValueError: if a value is not accepted.
    """
    known = [*(field.name for field in fields(Options)), _ALL_CHECKS]
    for name in changes.keys() - set(known):
        raise TypeError(f"using: there is no option {name!r}; there are {', '.join(known)}")
    if not isinstance(changes.get(_ALL_CHECKS, False), bool):
        raise TypeError(f"using: {_ALL_CHECKS} must be a bool, got {changes[_ALL_CHECKS]!r}")
    values = {**_CHANGES.get().values, **changes}
    # Before anything is looked up by them: invalid values may not be hashable.
    _changed(values)
    token = _CHANGES.set(_Changes(values, tuple((name, type(value), value) for name, value in sorted(values.items()))))
    try:
        yield current_options()
    finally:
        _CHANGES.reset(token)


@contextmanager
def preferring(target: str | None) -> Iterator[None]:
    """Simulate the generation ``target`` inside the ``with`` block, if neither :func:`using` nor the environment sets
    one.

    Args:
        target: the generation for which a kernel states that it is written; None changes nothing.
    """
    if target is None or "target" in _CHANGES.get().values or os.environ.get(TARGET_VARIABLE):
        yield
        return
    with using(target=target):
        yield


# The warnings given in this process: the type of the error, and the lines of the kernel.
_WARNED: set[tuple[type[NkiValidationError], tuple[str, ...]]] = set()
_LOCK = threading.Lock()  # both cores may reach the same line


def refuse(level: Level, error: NkiValidationError, *places: str) -> None:
    """Raise ``error``, warn of it, or do nothing, according to ``level``.

    The process warns only once of errors of the same type at the same ``places``.

    Args:
        level: the level of the check in the options.
        error: the error that the check found.
        places: the lines of the kernel that are involved, as ``file:line``; the warning shows the first one.

    Raises:
        NkiValidationError: ``error``, at the level ``"error"``.
        SimulatorWarning: at the level ``"warn"``, where Python's filters turn warnings into errors.
    """
    if level == "error":
        raise error
    if level == "ignore":
        return
    with _LOCK:
        if (type(error), places) in _WARNED:
            return
        _WARNED.add((type(error), places))
    file, _, line = places[0].rpartition(":")
    # The kernel's line and not the simulator's. No registry: Python would tell messages apart that differ in a number.
    warnings.warn_explicit(str(error), SimulatorWarning, file, int(line) if line.isdigit() else 0)


def forget_warnings() -> None:
    """Forget which warnings were given, so that all are given again as in a new process."""
    with _LOCK:
        _WARNED.clear()
