# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``NkiInstruction``: the handle that a call of an instruction returns."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

from ..terms.enums import dependency
from ..terms.errors import NkiValidationError, add_location
from ..terms.objects import NKIObject
from ..terms.scopes import CORE, Scope, is_around, why_apart

# Numbers instructions in the order in which they are issued.
_NUMBERS = itertools.count()

_NO_KIND = (
    "depends_on() without kind= is deprecated since NKI 0.7, and a later release will require it: pass "
    "kind=nki.isa.dependency.runtime for what it has meant so far, or kind=nki.isa.dependency.schedule"
)


def check_kind(kind: Any) -> None:
    """Check that ``kind`` is a member of ``nki.isa.dependency``, or None.

    Raises:
        NkiValidationError: for anything else.
    """
    if kind is not None and not isinstance(kind, dependency):
        raise NkiValidationError(f"kind must be a member of nki.isa.dependency, got {kind!r}")


class NkiInstruction(NKIObject):
    """The handle that every instruction returns; :meth:`depends_on` orders the instruction after others.

    Attributes:
        scope: the scope in which the instruction was issued. For the simulator.
    """

    scope: Scope = ()

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.producers: tuple[NkiInstruction, ...] = ()
        self._number = next(_NUMBERS)

    def depends_on(self, *producers: NkiInstruction, kind: dependency | None = None) -> NkiInstruction:
        """Run this instruction after every producer.

        The simulator runs instructions in program order, so the method only checks and records the producers.

        Args:
            producers: instructions that were issued before.
            kind: ``runtime`` makes the hardware wait, ``schedule`` only keeps the compiler from issuing them in the
                opposite order. None means ``runtime`` and is deprecated since NKI 0.7.

        Returns:
            This instruction, so that calls can be chained.

        Raises:
            NkiValidationError: if a producer is not an instruction, or an instruction of another core or launch; if it
                was not issued before this one, so that the simulator has run the two in the opposite order; if, unless
                ``kind`` is ``schedule``, it is in a dynamic loop, or an iteration of one, that this one is not in; or
                if ``kind`` is something else.
        """
        if kind is None:
            warnings.warn(_NO_KIND, DeprecationWarning, stacklevel=2)
        try:
            check_kind(kind)
            for producer in producers:
                self._check_producer(producer, kind)
        except NkiValidationError as error:
            add_location(error, "NkiInstruction.depends_on")
            raise
        self.producers += producers
        return self

    def _check_producer(self, producer: Any, kind: dependency | None) -> None:
        if not isinstance(producer, NkiInstruction):
            raise NkiValidationError(f"a producer must be an instruction, got {producer!r}")
        if not is_around(producer.scope[:CORE], self.scope):
            apart = why_apart(producer.scope, self.scope, "")
            raise NkiValidationError(f"{self} cannot wait for {producer}, which {apart}")
        if producer._number >= self._number:
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is not issued before it: the simulator runs instructions in "
                f"program order"
            )
        # The order that a compiler keeps waits for nothing on the device.
        if kind is not dependency.schedule and not is_around(producer.scope, self.scope):
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is in a dynamic loop, or an iteration of one, that {self} "
                f"is not in; both must be in the same iteration, or the producer in an enclosing scope"
            )

    def __repr__(self) -> str:
        return f"<{self.handle}>"
