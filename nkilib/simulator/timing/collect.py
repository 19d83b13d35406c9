# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Collection of the launches to profile: those inside the call of ``profile``."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager

from ..hardware.current import current_generation
from ..machine.lives import lives_of
from ..machine.observer import Observer, Observers, Watcher, watching
from .parameters import ModelParameters
from .trace import Trace


class Collection(Watcher):
    """The traces of the cores of all launches inside the ``with`` block of :func:`collecting`.

    Attributes:
        traces: the trace of each core.
        given, returned: the numbers of the storages that the caller passed to a kernel, and of those that it got back.
    """

    def __init__(self, parameters: ModelParameters) -> None:
        self.traces: list[Trace] = []
        self.given: Set[int] = frozenset()
        self.returned: Set[int] = frozenset()
        self._parameters = parameters

    def watch(self, number: int, observers: Observers) -> Observer:
        self.traces.append(Trace(number, lives_of(observers), current_generation(), self._parameters))
        return self.traces[-1]

    def exchanged(self, given: Set[int], returned: Set[int]) -> None:
        self.given |= given
        self.returned |= returned

    def conclude(self, has_ended: bool) -> None:
        """Do nothing, because a profile asks for the traces itself."""


@contextmanager
def collecting(parameters: ModelParameters) -> Iterator[Collection]:
    """Trace the kernels launched inside the ``with`` block."""
    collection = Collection(parameters)
    with watching(collection):
        yield collection
