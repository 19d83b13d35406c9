"""What a launch did: instructions by name and engine, and bytes that crossed HBM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Record:
    """Counts of everything that ran while it was collected, over all cores.

    Attributes:
        instruction_counts: number of instructions by name, without the ``nisa.`` prefix.
        instructions_per_engine: number of instructions by engine: tensor, vector, scalar, gpsimd, dma, sync.
        hbm_read_bytes: bytes that DMA read from HBM.
        hbm_written_bytes: bytes that DMA wrote to HBM.
        sbuf_peak_bytes, psum_peak_bytes: most bytes of a partition that live tensors took at one time, on any core
            (0 with ``capacity="ignore"``).
    """

    instruction_counts: Counter[str] = field(default_factory=Counter)
    instructions_per_engine: Counter[str] = field(default_factory=Counter)
    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    sbuf_peak_bytes: int = 0
    psum_peak_bytes: int = 0

    def add(self, name: str, engine: str) -> None:
        """Count one instruction."""
        self.instruction_counts[name] += 1
        self.instructions_per_engine[engine] += 1

    def merge(self, other: Record) -> None:
        """Add the counts of another record, for instance of one core, to this one; of peaks the higher one stays."""
        self.instruction_counts.update(other.instruction_counts)
        self.instructions_per_engine.update(other.instructions_per_engine)
        self.hbm_read_bytes += other.hbm_read_bytes
        self.hbm_written_bytes += other.hbm_written_bytes
        self.sbuf_peak_bytes = max(self.sbuf_peak_bytes, other.sbuf_peak_bytes)
        self.psum_peak_bytes = max(self.psum_peak_bytes, other.psum_peak_bytes)


_ACTIVE: ContextVar[tuple[Record, ...]] = ContextVar("nkilib_simulator_records", default=())


@contextmanager
def recording() -> Iterator[Record]:
    """Collect what the kernels launched inside the ``with`` block do.

    Example::

        with nkilib.simulator.recording() as record:
            kernel[2](logits)
        print(record.instructions_per_engine, record.hbm_read_bytes)
    """
    record = Record()
    token = _ACTIVE.set((*_ACTIVE.get(), record))
    try:
        yield record
    finally:
        _ACTIVE.reset(token)


def active_records() -> tuple[Record, ...]:
    """The records that the current context collects into."""
    return _ACTIVE.get()
