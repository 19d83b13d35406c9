# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The state of the running thread that the layers below the cores need: its generation, and whether it has data."""

from __future__ import annotations

import threading
from typing import Protocol

from .generation import Generation
from .options import current_options


class Simulated(Protocol):
    """The object that a thread simulates: a core of a launch."""

    @property
    def generation(self) -> Generation: ...

    @property
    def is_abstract(self) -> bool:
        """Whether the core's tensors have shapes and types and no memory; see spec.py."""

    @property
    def is_traced(self) -> bool:
        """Whether the rules of the tracer hold, under which no run-time value steers Python."""

    @property
    def loop_scope(self) -> tuple[int, ...]:
        """The current iterations of the dynamic loops around the current instruction; see loops.py."""


class _Thread(threading.local):
    """The state of a thread: the core that it simulates, or None outside a kernel."""

    simulated: Simulated | None = None


THREAD = _Thread()


def enter(simulated: Simulated | None) -> None:
    """Make this thread simulate a core; None ends the simulation."""
    THREAD.simulated = simulated


def is_abstract_launch() -> bool:
    """Return whether the running kernel has shapes and no data."""
    simulated = THREAD.simulated
    return simulated is not None and simulated.is_abstract


def current_generation() -> Generation:
    """Return the generation of the running kernel, or outside a kernel the one that the next launch would have."""
    simulated = THREAD.simulated
    return simulated.generation if simulated is not None else current_options().generation


def is_traced() -> bool:
    """Return whether the rules of the tracer hold for the running kernel, or outside a kernel for the next launch."""
    simulated = THREAD.simulated
    return simulated.is_traced if simulated is not None else current_options().frontend == "tracer"


def current_loop_scope() -> tuple[int, ...]:
    """Return the current iterations of the dynamic loops of the running kernel, outermost first."""
    simulated = THREAD.simulated
    return simulated.loop_scope if simulated is not None else ()
