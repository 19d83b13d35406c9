# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of Jensen-Shannon, and L, the log of the ratio of the mixture to the student's probability.

With the teacher's probability P, the student's Q, M = beta P + (1 - beta) Q and r = log(P / Q),

L = log(M / Q) = log(beta e^r + 1 - beta) = softplus(r + log(beta / (1 - beta))) + log(1 - beta).

The Scalar engine computes this in one activation function, for any size of r; the backward does the same
(:class:`Mixture`).

T is the temperature. *Rows* are the positions; the *shift* of a row is subtracted from its logits before exponentials
are taken; a *chunk* is some columns of a batch of rows. The *differences* of a chunk are the teacher's logits minus the
student's. The forward (:class:`MixtureForward`) visits each row twice. Both logits of a row stay on chip between the
passes if they fit (:class:`KeptLogits`), else they are read twice (:class:`LogitsReadTwice`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import log, log1p
from typing import Generic, Protocol

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.sbuf import ring_of
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.stream import Rows
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.distillation.launch import POSITIONS, Launch, tile_dtype
from nkilib.experimental.loss.distillation.pair import load_columns
from nkilib.experimental.loss.distillation.tiling import (
    IN_FLIGHT,
    SAMPLE_COLUMNS,
    SPARE_CHUNKS,
    MixturePlan,
    mixture_plan,
)
from nkilib.experimental.loss.distillation.totals import (
    ChunkSums,
    Totals,
    center,
    sum_of_products,
)
from nkilib.nki import nisa, nl

# A logit this far below its row's shift, times T, is raised to that: its exponential is nothing beside a sum of 0.5 or
# more, and ratios stay small enough for float32.
_FAR_BELOW = 60.0
# Groups of rows whose sums are gathered at a time.
_ROWS_IN_FLIGHT = 2


@dataclass(frozen=True)
class Mixture:
    """The constants that depend on beta.

    Attributes:
        log_odds: log(beta / (1 - beta)).
        log_rest: log(1 - beta).
    """

    log_odds: float
    log_rest: float

    @classmethod
    def of(cls, launch: Launch) -> Mixture:
        """Return the constants of a launch whose beta is strictly between 0 and 1."""
        beta = launch.options.beta
        return cls(log(beta) - log1p(-beta), log1p(-beta))

    def bias(self, center_sbuf: nl.NkiTensor, scale: Scale) -> nl.NkiTensor:
        """Return the bias of :func:`take_logs`, log(beta / (1 - beta)) - c / T.

        Args:
            center_sbuf: c, chosen so that the differences minus c are T * r.
            scale: 1 / T.
        """
        bias_sbuf = float32_like(center_sbuf)
        scale.by(-1.0).take_sum(bias_sbuf, center_sbuf, self.log_odds)
        return bias_sbuf


def take_logs(
    dst: nl.NkiTensor, difference_sbuf: nl.NkiTensor, scale: float | nl.NkiTensor, bias_sbuf: nl.NkiTensor
) -> None:
    """Compute L - log(1 - beta) of rows from their differences.

    Args:
        dst: the result, in the shape of the differences.
        difference_sbuf: the differences, [rows, columns].
        scale: 1 / T, a number or [rows, 1].
        bias_sbuf: the result of :meth:`Mixture.bias`, [rows, 1].
    """
    nisa.activation(dst=dst, op=nl.softplus, data=difference_sbuf, scale=scale, bias=bias_sbuf)


def center_of(totals: Totals) -> nl.NkiTensor:
    """Return T * (lse of the teacher - lse of the student), after the sums of exponentials of both are complete."""
    return center(totals.teacher, totals.student, totals.temperature)


@dataclass(frozen=True)
class Span(Generic[Rows]):
    """The columns ``start`` to ``end`` of some rows, which are loaded as one chunk."""

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
        """Return the slots of chunk ``number`` in the ring buffers, cut to the rows and columns of ``span``."""
        rows, columns, slot = span.rows.rows, span.end - span.start, number % len(self.student)
        return Logits(self.student[slot][0:rows, 0:columns], self.teacher[slot][0:rows, 0:columns])

    def load(self, launch: Launch, number: int, span: Span[Rows]) -> None:
        """Issue the loads of chunk ``number``: the logits of ``span``."""
        logits = self.at(number, span)
        load_columns(span.rows, launch.student_hbm, span.start, span.end, logits.student_sbuf)
        load_columns(span.rows, launch.teacher_hbm, span.start, span.end, logits.teacher_sbuf)


class LogitSource(Protocol):
    """A source of the chunks of some rows, which are used in a first and in a second pass.

    Chunks are numbered row after row.
    """

    def first(self, number: int) -> Logits:
        """Return a chunk for the first pass; call it once per chunk, or twice where maxima are taken before."""

    def second(self, number: int) -> Logits:
        """Return a chunk for the second pass; loads of later chunks may be in flight."""

    def release(self, number: int) -> None:
        """Release a chunk whose second pass is over."""


def spans_of(launch: Launch, rows: list[Rows]) -> list[Span[Rows]]:
    """Return the spans of all chunks, row after row."""
    size, columns = launch.tiling.chunk_size, launch.row_columns
    return [Span(of_rows, start, min(start + size, columns)) for of_rows in rows for start in range(0, columns, size)]


@dataclass
class KeptLogits(Generic[Rows]):
    """A source that loads each chunk once and keeps it on chip until its second pass is over.

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
        self._load_to(len(self.ring.student))

    def first(self, number: int) -> Logits:
        return self.ring.at(number, self.spans[number])

    def second(self, number: int) -> Logits:
        return self.ring.at(number, self.spans[number])

    def release(self, number: int) -> None:
        self._load_to(number + 1 + len(self.ring.student))

    def _load_to(self, end: int) -> None:
        for number in range(self.loads, min(end, len(self.spans))):
            self.ring.load(self.launch, number, self.spans[number])
        self.loads = max(self.loads, min(end, len(self.spans)))


@dataclass
class LogitsReadTwice(Generic[Rows]):
    """A source that loads each chunk for each pass.

    Attributes:
        launch: the launch of the kernel.
        of_first, of_second: the ring buffers of the two passes.
        spans: the spans of all chunks.
        before: the number of chunks that are read an additional time first, for the maxima of rows.
        visited: the number of chunks whose first pass has begun.
        loads: the number of chunks loaded for second passes.
    """

    launch: Launch
    of_first: PairRing
    of_second: PairRing
    spans: list[Span[Rows]]
    before: int
    visited: int = 0
    loads: int = 0

    def first(self, number: int) -> Logits:
        start = 0 if self.visited == 0 else self.visited + IN_FLIGHT - 1
        visits = self.before + len(self.spans)
        for visit in range(start, min(self.visited + IN_FLIGHT, visits)):
            self.of_first.load(self.launch, visit, self._first_span(visit))
        logits = self.of_first.at(self.visited, self.spans[number])
        self.visited += 1
        return logits

    def second(self, number: int) -> Logits:
        for load in range(self.loads, min(number + IN_FLIGHT, len(self.spans))):
            self.of_second.load(self.launch, load, self.spans[load])
            self.loads = load + 1
        return self.of_second.at(number, self.spans[number])

    def release(self, number: int) -> None:
        """Do nothing: ring buffers have a slot for every chunk that is loaded ahead of the current one."""

    def _first_span(self, visit: int) -> Span[Rows]:
        return self.spans[visit if visit < self.before else visit - self.before]


@dataclass(frozen=True)
class MixtureRings:
    """The ring buffers into which logits are loaded.

    Attributes:
        launch: the launch of the kernel.
        keeps_rows: whether each chunk is loaded once.
        of_first, of_second: the ring buffers of the first and of the second pass; the same object if rows are kept.
    """

    launch: Launch
    keeps_rows: bool
    of_first: PairRing
    of_second: PairRing

    @classmethod
    def make(cls, launch: Launch, plan: MixturePlan) -> MixtureRings:
        """Allocate the ring buffers of a launch."""
        if plan.keeps_rows:
            chunks = div_ceil(launch.row_columns, launch.tiling.chunk_size)
            ring = PairRing.make(launch, chunks + SPARE_CHUNKS)
            return cls(launch, True, ring, ring)
        return cls(launch, False, PairRing.make(launch, IN_FLIGHT), PairRing.make(launch, IN_FLIGHT + plan.group + 1))

    def source(self, rows: list[Rows], has_maxima: bool) -> LogitSource:
        """Return the source of the chunks of ``rows``, which are visited in this order.

        ``has_maxima`` says whether the maxima of whole rows are taken before the first pass.
        """
        spans = spans_of(self.launch, rows)
        if self.keeps_rows:
            return KeptLogits(self.launch, self.of_first, spans)
        return LogitsReadTwice(
            self.launch, self.of_first, self.of_second, spans, before=len(spans) if has_maxima else 0
        )


@dataclass(frozen=True)
class Tiles:
    """Float32 tiles of a chunk's size, used round-robin for each purpose.

    Attributes:
        differences_sbuf: the differences, for a group of chunks and one chunk of the next group.
        logs_sbuf: the softplus terms s of :class:`MixtureForward`, for a group of chunks.
        weights: exponentials that are multiplied.
        unread_sbuf: exponentials that are only summed, bfloat16.
    """

    differences_sbuf: list[nl.NkiTensor]
    logs_sbuf: list[nl.NkiTensor]
    weights: list[nl.NkiTensor]
    unread_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, chunk_size: int, plan: MixturePlan) -> Tiles:
        """Allocate the tiles for chunks of ``chunk_size`` columns, as many as a plan needs."""

        def tiles(count: int, buffer: nl.MemoryRegion = nl.sbuf) -> list[nl.NkiTensor]:
            return [nl.ndarray((POSITIONS, chunk_size), dtype=nl.float32, buffer=buffer) for _ in range(count)]

        unread_sbuf = nl.ndarray((POSITIONS, chunk_size), dtype=nl.bfloat16, buffer=nl.sbuf)
        weights = tiles(plan.weights, nl.psum if plan.keeps_rows else nl.sbuf)
        return cls(tiles(plan.group + 1), tiles(plan.group), weights, unread_sbuf)


@dataclass(frozen=True)
class _Floors:
    """The floor of each row of student and teacher, float32 [rows, 1]: logits below it are raised to it."""

    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor

    @classmethod
    def of(cls, totals: Totals) -> _Floors:
        sides, far_below = (totals.student, totals.teacher), totals.temperature.by(_FAR_BELOW)
        floors = [float32_like(side.neg_shift_sbuf) for side in sides]
        for floor_sbuf, side in zip(floors, sides, strict=True):
            nisa.tensor_scalar(
                dst=floor_sbuf,
                data=side.neg_shift_sbuf,
                op0=nl.multiply,
                operand0=-1.0,
                op1=nl.subtract,
                operand1=far_below.of(0),
            )
        return cls(*floors)


def _raise_to_floors(logits_sbuf: nl.NkiTensor, floor_sbuf: nl.NkiTensor) -> None:
    columns = logits_sbuf.shape[1]
    half = columns // 2 if logits_sbuf.dtype == nl.float32 else 0
    first_sbuf = logits_sbuf[:, 0 : columns - half]
    nisa.tensor_scalar(dst=first_sbuf, data=first_sbuf, op0=nl.maximum, operand0=floor_sbuf)
    if half > 0:
        second_sbuf = logits_sbuf[:, columns - half : columns]
        nisa.tensor_tensor(
            dst=second_sbuf,
            data1=second_sbuf,
            data2=floor_sbuf.broadcast(1, half),
            op=nl.maximum,
            engine=nisa.engine.gpsimd,
        )


@dataclass(frozen=True)
class Opened:
    """A chunk of the second pass: its logits, and their differences.

    The differences are later replaced by w of :class:`MixtureForward`.
    """

    logits: Logits
    difference_sbuf: nl.NkiTensor


@dataclass
class _BothVisits:
    """The processing of a list of rows, with both passes over each of them.

    Attributes:
        walk: the forward, whose memory all rows share.
        source: the source of the logits.
        totals: the totals of each entry of the list.
        chunks: the number of chunks per row.
        has_maxima, at_shifts, at_sums: see ``MixtureForward.visit``.
        summed: the number of chunks whose first pass is over.
        opened: the chunks whose differences are computed, before their second pass, by number.
    """

    walk: MixtureForward
    source: LogitSource
    totals: list[Totals]
    chunks: int
    has_maxima: bool
    at_shifts: Callable[[int], None]
    at_sums: Callable[[int], None]
    summed: int = 0
    opened: dict[int, Opened] = field(default_factory=dict)
    _floors: dict[int, _Floors] = field(default_factory=dict)

    def take_maxima(self) -> None:
        for chunk in range(self.chunks):
            logits = self.source.first(chunk)
            self.totals[0].student.take_shift(logits.student_sbuf, 0, chunk > 0)
            self.totals[0].teacher.take_shift(logits.teacher_sbuf, 0, chunk > 0)

    def sum_exponentials(self, number: int, chunk: int) -> None:
        """Sum the exponentials of chunk ``chunk`` of entry ``number`` of the list (the first pass)."""
        if number >= len(self.totals) or chunk < 0:
            return
        logits, totals = self.source.first(number * self.chunks + chunk), self.totals[number]
        rows, columns = logits.student_sbuf.shape
        if chunk == 0 and not self.has_maxima:
            sample = min(columns, SAMPLE_COLUMNS)
            totals.student.take_shift(logits.student_sbuf[:, 0:sample], 0)
            totals.teacher.take_shift(logits.teacher_sbuf[:, 0:sample], 0)
            self.at_shifts(number)
        unread_sbuf, sums = self.walk.tiles.unread_sbuf[0:rows, 0:columns], self._sums(number)
        totals.teacher.take(unread_sbuf, logits.teacher_sbuf, 0, sums.weighting.part(chunk, rows))
        totals.student.take(unread_sbuf, logits.student_sbuf, 0, sums.other.part(chunk, rows))
        self.summed += 1

    def close_exponentials(self, number: int) -> None:
        if number < len(self.totals):
            self._sums(number).weighting.total(self.totals[number].teacher.sums_sbuf, self.chunks)
            self._sums(number).other.total(self.totals[number].student.sums_sbuf, self.chunks)
            self.at_sums(number)

    def take_terms(self, number: int) -> None:
        """Do the second pass for entry ``number`` of the list, and the first pass for the entry that follows."""
        plan, totals = self.walk.plan, self.totals[number]
        bias_sbuf = self.walk.mixture.bias(center_of(totals), totals.student.scale)
        for first in range(0, self.chunks, plan.group):
            chunks = range(first, min(first + plan.group, self.chunks))
            for chunk in chunks:
                self._open(number * self.chunks + chunk)
            logs = {chunk: self._take_logs(number, chunk, bias_sbuf) for chunk in chunks}
            for chunk in chunks:
                load = number * self.chunks + chunk
                self._open(load + plan.group)
                self._sum_terms(number, chunk, self.opened.pop(load), logs[chunk])
                self.source.release(load)
                self.sum_exponentials(number + 1, chunk - plan.lag)
        for chunk in range(self.chunks - plan.lag, self.chunks):
            self.sum_exponentials(number + 1, chunk)
        self.close_exponentials(number + 1)
        self._sums(number).weighted.total(totals.weighted_sbuf, self.chunks)
        self._sums(number).logs.total(totals.logs_sbuf, self.chunks)

    def _sums(self, number: int) -> ChunkSums:
        return self.walk.sums[number % _ROWS_IN_FLIGHT]

    def _open(self, load: int) -> None:
        """Prepare chunk number ``load`` for the second pass: raise its logits to their floors and compute their
        differences.

        Do nothing if this is done already, or if the first pass for the chunk is still to come.
        """
        number = load // self.chunks
        if load in self.opened or load >= self.summed:
            return
        if load % self.chunks == 0:
            self._floors[number] = _Floors.of(self.totals[number])
        logits, tiles = self.source.second(load), self.walk.tiles.differences_sbuf
        rows, columns = logits.student_sbuf.shape
        _raise_to_floors(logits.student_sbuf, self._floors[number].student_sbuf)
        _raise_to_floors(logits.teacher_sbuf, self._floors[number].teacher_sbuf)
        difference_sbuf = tiles[load % len(tiles)][0:rows, 0:columns]
        nisa.tensor_tensor(
            dst=difference_sbuf,
            data1=logits.teacher_sbuf,
            data2=logits.student_sbuf,
            op=nl.subtract,
            engine=nisa.engine.gpsimd,
        )
        self.opened[load] = Opened(logits, difference_sbuf)

    def _take_logs(self, number: int, chunk: int, bias_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Compute and return s of a chunk, and write w over the differences (s and w: :class:`MixtureForward`)."""
        load, scale = number * self.chunks + chunk, self.totals[number].student.scale.of(0)
        difference_sbuf, tiles = self.opened[load].difference_sbuf, self.walk.tiles.logs_sbuf
        rows, columns = difference_sbuf.shape
        logs_sbuf = tiles[load % len(tiles)][0:rows, 0:columns]
        take_logs(logs_sbuf, difference_sbuf, scale, bias_sbuf)
        nisa.scalar_tensor_tensor(
            dst=difference_sbuf,
            data=difference_sbuf,
            op0=nl.multiply,
            operand0=scale,
            op1=nl.subtract,
            operand1=logs_sbuf,
        )
        return logs_sbuf

    def _sum_terms(self, number: int, chunk: int, opened: Opened, logs_sbuf: nl.NkiTensor) -> None:
        """Compute the sums of e_s * s and e_t * w over a chunk, with the symbols of :class:`MixtureForward`."""
        rows, columns = logs_sbuf.shape
        totals, sums, weights = self.totals[number], self._sums(number), self.walk.tiles.weights
        of_sides = (
            (totals.student, opened.logits.student_sbuf, logs_sbuf, sums.logs),
            (totals.teacher, opened.logits.teacher_sbuf, opened.difference_sbuf, sums.weighted),
        )
        for slot, (side, logits_sbuf, terms_sbuf, of_side) in enumerate(of_sides):
            weights_tile = weights[(2 * chunk + slot) % len(weights)][0:rows, 0:columns]
            side.take(weights_tile, logits_sbuf, 0)
            sum_of_products(terms_sbuf, 1.0, nl.multiply, weights_tile, of_side.part(chunk, rows))


@dataclass(frozen=True)
class MixtureForward:
    """The forward of Jensen-Shannon: the second pass for each row is done during the first pass for the next rows.

    The first pass sums exponentials. With both log-sum-exps, the second pass computes for each element, with log odds =
    log(beta / (1 - beta)),

        s = softplus(r + log odds) = L - log(1 - beta)        w = (x_t - x_s) / T - s

    and sums e_s * s and e_t * w; x_s and x_t are the logits of student and teacher, e_s and e_t their exponentials.
    GpSimd computes the differences, Vector w and the sums, and Scalar everything else. Scalar loads a table for
    softplus and one for exp, so chunks are processed in groups: first the logs of a group, then exponentials of its
    chunks and of the next rows.

    Attributes:
        launch: the launch of the kernel.
        plan: the way in which chunks are processed.
        rings: the ring buffers into which logits are loaded.
        tiles: the scratch memory.
        sums: the sums of the rows in flight.
        mixture: the constants of beta.
    """

    launch: Launch
    plan: MixturePlan
    rings: MixtureRings
    tiles: Tiles
    sums: list[ChunkSums]
    mixture: Mixture

    @classmethod
    def make(cls, launch: Launch) -> MixtureForward:
        """Allocate the memory of a launch whose beta is strictly between 0 and 1."""
        chunk_size = launch.tiling.chunk_size
        plan = mixture_plan(launch.row_columns, chunk_size, launch.bytes_of_pair)
        chunks = div_ceil(launch.row_columns, chunk_size)
        return cls(
            launch,
            plan,
            MixtureRings.make(launch, plan),
            Tiles.make(chunk_size, plan),
            [ChunkSums.make(chunks) for _ in range(_ROWS_IN_FLIGHT)],
            Mixture.of(launch),
        )

    def visit(
        self,
        rows: list[Rows],
        totals: list[Totals],
        has_maxima: bool,
        at_shifts: Callable[[int], None],
        at_sums: Callable[[int], None] = lambda _: None,
    ) -> Iterator[int]:
        """Compute the totals of rows, and yield the index of each entry of ``rows`` after its totals are computed.

        Args:
            rows: the rows, each entry a batch or some gathered rows.
            totals: the totals of each entry of ``rows``.
            has_maxima: whether the shift of a row is its maximum, from an additional pass before; else the maximum of
                its first columns.
            at_shifts: a function that is called with the index of an entry after the shifts of its rows are computed.
            at_sums: likewise, after the sums of exponentials of its rows are computed.
        """
        columns = div_ceil(self.launch.row_columns, self.launch.tiling.chunk_size)
        source = self.rings.source(rows, has_maxima)
        run = _BothVisits(self, source, totals, columns, has_maxima, at_shifts, at_sums)
        if has_maxima:
            run.take_maxima()
        for chunk in range(columns):
            run.sum_exponentials(0, chunk)
        run.close_exponentials(0)
        for number in range(len(rows)):
            run.take_terms(number)
            yield number
