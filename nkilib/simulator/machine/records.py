# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Records of a launch: lifetimes of on-chip tensors, and counts of instructions and bytes.

:class:`Lives` has the lifetimes of one core's tensors and checks that the tensors fit; :class:`Record`, made by
:func:`recording`, counts the instructions of all cores and the bytes that they moved to and from HBM. :func:`lives_of`
finds the :class:`Lives` of a core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..hardware.generations import Generation
from ..hardware.options import Level, refuse
from ..memory.capacity import CertainUse, LiveRange, Peak, certain_overflow, certain_uses, check_capacity
from ..memory.storage import Storage
from ..tensors.view import View
from ..terms.enums import MemoryRegion
from ..terms.errors import CapacityError
from .loops import IterationCounters, LoopRun, Skip
from .observer import Issued, Observer, Observers, Watcher, watching


class Lives(Observer):
    """The lifetimes of the on-chip tensors of one core. A lifetime is the time in which a tensor holds data that is
    needed.

    The observer is also the check of capacity: it reports tensors that do not fit into SBUF or PSUM.

    Attributes:
        ranges: one :class:`LiveRange` for each tensor, in the order in which the tensors were made.
        peaks: for each region, the peak use and its tensors; known at the end of the kernel if ``finds_peaks`` is set.
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
        """Report that the live tensors certainly overflow a region of memory from this instruction on.

        Args:
            life: the lifetime of a tensor in the region.
            use: the memory that live tensors of the region certainly take.

        Raises:
            CapacityError: at the level ``"error"``.
        """
        if self._level == "ignore" or self._has_overflowed:
            return
        self._has_overflowed = True
        error = certain_overflow(self.ranges, self._generation, life.region, use.moment)
        refuse(self._level, error, error.made_at)

    def ended(self) -> None:
        """Report live tensors that do not fit at the end of the kernel, if this has not been reported before.

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
    """Return the :class:`Lives` among a core's observers."""
    lives = observers.find(Lives)
    assert lives is not None
    return lives


@dataclass
class Record:
    """Counts of everything that ran inside :func:`recording`, over all cores.

    Attributes:
        instruction_counts: the number of instructions by name, without the ``nisa.`` prefix.
        instructions_per_engine: the number of instructions by engine: tensor, vector, scalar, gpsimd, dma, sync.
        hbm_read_bytes: the bytes that DMA read from HBM.
        hbm_written_bytes: the bytes that DMA wrote to HBM.
        sbuf_peak_bytes, psum_peak_bytes: the largest number of bytes of a partition that live tensors took at one time,
            on any core; 0 with ``capacity="ignore"``, and with ``"warn"`` if the tensors do not fit.
    """

    instruction_counts: Counter[str] = field(default_factory=Counter)
    instructions_per_engine: Counter[str] = field(default_factory=Counter)
    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    sbuf_peak_bytes: int = 0
    psum_peak_bytes: int = 0

    def merge(self, other: Record) -> None:
        """Add the counts of ``other``, for instance of one core, to this record. Of two peaks, the higher one stays."""
        self.instruction_counts.update(other.instruction_counts)
        self.instructions_per_engine.update(other.instructions_per_engine)
        self.hbm_read_bytes += other.hbm_read_bytes
        self.hbm_written_bytes += other.hbm_written_bytes
        self.sbuf_peak_bytes = max(self.sbuf_peak_bytes, other.sbuf_peak_bytes)
        self.psum_peak_bytes = max(self.psum_peak_bytes, other.psum_peak_bytes)


class _Counting(Observer):
    """An observer that counts the instructions of one core and the bytes that they move."""

    def __init__(self, lives: Lives) -> None:
        self.record = Record()
        self._by_name = self.record.instruction_counts
        self._by_engine = self.record.instructions_per_engine
        self._lives = lives
        self._tally = IterationCounters(lambda: [self._by_name, self._by_engine])

    def issued(self, call: Issued) -> None:
        self._by_name[call.definition.name] += 1
        self._by_engine[call.engine._name_] += 1  # `name` is a property, ten times as slow

    def entered(self, loop: LoopRun) -> None:
        self._tally.enter()

    def iterated(self, loop: LoopRun) -> None:
        self._tally.iterate()

    def repeated(self, loop: LoopRun, skip: Skip) -> None:
        self._tally.repeat(skip)

    def left(self, loop: LoopRun) -> None:
        self._tally.leave()

    def moved(
        self, view: View, is_write: bool, rows: npt.NDArray[np.int64] | None, values: npt.NDArray[Any] | None
    ) -> None:
        elements = view.size if rows is None else len(rows) * view.free_size
        if is_write:
            self.record.hbm_written_bytes += elements * view.dtype.itemsize
        else:
            self.record.hbm_read_bytes += elements * view.dtype.itemsize

    def ended(self) -> None:
        for region, peak in self._lives.peaks.items():
            if region is MemoryRegion.sbuf:
                self.record.sbuf_peak_bytes = peak.nbytes
            else:
                self.record.psum_peak_bytes = peak.nbytes


class _Recording(Watcher):
    """A watcher that counts the work of all cores in one record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._cores: list[_Counting] = []

    def watch(self, number: int, observers: Observers) -> Observer:
        self._cores.append(_Counting(lives_of(observers)))
        return self._cores[-1]

    def conclude(self, has_ended: bool) -> None:
        for core in self._cores:
            self._record.merge(core.record)
        self._cores.clear()


@contextmanager
def recording() -> Iterator[Record]:
    """Record counts of the kernels launched inside the ``with`` block; the block gets the :class:`Record`.

    Example::

        with nkilib.simulator.recording() as record: kernel[2](logits)
        print(record.instructions_per_engine, record.hbm_read_bytes)
    """
    record = Record()
    with watching(_Recording(record)):
        yield record
