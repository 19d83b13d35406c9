# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Observers of a core while a kernel runs: the performance model, checks of capacity and races, and records.

- :class:`Observer`: the interface, with a method for each event, such as an :class:`Issued` instruction;
  :class:`Observers`: all observers of a core.
- :class:`Watcher`: a factory of observers. :func:`watching` adds a watcher to the launches of a ``with`` block, and
  :func:`active_watchers` returns all watchers.

Observers change nothing that the kernel can see. An observer keeps its data about a storage by the storage's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..isa.definition import Definition
from ..isa.indirection import IndirectOperand
from ..memory.storage import Storage
from ..tensors.view import Indirect, View
from ..terms.enums import Engine
from .loops import LoopRun, Skip


class Issued:
    """One call of an instruction.

    Attributes:
        definition: the definition of the instruction.
        values: the arguments, in the order of ``definition.names``; the last one is ``name=``. A view whose
            run-time address the core resolves is replaced by the static view to which it points.
        number: the number of the call on its core, from 1.
        engine: the engine that runs the call; before it is chosen, the default engine.
        reads: the tensors whose previous contents the instruction needs.
        indirect: the operands that were passed as views of ``NkiTensor.indirect``.
        offsets: the run-time scalar addresses of the views that were replaced in ``values``.
        register: the number of the last instruction that loaded a register or a scalar that is part of an operand's
            address; 0 if there is none.
        function: the function of ``nki.language`` that issued the call; empty if the kernel issued it directly.
    """

    __slots__ = ("definition", "engine", "function", "indirect", "number", "offsets", "reads", "register", "values")

    definition: Definition
    values: list[Any]
    number: int
    engine: Engine
    reads: list[View]
    register: int
    indirect: list[IndirectOperand]
    offsets: list[Indirect]
    function: str


class Observer(Protocol):
    """The interface of an observer of one core. An observer is notified of an event only if it defines the method."""

    def allocated(self, storage: Storage) -> None:
        """Handle a new on-chip tensor of the kernel."""
        return

    def issued(self, call: Issued) -> None:
        """Handle an instruction that has run."""
        return

    def moved(
        self, view: View, is_write: bool, rows: npt.NDArray[np.int64] | None, values: npt.NDArray[Any] | None
    ) -> None:
        """Handle a transfer that has read or written a tensor in HBM.

        Args:
            view: the static view that was accessed.
            is_write: whether the transfer writes.
            rows: the accessed indices of dimension 0; None for all.
            values: the written values, in the order of the elements, or one element if all are equal; None for a read,
                or if the launch did not compute them.
        """
        return

    def entered(self, loop: LoopRun) -> None:
        """Handle the start of a device loop."""
        return

    def iterated(self, loop: LoopRun) -> None:
        """Handle the end of an iteration of a device loop."""
        return

    def repeats(self, loop: LoopRun, left: int) -> Skip | None:
        """Return which of the ``left`` remaining iterations of a loop only repeat the last ones that ran and can be
        skipped.

        None means that all have to run.
        """
        return None

    def repeated(self, loop: LoopRun, skip: Skip) -> None:
        """Handle iterations that were skipped because they repeat the last ones that ran."""
        return

    def left(self, loop: LoopRun) -> None:
        """Handle the end of a device loop."""
        return

    def arrives(self, call: Issued) -> Any:
        """Return data for the other core's observer of this class, when this core arrives at a barrier or an exchange
        of tiles.
        """
        return None

    def meets(self, call: Issued, brought: Any) -> None:
        """Handle the completion of a barrier or an exchange of tiles.

        Args:
            call: the instruction on this core.
            brought: the data that :meth:`arrives` returned for the other core's observer of this class.
        """
        return

    def ended(self) -> None:
        """Handle the end of the kernel without an error."""
        return


class Watcher(Protocol):
    """A factory that makes an observer for each core of a launch."""

    def watch(self, number: int, observers: Observers) -> Observer:
        """Return a new observer of core number ``number``; ``observers`` are the observers that the core already
        has.
        """

    def exchanged(self, given: Set[int], returned: Set[int]) -> None:
        """Handle the end of all cores, when it is known which tensors the caller gets back.

        Args:
            given: the numbers of the storages that the caller passed to the kernel.
            returned: the numbers of the storages that the caller gets back.
        """
        return

    def conclude(self, has_ended: bool) -> None:
        """Handle the end of the launch. ``has_ended`` is True if all cores have ended without an error."""


_EVENTS = ("allocated", "issued", "moved", "entered", "iterated", "repeated", "left")
Kind = TypeVar("Kind")
# Every core of every launch has observers, of a few kinds.
_MOST_KINDS = 64


@lru_cache(maxsize=_MOST_KINDS)
def _events_of(kind: type[Observer]) -> tuple[str, ...]:
    return tuple(event for event in _EVENTS if getattr(kind, event) is not getattr(Observer, event))


class Observers:
    """The observers of a core; the observers of an event are notified one after the other.

    Attributes:
        allocated, issued, moved, entered, iterated, repeated, left: for each event, the bound methods of the observers
            that define the method of this name.
    """

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self.allocated: list[Any] = []
        self.issued: list[Any] = []
        self.moved: list[Any] = []
        self.entered: list[Any] = []
        self.iterated: list[Any] = []
        self.repeated: list[Any] = []
        self.left: list[Any] = []

    def add(self, observer: Observer) -> None:
        self._all.append(observer)
        for event in _events_of(type(observer)):
            getattr(self, event).append(getattr(observer, event))

    def find(self, kind: type[Kind]) -> Kind | None:
        """Return the observer of the class ``kind``; None if the core has none."""
        return next((observer for observer in self._all if isinstance(observer, kind)), None)

    def arrive(self, call: Issued) -> list[Any]:
        """Return, for each observer of this core, the data for the observer of the same class on the other core.

        This is called when this core arrives at a barrier or an exchange of tiles.
        """
        return [observer.arrives(call) for observer in self._all]

    def meet(self, call: Issued, brought: list[Any]) -> None:
        """Notify the observers that both cores have arrived; ``brought`` is the result of :meth:`arrive` on the other
        core.
        """
        for observer, item in zip(self._all, brought, strict=True):
            observer.meets(call, item)

    def tell_entered(self, loop: LoopRun) -> None:
        """Notify the observers that a device loop starts."""
        for tell in self.entered:
            tell(loop)

    def tell_iterated(self, loop: LoopRun) -> None:
        """Notify the observers that an iteration of a device loop has ended."""
        for tell in self.iterated:
            tell(loop)

    def repeats(self, loop: LoopRun, left: int) -> Skip | None:
        """Return which of the ``left`` remaining iterations of a loop can be skipped; None if none.

        The only observer that defines ``repeats`` decides. With no such observer, or with several, no iteration is
        skipped.
        """
        asked = [observer for observer in self._all if type(observer).repeats is not Observer.repeats]
        return asked[0].repeats(loop, left) if len(asked) == 1 else None

    def tell_repeated(self, loop: LoopRun, skip: Skip) -> None:
        """Notify the observers that iterations were skipped because they repeat the last ones that ran."""
        for tell in self.repeated:
            tell(loop, skip)

    def tell_left(self, loop: LoopRun) -> None:
        """Notify the observers that a device loop has ended."""
        for tell in self.left:
            tell(loop)

    def end(self) -> None:
        """Notify the observers that the kernel has ended."""
        for observer in self._all:
            observer.ended()


_WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("nkilib_simulator_watchers", default=())


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let ``watcher`` observe the kernels that are launched inside the ``with`` block."""
    token = _WATCHERS.set((*_WATCHERS.get(), watcher))
    try:
        yield
    finally:
        _WATCHERS.reset(token)


def active_watchers() -> tuple[Watcher, ...]:
    """Return the watchers that :func:`watching` has added in the current context."""
    return _WATCHERS.get()
