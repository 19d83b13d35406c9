# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The record of a launch from which a profile works out its tensors, instructions and findings on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ..memory.lives import LiveRange
from ..terms.regions import MemoryRegion
from ..timing.collect import Collection
from ..timing.event import Event, events_of
from ..timing.notes import Notes
from ..timing.trace import Trace
from .division import stored_by_every_core
from .tensors import TensorLife, lives_of
from .why.cores import Core, Launch, Model
from .why.report import Report, report_of

# A core: its number, its instructions, and its on-chip tensors.
_Core = tuple[int, Notes, Sequence[LiveRange]]


class Recorded:
    """The instructions and the on-chip tensors of a launch, each worked out when it is first asked for.

    Most profiles are only printed, which needs few of them. The record keeps the notes of the cores instead of their
    traces, because traces hold the tensors in HBM.
    """

    def __init__(self, collection: Collection, model: Model, busy_us: Mapping[str, float]) -> None:
        traces = collection.traces
        self._cores: Sequence[_Core] = [(trace.core, trace.settled.notes, trace.lives.ranges) for trace in traces]
        self._ends_ns = [trace.settled.timeline.end_ns for trace in traces]
        self._model = model
        self._busy_us = busy_us
        self._stored_by_every_core = stored_by_every_core(collection)
        self._peaks = {region: _highest(traces, region) for region in (MemoryRegion.sbuf, MemoryRegion.psum)}

    @cached_property
    def instructions(self) -> tuple[Event, ...]:
        """Every instruction, in the order of its core."""
        return tuple(event for core, notes, _ in self._cores for event in events_of(core, notes))

    @property
    def launch(self) -> Launch:
        """The notes of the cores, as the analysis of their critical path and waits takes them."""
        cores = [Core(*core, end_ns) for core, end_ns in zip(self._cores, self._ends_ns, strict=True)]
        return Launch(cores, self._model, self._stored_by_every_core)

    @cached_property
    def report(self) -> Report:
        """The findings, critical path and waits of the launch."""
        return report_of(self.launch, self._busy_us)

    @cached_property
    def tensors(self) -> tuple[TensorLife, ...]:
        """The lives of all on-chip tensors that are used: one for each core, tensor and iteration."""
        return tuple(life for core, notes, lives in self._cores for life in lives_of(core, lives, notes))

    @cached_property
    def sbuf_peak_tensors(self) -> tuple[TensorLife, ...]:
        """The tensors that are alive when the tensors take most bytes of SBUF, the largest first."""
        return self._peak_tensors(MemoryRegion.sbuf)

    @cached_property
    def psum_peak_tensors(self) -> tuple[TensorLife, ...]:
        """The tensors that are alive when the tensors take most bytes of PSUM, the largest first."""
        return self._peak_tensors(MemoryRegion.psum)

    def _peak_tensors(self, region: MemoryRegion) -> tuple[TensorLife, ...]:
        core, notes, lives = self._peaks[region]
        return tuple(sorted(lives_of(core, lives, notes, repeats=False), key=lambda life: -life.nbytes))

    def _all(self) -> dict[str, Any]:
        names = ("instructions", "report", "tensors", "sbuf_peak_tensors", "psum_peak_tensors")
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        return self._all() == other._all() if isinstance(other, Recorded) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        """Return all that the record can work out: its notes refer to the kernel's code, which cannot be pickled."""
        return self._all()


def _highest(traces: Sequence[Trace], region: MemoryRegion) -> _Core:
    """Return the core whose tensors take most bytes of a memory at one time, with the tensors alive at that time."""
    highest = max(traces, key=lambda trace: trace.lives.peaks[region].nbytes if region in trace.lives.peaks else 0)
    lives = highest.lives.peaks[region].lives if region in highest.lives.peaks else ()
    return highest.core, highest.settled.notes, lives
