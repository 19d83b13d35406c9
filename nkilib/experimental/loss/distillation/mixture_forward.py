# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of Jensen-Shannon: two visits of each row, the second one during the first visit of the next rows.

The first visit sums exponentials. With both log-sum-exps the second one computes, for each element,

    s = softplus(r + log odds) = L - log(1 - beta)        w = (x_t - x_s) / T - s

and sums e_s * s and e_t * w. x are the logits and e their exponentials, of student and teacher; r, L and the log odds
are those of :mod:`.mixture`. GpSimd computes the differences, Vector w and the sums, and Scalar everything else. Scalar
loads a table for softplus and one for exp, so chunks are processed in groups: first the logs of a group, then
exponentials of its chunks and of the next rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nkilib.core.rows.stream import Rows
from nkilib.core.rows.tiles import float32_like
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.distillation.host.tiling import MixturePlan, mixture_plan
from nkilib.experimental.loss.distillation.logits import Logits, LogitSource, MixtureRings
from nkilib.experimental.loss.distillation.mixture import Mixture, center_of
from nkilib.experimental.loss.distillation.options import POSITIONS, SAMPLE_COLUMNS, Launch
from nkilib.experimental.loss.distillation.rows import raise_to
from nkilib.experimental.loss.distillation.totals import ChunkSums, Totals, sum_of_products
from nkilib.nki import nisa, nl

# A logit this far below its row's shift, times T, is raised to that: its exponential is nothing beside a sum of 0.5 or
# more, and ratios stay small enough for float32.
_FAR_BELOW = 60.0
# Groups of rows whose sums are gathered at a time.
_ROWS_IN_FLIGHT = 2


@dataclass(frozen=True)
class Tiles:
    """Float32 tiles of a chunk's size, in round-robin order for each purpose.

    Attributes:
        differences_sbuf: differences of logits, for a group and one chunk of the next group.
        logs_sbuf: logs, for a group.
        weights: exponentials that are multiplied.
        unread_sbuf: exponentials that are only summed, bfloat16.
    """

    differences_sbuf: list[nl.NkiTensor]
    logs_sbuf: list[nl.NkiTensor]
    weights: list[nl.NkiTensor]
    unread_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, chunk_size: int, plan: MixturePlan) -> Tiles:
        """Allocate the tiles for a plan."""

        def tiles(count: int, buffer: nl.MemoryRegion = nl.sbuf) -> list[nl.NkiTensor]:
            return [nl.ndarray((POSITIONS, chunk_size), dtype=nl.float32, buffer=buffer) for _ in range(count)]

        unread_sbuf = nl.ndarray((POSITIONS, chunk_size), dtype=nl.bfloat16, buffer=nl.sbuf)
        weights = tiles(plan.weights, nl.psum if plan.keeps_rows else nl.sbuf)
        return cls(tiles(plan.group + 1), tiles(plan.group), weights, unread_sbuf)


@dataclass(frozen=True)
class _Floors:
    """The values to which lower logits of each row are raised, float32 [rows, 1]."""

    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor

    @classmethod
    def of(cls, totals: Totals, temperature: float) -> _Floors:
        """Compute the floors of rows from their shifts."""
        sides = (totals.student, totals.teacher)
        floors = [float32_like(side.neg_shift_sbuf) for side in sides]
        for floor_sbuf, side in zip(floors, sides, strict=True):
            nisa.tensor_scalar(
                dst=floor_sbuf,
                data=side.neg_shift_sbuf,
                op0=nl.multiply,
                operand0=-1.0,
                op1=nl.subtract,
                operand1=_FAR_BELOW * temperature,
            )
        return cls(*floors)


@dataclass(frozen=True)
class Opened:
    """A chunk of the second visit: its logits, and their differences teacher - student, which w replaces later."""

    logits: Logits
    difference_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class MixtureForward:
    """The state that all rows of the forward of Jensen-Shannon share.

    Attributes:
        launch: the launch of the kernel.
        plan: the way in which chunks are processed.
        rings: the ring buffers into which logits are loaded.
        tiles: the scratch tiles.
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
        """Allocate the state for a launch whose beta is between 0 and 1."""
        chunk_size = launch.tiling.chunk_size
        plan = mixture_plan(launch.vocab_size, chunk_size, launch.bytes_of_pair)
        chunks = div_ceil(launch.vocab_size, chunk_size)
        return cls(
            launch,
            plan,
            MixtureRings.make(launch, plan),
            Tiles.make(chunk_size, plan),
            [ChunkSums.make(chunks) for _ in range(_ROWS_IN_FLIGHT)],
            Mixture.of(launch),
        )

    def visit(
        self, rows: list[Rows], totals: list[Totals], has_maxima: bool, at_shifts: Callable[[int], None]
    ) -> Iterator[int]:
        """Gather the totals of rows; yields the index of each entry of ``rows`` when it is done.

        Args:
            rows: the rows to visit.
            totals: the totals of each entry of ``rows``.
            has_maxima: whether shifts are the maxima of whole rows, which are taken first; else those of their first
                columns.
            at_shifts: the function to call with the index of rows whose shifts have been taken.
        """
        columns = div_ceil(self.launch.vocab_size, self.launch.tiling.chunk_size)
        source = self.rings.source(rows, has_maxima)
        run = _Run(self, source, totals, columns, has_maxima, at_shifts)
        if has_maxima:
            run.take_maxima()
        for chunk in range(columns):
            run.sum_exponentials(0, chunk)
        run.close_exponentials(0)
        for number in range(len(rows)):
            run.take_terms(number)
            yield number


@dataclass
class _Run:
    """One pass over a list of rows, with both visits of each.

    Attributes:
        walk: the state that all rows share.
        source: the source of the logits.
        totals: the totals of each entry of the list.
        chunks: the number of chunks per row.
        has_maxima, at_shifts: see ``MixtureForward.visit``.
        summed: the number of chunks whose first visit is over.
        opened: the opened chunks of the second visit by their numbers.
    """

    walk: MixtureForward
    source: LogitSource
    totals: list[Totals]
    chunks: int
    has_maxima: bool
    at_shifts: Callable[[int], None]
    summed: int = 0
    opened: dict[int, Opened] = field(default_factory=dict)
    _floors: dict[int, _Floors] = field(default_factory=dict)

    def take_maxima(self) -> None:
        """Set the shifts of the first rows to the maximum of all their chunks."""
        for chunk in range(self.chunks):
            logits = self.source.first(chunk)
            self.totals[0].student.take_shift(logits.student_sbuf, 0, chunk > 0)
            self.totals[0].teacher.take_shift(logits.teacher_sbuf, 0, chunk > 0)

    def sum_exponentials(self, number: int, chunk: int) -> None:
        """Do the first visit of chunk ``chunk`` of the rows with index ``number``."""
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
        """Compute the sums of exponentials of both distributions for the rows with index ``number``."""
        if number < len(self.totals):
            self._sums(number).weighting.total(self.totals[number].teacher.sums_sbuf, self.chunks)
            self._sums(number).other.total(self.totals[number].student.sums_sbuf, self.chunks)

    def take_terms(self, number: int) -> None:
        """Do the second visit of rows, and the first visit of the rows that follow."""
        plan, totals = self.walk.plan, self.totals[number]
        bias_sbuf = self.walk.mixture.bias(center_of(self.walk.launch, totals))
        for first in range(0, self.chunks, plan.group):
            chunks = range(first, min(first + plan.group, self.chunks))
            for chunk in chunks:
                self._open(number * self.chunks + chunk)
            logs = {chunk: self._take_logs(number * self.chunks + chunk, bias_sbuf) for chunk in chunks}
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
        """Raise the logits of a chunk to their floors and compute their differences, for the second visit.

        Do nothing if this is done already, or if the first visit of the chunk is still to come.
        """
        number = load // self.chunks
        if load in self.opened or load >= self.summed:
            return
        if load % self.chunks == 0:
            self._floors[number] = _Floors.of(self.totals[number], self.walk.launch.options.temperature)
        logits, tiles = self.source.second(load), self.walk.tiles.differences_sbuf
        rows, columns = logits.student_sbuf.shape
        raise_to(logits.student_sbuf, self._floors[number].student_sbuf)
        raise_to(logits.teacher_sbuf, self._floors[number].teacher_sbuf)
        difference_sbuf = tiles[load % len(tiles)][0:rows, 0:columns]
        nisa.tensor_tensor(
            dst=difference_sbuf,
            data1=logits.teacher_sbuf,
            data2=logits.student_sbuf,
            op=nl.subtract,
            engine=nisa.engine.gpsimd,
        )
        self.opened[load] = Opened(logits, difference_sbuf)

    def _take_logs(self, load: int, bias_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Compute s, which is returned, and w in place of the differences."""
        difference_sbuf, tiles = self.opened[load].difference_sbuf, self.walk.tiles.logs_sbuf
        rows, columns = difference_sbuf.shape
        logs_sbuf = tiles[load % len(tiles)][0:rows, 0:columns]
        self.walk.mixture.take_logs(logs_sbuf, difference_sbuf, bias_sbuf)
        nisa.scalar_tensor_tensor(
            dst=difference_sbuf,
            data=difference_sbuf,
            op0=nl.multiply,
            operand0=self.walk.launch.scale,
            op1=nl.subtract,
            operand1=logs_sbuf,
        )
        return logs_sbuf

    def _sum_terms(self, number: int, chunk: int, opened: Opened, logs_sbuf: nl.NkiTensor) -> None:
        """Compute the sums of e_s * s and of e_t * w."""
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
