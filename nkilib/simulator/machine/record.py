# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A record of a launch: instructions by name and engine, and bytes that crossed HBM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..tensors.view import View
from ..terms.regions import MemoryRegion
from .lives import Lives, lives_of
from .loops import LoopRun
from .observer import Issued, Observer, Observers, Watcher, watching
from .repetition import Skip, Tally


@dataclass
class Record:
    """Counts of everything that ran inside :func:`recording`, over all cores.

    Attributes:
        instruction_counts: the number of instructions by name, without the ``nisa.`` prefix.
        instructions_per_engine: the number of instructions by engine: tensor, vector, scalar, gpsimd, dma, sync.
        hbm_read_bytes: the bytes that DMA read from HBM.
        hbm_written_bytes: the bytes that DMA wrote to HBM.
        sbuf_peak_bytes, psum_peak_bytes: the most bytes of a partition that live tensors took at one time, on any core
            (0 with ``capacity="ignore"``, and where ``"warn"`` let a kernel pass that needs more than there is).
    """

    instruction_counts: Counter[str] = field(default_factory=Counter)
    instructions_per_engine: Counter[str] = field(default_factory=Counter)
    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    sbuf_peak_bytes: int = 0
    psum_peak_bytes: int = 0

    def merge(self, other: Record) -> None:
        """Add the counts of another record, for instance of one core, to this one; of two peaks keep the higher one."""
        self.instruction_counts.update(other.instruction_counts)
        self.instructions_per_engine.update(other.instructions_per_engine)
        self.hbm_read_bytes += other.hbm_read_bytes
        self.hbm_written_bytes += other.hbm_written_bytes
        self.sbuf_peak_bytes = max(self.sbuf_peak_bytes, other.sbuf_peak_bytes)
        self.psum_peak_bytes = max(self.psum_peak_bytes, other.psum_peak_bytes)


class _Counting(Observer):
    """An observer that counts the work of one core."""

    def __init__(self, lives: Lives) -> None:
        self.record = Record()
        self._by_name = self.record.instruction_counts
        self._by_engine = self.record.instructions_per_engine
        self._lives = lives
        self._tally = Tally(lambda: [self._by_name, self._by_engine])

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
    """Record the work of the kernels launched inside the ``with`` block.

    Example::

        with nkilib.simulator.recording() as record: kernel[2](logits)
        print(record.instructions_per_engine, record.hbm_read_bytes)
    """
    record = Record()
    with watching(_Recording(record)):
        yield record
