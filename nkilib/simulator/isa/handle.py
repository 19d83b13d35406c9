"""``NkiInstruction``: what a call of an instruction returns."""

from __future__ import annotations

import itertools
from typing import Any

from ..terms.errors import NkiValidationError, add_location
from ..terms.objects import NKIObject

# Numbers instructions in the order in which they are issued.
_NUMBERS = itertools.count()


class NkiInstruction(NKIObject):
    """The handle that every instruction returns; orders it after others with :meth:`depends_on`."""

    # The dynamic loops around the instruction; see loops.py.
    _scope: tuple[int, ...] = ()

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.producers: tuple[NkiInstruction, ...] = ()
        self._number = next(_NUMBERS)

    def issued_in(self, scope: tuple[int, ...]) -> NkiInstruction:
        """This instruction, which remembers the dynamic loops in whose bodies it was issued. For the simulator."""
        self._scope = scope
        return self

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Run after every producer. Here instructions run in program order, so this only checks and remembers.

        Returns:
            This instruction, so that calls chain.

        Raises:
            NkiValidationError: if a producer is no instruction, was not issued before this one, so that the simulator
                has run the two the other way round, or is in a dynamic loop, or an iteration of one, that this one is
                not in.
        """
        try:
            for producer in producers:
                self._check_producer(producer)
        except NkiValidationError as error:
            add_location(error, "NkiInstruction.depends_on")
            raise
        self.producers += producers
        return self

    def _check_producer(self, producer: Any) -> None:
        if not isinstance(producer, NkiInstruction):
            raise NkiValidationError(f"a producer must be an instruction, got {producer!r}")
        if producer._number >= self._number:
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is not issued before it: the simulator runs instructions in "
                f"program order"
            )
        if self._scope[: len(producer._scope)] != producer._scope:
            raise NkiValidationError(
                f"{self} cannot wait for {producer}, which is in a dynamic loop, or an iteration of one, that {self} "
                f"is not in; both must be in the same iteration, or the producer in an enclosing scope"
            )

    def __repr__(self) -> str:
        return f"<{self.handle}>"
