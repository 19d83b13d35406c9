# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The running thread's core, for modules that must not import it: its generation, scope, and whether it has data."""

from __future__ import annotations

import threading
from typing import Protocol

from ..terms.scopes import Scope
from .generation import Generation
from .options import current_options


class Simulated(Protocol):
    """The properties of the core that a thread simulates, as far as this module needs them."""

    @property
    def generation(self) -> Generation: ...

    @property
    def is_abstract(self) -> bool:
        """Whether the core's tensors have shapes and types and no memory; see spec.py."""

    @property
    def is_traced(self) -> bool:
        """Whether the rules of NKI 0.7's tracer hold: Python cannot branch on values that only the device knows."""

    @property
    def scope(self) -> Scope:
        """The scope of the current instruction."""


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
    """Return whether NKI 0.7's tracer rules hold for the running kernel, or outside a kernel for the next launch."""
    simulated = THREAD.simulated
    return simulated.is_traced if simulated is not None else current_options().frontend == "tracer"


def current_scope() -> Scope:
    """Return the scope of the current instruction of the running kernel; the empty one outside a kernel."""
    simulated = THREAD.simulated
    return simulated.scope if simulated is not None else ()
