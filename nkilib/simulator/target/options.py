"""Options of a simulation: one frozen dataclass, its defaults, and how to change them for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal

from .generation import Generation
from .limits import generation

_ALLOWED = {
    "uninitialized": ("nan", "error"),
    "capacity": ("error", "ignore"),
    "races": ("error", "ignore"),
    "frontend": ("tracer", "custom"),
}

# AWS's variable for the way in which kernels are specialized, and what its values mean; unset is the tracer.
_FRONTEND_VARIABLE = "NKI_COMPILER_FRONTEND"
_FRONTENDS: dict[str, Literal["tracer", "custom"]] = {
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
        precise_fp: store bfloat16 and float8 in their own width. ``NKI_PRECISE_FP=0`` keeps them in float32, so that
            an error of the algorithm can be told from a rounding.
        uninitialized: what a read of an element that was never written gives: ``"nan"`` (NaN, and 4 in integers, as
            in AWS's simulator) or ``"error"`` (:class:`UninitializedReadError`).
        capacity: what happens at the end of a kernel whose live tensors do not fit SBUF or PSUM: ``"error"``
            (:class:`CapacityError`) or ``"ignore"``, as in AWS's simulator.
        races: what happens where the two cores access the same elements of a shared tensor, one of them writing,
            without a barrier in between: ``"error"`` (:class:`RaceError`) or ``"ignore"``, as in AWS's simulator.
        frontend: the rules for loops and registers: ``"tracer"``, those of NKI 0.7, where no run-time value steers
            Python; or ``"custom"``, those of 0.6, with ``nl.dynamic_range`` and ``while`` on a register. The
            environment variable ``NKI_COMPILER_FRONTEND`` sets it.
    """

    target: str = "trn2"
    precise_fp: bool = True
    uninitialized: Literal["nan", "error"] = "nan"
    capacity: Literal["error", "ignore"] = "error"
    races: Literal["error", "ignore"] = "error"
    frontend: Literal["tracer", "custom"] = "tracer"

    def __post_init__(self) -> None:
        generation(self.target)
        if not isinstance(self.precise_fp, bool):
            raise TypeError(f"Options.precise_fp must be a bool, got {self.precise_fp!r}")
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed:
                choices = " or ".join(f'"{choice}"' for choice in allowed)
                raise ValueError(f"Options.{name} must be {choices}, got {value!r}")

    @property
    def generation(self) -> Generation:
        return generation(self.target)

    @classmethod
    def from_environment(cls) -> Options:
        """Options as the environment variables of AWS's simulator set them.

        Raises:
            ValueError: if a variable has a value that is not documented.
        """
        precise = os.environ.get("NKI_PRECISE_FP", "1")
        if precise not in ("0", "1"):
            raise ValueError(f"NKI_PRECISE_FP must be 0 or 1, got {precise!r}")
        target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or cls.target
        frontend = os.environ.get(_FRONTEND_VARIABLE, "")
        if frontend not in _FRONTENDS:
            raise ValueError(f"{_FRONTEND_VARIABLE} must be tracer or custom, got {frontend!r}")
        try:
            return cls(target=target, precise_fp=precise == "1", frontend=_FRONTENDS[frontend])
        except ValueError as error:
            raise ValueError(f"NEURON_PLATFORM_TARGET_OVERRIDE: {error}") from None


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
    token = _CHANGES.set({**(_CHANGES.get() or {}), **changes})
    try:
        yield current_options()
    finally:
        _CHANGES.reset(token)
