# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Who watches a core while a kernel runs: the model of time, the checks of capacity and of races, records.

None of them changes anything that the kernel can see, and what one knows of a storage it keeps itself, by its number.
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
from .loops import Turns
from .repetition import Skip


class Issued:
    """One call of an instruction.

    Attributes:
        definition: the instruction.
        values: its parameters, in the order of ``definition.names``, of which the last one is ``name=``; views that the
            core resolves stand there resolved.
        number: of the call on its core, from 1.
        engine: that runs it, as soon as that is known.
        reads: the tensors of which it needs what was there before.
        indirect: the operands that came as views of ``NkiTensor.indirect``.
        offsets: the dynamic parts of addresses that were read from a tensor, of operands that stand resolved.
        register: the number of the last instruction that loaded a register or a scalar from which an operand has its
            address; 0 if there is none.
        function: the function of ``nki.language`` that issued it; empty if the kernel did so itself.
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
    """Watches one core. It is told only of what it defines a method for."""

    def allocated(self, storage: Storage) -> None:
        """The kernel has made a tensor on chip."""
        return

    def issued(self, call: Issued) -> None:
        """An instruction has run."""
        return

    def moved(
        self, view: View, is_write: bool, rows: npt.NDArray[np.int64] | None, values: npt.NDArray[Any] | None
    ) -> None:
        """A transfer has read, or written, a tensor in HBM.

        Args:
            view: a static view.
            is_write: whether it writes.
            rows: which indices of dimension 0; None for all.
            values: what it writes, in the order of the elements; one element that stands for all; or None.
        """
        return

    def entered(self, loop: Turns) -> None:
        """A loop of the device starts."""
        return

    def iterated(self, loop: Turns) -> None:
        """The body of a loop of the device has run once more."""
        return

    def repeats(self, loop: Turns, left: int) -> Skip | None:
        """Which of the ``left`` iterations of a loop would only repeat its last ones; None if each has to run."""
        return None

    def repeated(self, loop: Turns, skip: Skip) -> None:
        """Iterations have not run that repeat the last ones."""
        return

    def left(self, loop: Turns) -> None:
        """A loop of the device has ended."""
        return

    def arrives(self, call: Issued) -> Any:
        """The core comes to a meeting with the other one: what the observer of that one is to know."""
        return None

    def meets(self, call: Issued, brought: Any) -> None:
        """Both cores have come; ``brought`` is what the other core's observer of this kind knows."""
        return

    def ended(self) -> None:
        """The kernel has come to its end without an error."""
        return


class Watcher(Protocol):
    """Has the cores of a launch observed."""

    def watch(self, number: int, observers: Observers) -> Observer:
        """The observer of a core; ``observers`` are those that it has already."""

    def exchanged(self, given: Set[int], returned: Set[int]) -> None:
        """All cores came to their end: the numbers of the storages that the caller gave, and that it gets back."""
        return

    def conclude(self, has_ended: bool) -> None:
        """The launch is over; ``has_ended`` says whether all cores came to their end without an error."""


_EVENTS = ("allocated", "issued", "moved", "entered", "iterated", "repeated", "left")
Kind = TypeVar("Kind")
# Every core of every launch has observers, of a few kinds.
_MOST_KINDS = 64


@lru_cache(maxsize=_MOST_KINDS)
def _events_of(kind: type[Observer]) -> tuple[str, ...]:
    """What an observer of a kind is told of: that which it defines a method for."""
    return tuple(event for event in _EVENTS if getattr(kind, event) is not getattr(Observer, event))


class Observers:
    """The observers of a core; those of an event are called one after the other.

    Attributes:
        allocated, issued, moved, entered, iterated, repeated, left: the methods that tell of these.
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
        """The observer of a kind, if there is one."""
        return next((observer for observer in self._all if isinstance(observer, kind)), None)

    def arrive(self, call: Issued) -> list[Any]:
        """The core comes to a meeting: what it brings for the observers of the other core."""
        return [observer.arrives(call) for observer in self._all]

    def meet(self, call: Issued, brought: list[Any]) -> None:
        """Both cores have come."""
        for observer, item in zip(self._all, brought, strict=True):
            observer.meets(call, item)

    def tell_entered(self, loop: Turns) -> None:
        """A loop of the device starts."""
        for tell in self.entered:
            tell(loop)

    def tell_iterated(self, loop: Turns) -> None:
        """The body of a loop of the device has run once more."""
        for tell in self.iterated:
            tell(loop)

    def repeats(self, loop: Turns, left: int) -> Skip | None:
        """What need not run of a loop: what the one observer says that models when things happen."""
        asked = [each for each in self._all if type(each).repeats is not Observer.repeats]
        return asked[0].repeats(loop, left) if len(asked) == 1 else None

    def tell_repeated(self, loop: Turns, skip: Skip) -> None:
        """Iterations have not run that repeat the last ones."""
        for tell in self.repeated:
            tell(loop, skip)

    def tell_left(self, loop: Turns) -> None:
        """A loop of the device has ended."""
        for tell in self.left:
            tell(loop)

    def end(self) -> None:
        """The kernel has come to its end."""
        for observer in self._all:
            observer.ended()


_WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("nkilib_simulator_watchers", default=())


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let ``watcher`` have the kernels observed that are launched inside the ``with`` block."""
    token = _WATCHERS.set((*_WATCHERS.get(), watcher))
    try:
        yield
    finally:
        _WATCHERS.reset(token)


def active_watchers() -> tuple[Watcher, ...]:
    """The watchers of the current context."""
    return _WATCHERS.get()
