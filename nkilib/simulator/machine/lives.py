# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The observer of capacity: when each on-chip tensor of a core holds data that is still needed."""

from __future__ import annotations

from ..hardware.generation import Generation
from ..hardware.options import Level
from ..memory.capacity import Peak, certain_overflow, certain_uses, check_capacity
from ..memory.certain import CertainUse
from ..memory.lives import LiveRange
from ..memory.storage import Storage
from ..terms.errors import CapacityError
from ..terms.regions import MemoryRegion
from .levels import refuse
from .observer import Issued, Observer, Observers


class Lives(Observer):
    """The lives of the on-chip tensors of one core.

    Attributes:
        ranges: all of them, in the order in which they were made.
        peaks: when each region needs most and for what, known at the end if somebody asks.
    """

    def __init__(self, generation: Generation, *, level: Level, finds_peaks: bool) -> None:
        self.ranges: list[LiveRange] = []
        self.peaks: dict[MemoryRegion, Peak] = {}
        self._generation = generation
        self._level = level
        self._finds_peaks = finds_peaks
        self._uses = certain_uses(generation)
        self._by_storage: dict[int, tuple[LiveRange, CertainUse]] = {}
        self._found = self._by_storage.get
        self._has_overflowed = False

    def allocated(self, storage: Storage) -> None:
        life = LiveRange(storage.region, storage.shape, storage.dtype, storage.name, storage.address, storage.number)
        self.ranges.append(life)
        self._by_storage[storage.number] = life, self._uses[storage.region]

    def issued(self, call: Issued) -> None:
        number, found_of = call.number, self._found
        for view in call.reads:
            found = found_of(view.storage.number)
            if found is None:
                continue
            life, use = found
            if life.window == use.window:
                life.last = number
            elif not use.touch(life, number):
                self._overflowed(life, use)
        for rule, position in call.definition.outputs:
            written = call.values[position]
            found = None if written is None else found_of(written.storage.number)
            if found is None:
                continue
            life, use = found
            if life.address is None or call.definition.is_matmul or rule.may_leave or not written.covers_storage():
                if life.window == use.window:
                    life.last = number
                elif not use.touch(life, number):
                    self._overflowed(life, use)
            elif not use.restart(life, number):  # what was there before is not needed any more
                self._overflowed(life, use)

    def _overflowed(self, life: LiveRange, use: CertainUse) -> None:
        """It is certain from this instruction on that the kernel does not fit.

        Raises:
            CapacityError: at the level ``"error"``.
        """
        if self._level == "ignore" or self._has_overflowed:
            return
        self._has_overflowed = True
        error = certain_overflow(self.ranges, self._generation, life.region, use.moment)
        refuse(self._level, error, error.made_at)

    def ended(self) -> None:
        """Refuse a kernel whose live tensors do not fit, if that was not certain before.

        Raises:
            CapacityError: as :func:`check_capacity`, at the level ``"error"``.
        """
        if self._level == "ignore" or self._has_overflowed:
            return
        try:
            self.peaks = check_capacity(self.ranges, self._generation, finds_peaks=self._finds_peaks)
        except CapacityError as error:
            refuse(self._level, error, error.made_at)


def lives_of(observers: Observers) -> Lives:
    """The lives that are watched of a core of which somebody asks for them."""
    lives = observers.find(Lives)
    assert lives is not None
    return lives
