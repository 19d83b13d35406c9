# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The observer of capacity: it records when each on-chip tensor of a core holds data that is still needed."""

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
    """The lifetimes of the on-chip tensors of one core.

    Attributes:
        ranges: all lifetimes, in the order in which the tensors were made.
        peaks: for each region, the peak use and its tensors; known at the end if ``finds_peaks`` is set.
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
            entry = found_of(view.storage.number)
            if entry is None:
                continue
            life, use = entry
            if life.window == use.window:
                life.last = number
            elif not use.touch(life, number):
                self._overflowed(life, use)
        for rule, position in call.definition.outputs:
            written = call.values[position]
            entry = None if written is None else found_of(written.storage.number)
            if entry is None:
                continue
            life, use = entry
            if life.address is None or call.definition.is_matmul or rule.may_leave or not written.covers_storage():
                if life.window == use.window:
                    life.last = number
                elif not use.touch(life, number):
                    self._overflowed(life, use)
            elif not use.restart(life, number):  # the earlier content is no longer needed
                self._overflowed(life, use)

    def _overflowed(self, life: LiveRange, use: CertainUse) -> None:
        """Report that the kernel certainly does not fit from this instruction on.

        Raises:
            CapacityError: at the level ``"error"``.
        """
        if self._level == "ignore" or self._has_overflowed:
            return
        self._has_overflowed = True
        error = certain_overflow(self.ranges, self._generation, life.region, use.moment)
        refuse(self._level, error, error.made_at)

    def ended(self) -> None:
        """Report a kernel whose live tensors do not fit, if that was not certain before.

        Raises:
            CapacityError: the error of :func:`check_capacity`, at the level ``"error"``.
        """
        if self._level == "ignore" or self._has_overflowed:
            return
        try:
            self.peaks = check_capacity(self.ranges, self._generation, finds_peaks=self._finds_peaks)
        except CapacityError as error:
            refuse(self._level, error, error.made_at)


def lives_of(observers: Observers) -> Lives:
    """Return the lifetimes among a core's observers, which must include them."""
    lives = observers.find(Lives)
    assert lives is not None
    return lives
