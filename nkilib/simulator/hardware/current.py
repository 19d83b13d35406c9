# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the running thread simulates, as far as those must know who are below the cores: its generation, and whether
it has data."""

from __future__ import annotations

import threading
from typing import Protocol

from .generation import Generation
from .options import current_options


class Simulated(Protocol):
    """What a thread simulates: a core of a launch."""

    @property
    def generation(self) -> Generation: ...

    @property
    def is_abstract(self) -> bool:
        """Whether its tensors have shapes and types and no memory; see spec.py."""

    @property
    def is_traced(self) -> bool:
        """Whether the rules of the tracer hold, by which no run-time value steers Python."""

    @property
    def loop_scope(self) -> tuple[int, ...]:
        """The iterations of dynamic loops that it is in; see loops.py."""


class _Thread(threading.local):
    """What is known of a thread: what it simulates, or None outside a kernel."""

    simulated: Simulated | None = None


THREAD = _Thread()


def enter(simulated: Simulated | None) -> None:
    """Make this thread simulate a core; None ends it."""
    THREAD.simulated = simulated


def is_abstract_launch() -> bool:
    """Whether the running kernel has shapes and no data."""
    simulated = THREAD.simulated
    return simulated is not None and simulated.is_abstract


def current_generation() -> Generation:
    """The generation of the running kernel, or the one that the next launch would have."""
    simulated = THREAD.simulated
    return simulated.generation if simulated is not None else current_options().generation


def is_traced() -> bool:
    """Whether the rules of the tracer hold for the running kernel, or would for the next launch."""
    simulated = THREAD.simulated
    return simulated.is_traced if simulated is not None else current_options().frontend == "tracer"


def current_loop_scope() -> tuple[int, ...]:
    """The iterations of dynamic loops that the running kernel is in, outermost first."""
    simulated = THREAD.simulated
    return simulated.loop_scope if simulated is not None else ()
