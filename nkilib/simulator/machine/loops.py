"""Where a core is in its loops that run on the device: what they forbid depends on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from ..terms.errors import NkiValidationError

_NUMBERS = itertools.count()


class Loops:
    """The dynamic loops and the ``nl.no_reorder`` regions that a core is in.

    A bare ``while reg:`` is not seen: to the simulator it is a loop of Python.

    Attributes:
        scope: one number for each dynamic loop around the current instruction, outermost first. Every iteration has a
            new number: the device runs one copy of the body, so that no instruction of it can name one of an earlier
            iteration.
    """

    def __init__(self) -> None:
        self.scope: tuple[int, ...] = ()
        self._no_reorder_regions = 0

    def check_may_start(self, what: str) -> None:
        """Refuse the dynamic loop ``what`` where the documentation forbids one.

        Raises:
            NkiValidationError: within ``nl.no_reorder``.
        """
        if self._no_reorder_regions:
            raise NkiValidationError(
                f"{what}: a dynamic loop cannot be inside nl.no_reorder(); put that into the loop's body"
            )

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """One run of a dynamic loop's body."""
        outside = self.scope
        self.scope = (*outside, next(_NUMBERS))
        try:
            yield
        finally:
            self.scope = outside

    @contextmanager
    def no_reorder(self) -> Iterator[None]:
        """A region in which no dynamic loop may start."""
        self._no_reorder_regions += 1
        try:
            yield
        finally:
            self._no_reorder_regions -= 1
