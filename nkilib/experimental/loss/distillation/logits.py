# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The two logits for the two visits of Jensen-Shannon: kept on chip if rows fit, else read twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol

from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.stream import Rows
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.distillation.host.tiling import IN_FLIGHT, SPARE_CHUNKS, MixturePlan
from nkilib.experimental.loss.distillation.options import Launch, tile_dtype
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Span(Generic[Rows]):
    """The range of columns ``start`` to ``end`` of some rows, which is one chunk."""

    rows: Rows
    start: int
    end: int


@dataclass(frozen=True)
class Logits:
    """A chunk of student's and teacher's logits on chip, [rows, columns] each."""

    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class PairRing:
    """Ring buffers for chunks of student's and teacher's logits."""

    student: list[nl.NkiTensor]
    teacher: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: Launch, count: int) -> PairRing:
        """Allocate ring buffers of ``count`` chunks."""
        columns = launch.tiling.chunk_size
        student, teacher = tile_dtype(launch.student_hbm.dtype), tile_dtype(launch.teacher_hbm.dtype)
        return cls(ring_of(count, columns, student), ring_of(count, columns, teacher))

    def at(self, number: int, span: Span[Rows]) -> Logits:
        """Return the tiles of the ring that chunk ``number`` uses, with the rows and columns of ``span``."""
        rows, columns, slot = span.rows.rows, span.end - span.start, number % len(self.student)
        return Logits(self.student[slot][0:rows, 0:columns], self.teacher[slot][0:rows, 0:columns])

    def load(self, launch: Launch, number: int, span: Span[Rows]) -> None:
        """Issue the loads of chunk ``number``, whose logits are those of ``span``."""
        logits = self.at(number, span)
        nisa.dma_copy(dst=logits.student_sbuf, src=span.rows.part_of(launch.student_hbm, span.start, span.end))
        nisa.dma_copy(dst=logits.teacher_sbuf, src=span.rows.part_of(launch.teacher_hbm, span.start, span.end))


class LogitSource(Protocol):
    """A source of the chunks of some rows for two visits; chunks are numbered row after row."""

    def first(self, number: int) -> Logits:
        """Return a chunk for the first visit; call it once per chunk, or twice where maxima are taken before."""

    def second(self, number: int) -> Logits:
        """Return a chunk for the second visit; loads of later chunks may be in flight."""

    def release(self, number: int) -> None:
        """Release a chunk whose second visit is over."""


def spans_of(launch: Launch, rows: list[Rows]) -> list[Span[Rows]]:
    """Return the spans of all chunks, row after row."""
    size, columns = launch.tiling.chunk_size, launch.vocab_size
    return [Span(of_rows, start, min(start + size, columns)) for of_rows in rows for start in range(0, columns, size)]


@dataclass
class KeptLogits(Generic[Rows]):
    """A source that loads each chunk once and keeps it on chip until its second visit is over.

    Attributes:
        launch: the launch of the kernel.
        ring: the ring buffers, for the chunks of a row and a few more.
        spans: the spans of all chunks.
        loads: the number of chunks loaded.
    """

    launch: Launch
    ring: PairRing
    spans: list[Span[Rows]]
    loads: int = 0

    def __post_init__(self) -> None:
        """Fill the ring buffers."""
        self._load_to(len(self.ring.student))

    def first(self, number: int) -> Logits:
        """Implement ``LogitSource.first``."""
        return self.ring.at(number, self.spans[number])

    def second(self, number: int) -> Logits:
        """Implement ``LogitSource.second``."""
        return self.ring.at(number, self.spans[number])

    def release(self, number: int) -> None:
        """Implement ``LogitSource.release``: another chunk is loaded into the released slot."""
        self._load_to(number + 1 + len(self.ring.student))

    def _load_to(self, end: int) -> None:
        for number in range(self.loads, min(end, len(self.spans))):
            self.ring.load(self.launch, number, self.spans[number])
        self.loads = max(self.loads, min(end, len(self.spans)))


@dataclass
class LogitsReadTwice(Generic[Rows]):
    """A source that loads each chunk for each visit.

    Attributes:
        launch: the launch of the kernel.
        of_first, of_second: the ring buffers of the two visits.
        spans: the spans of all chunks.
        before: the number of chunks whose maxima are taken before all other visits.
        visited: the number of first visits so far.
        loads: the number of chunks loaded for second visits.
    """

    launch: Launch
    of_first: PairRing
    of_second: PairRing
    spans: list[Span[Rows]]
    before: int
    visited: int = 0
    loads: int = 0

    def first(self, number: int) -> Logits:
        """Implement ``LogitSource.first``."""
        start = 0 if self.visited == 0 else self.visited + IN_FLIGHT - 1
        visits = self.before + len(self.spans)
        for visit in range(start, min(self.visited + IN_FLIGHT, visits)):
            self.of_first.load(self.launch, visit, self._first_span(visit))
        logits = self.of_first.at(self.visited, self.spans[number])
        self.visited += 1
        return logits

    def second(self, number: int) -> Logits:
        """Implement ``LogitSource.second``."""
        for load in range(self.loads, min(number + IN_FLIGHT, len(self.spans))):
            self.of_second.load(self.launch, load, self.spans[load])
            self.loads = load + 1
        return self.of_second.at(number, self.spans[number])

    def release(self, number: int) -> None:
        """Do nothing: the ring is as long as the number of chunks that are opened ahead."""

    def _first_span(self, visit: int) -> Span[Rows]:
        return self.spans[visit if visit < self.before else visit - self.before]


@dataclass(frozen=True)
class MixtureRings:
    """The ring buffers into which logits are loaded.

    Attributes:
        launch: the launch of the kernel.
        keeps_rows: whether each chunk is loaded once.
        of_first, of_second: the ring buffers of the first and of the second visit; the same object if rows are kept.
    """

    launch: Launch
    keeps_rows: bool
    of_first: PairRing
    of_second: PairRing

    @classmethod
    def make(cls, launch: Launch, plan: MixturePlan) -> MixtureRings:
        """Allocate the ring buffers of a launch."""
        if plan.keeps_rows:
            chunks = div_ceil(launch.vocab_size, launch.tiling.chunk_size)
            ring = PairRing.make(launch, chunks + SPARE_CHUNKS)
            return cls(launch, True, ring, ring)
        return cls(launch, False, PairRing.make(launch, IN_FLIGHT), PairRing.make(launch, IN_FLIGHT + plan.group + 1))

    def source(self, rows: list[Rows], has_maxima: bool) -> LogitSource:
        """Return the source of the chunks of ``rows``, which are visited in this order.

        ``has_maxima`` says whether the maxima of whole rows are taken before the first visit.
        """
        spans = spans_of(self.launch, rows)
        if self.keeps_rows:
            return KeptLogits(self.launch, self.of_first, spans)
        return LogitsReadTwice(
            self.launch, self.of_first, self.of_second, spans, before=len(spans) if has_maxima else 0
        )
