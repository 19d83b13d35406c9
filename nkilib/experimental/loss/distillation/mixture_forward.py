# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of Jensen-Shannon: two visits of each row, the second one beside the first one of the next rows.

The first visit sums exponentials. With both log-sum-exps the second one takes, of each element,

    s = softplus(r + log odds) = L - log(1 - beta)        w = (x_t - x_s) / T - s

and sums e_s * s and e_t * w. GpSimd takes the differences, Vector w and the sums, and Scalar everything else. Scalar
loads a table for softplus and one for exp, so chunks are taken in groups: first the logs of a group, then exponentials
of its chunks and of the next rows.
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
# Rows of which sums are gathered at a time.
_ROWS_IN_FLIGHT = 2


@dataclass(frozen=True)
class Tiles:
    """Float32 tiles of a chunk's size, each kind taken in turn.

    Attributes:
        differences_sbuf: for a group, and for one chunk of the next.
        logs_sbuf: for a group.
        weights: of exponentials that are multiplied.
        unread_sbuf: of exponentials that are only summed, bfloat16.
    """

    differences_sbuf: list[nl.NkiTensor]
    logs_sbuf: list[nl.NkiTensor]
    weights: list[nl.NkiTensor]
    unread_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, chunk_size: int, plan: MixturePlan) -> Tiles:
        """As the plan says."""

        def tiles(count: int, buffer: nl.MemoryRegion = nl.sbuf) -> list[nl.NkiTensor]:
            return [nl.ndarray((POSITIONS, chunk_size), dtype=nl.float32, buffer=buffer) for _ in range(count)]

        unread_sbuf = nl.ndarray((POSITIONS, chunk_size), dtype=nl.bfloat16, buffer=nl.sbuf)
        weights = tiles(plan.weights, nl.psum if plan.keeps_rows else nl.sbuf)
        return cls(tiles(plan.group + 1), tiles(plan.group), weights, unread_sbuf)


@dataclass(frozen=True)
class _Floors:
    """What logits of rows are raised to, float32 [rows, 1]."""

    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor

    @classmethod
    def of(cls, totals: Totals, temperature: float) -> _Floors:
        """Of rows with their shifts."""
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
    """A chunk of the second visit: its logits, and T * (r + center)."""

    logits: Logits
    difference_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class MixtureForward:
    """What all rows have in common.

    Attributes:
        launch: of the kernel.
        plan: how chunks are taken.
        rings: where logits are loaded to.
        tiles: scratch.
        sums: of the rows in flight.
        mixture: of beta.
    """

    launch: Launch
    plan: MixturePlan
    rings: MixtureRings
    tiles: Tiles
    sums: list[ChunkSums]
    mixture: Mixture

    @classmethod
    def make(cls, launch: Launch) -> MixtureForward:
        """Of a launch whose beta is between 0 and 1."""
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
        """Gather the totals of rows; yields the number of each when it is done.

        Args:
            rows: to be visited.
            totals: of each of them.
            has_maxima: shifts are the maxima of whole rows, which are taken first; else of their first columns.
            at_shifts: called with the number of rows whose shifts have been taken.
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
    """A visit of some rows.

    Attributes:
        walk: what all have in common.
        source: of the logits.
        totals: of each.
        chunks: of a row.
        has_maxima, at_shifts: as in ``MixtureForward.visit``.
        summed: first visits that are over.
        opened: chunks of the second visit by their numbers.
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
        """c of the first rows is the maximum of all their chunks."""
        for chunk in range(self.chunks):
            logits = self.source.first(chunk)
            self.totals[0].student.take_shift(logits.student_sbuf, 0, chunk > 0)
            self.totals[0].teacher.take_shift(logits.teacher_sbuf, 0, chunk > 0)

    def sum_exponentials(self, number: int, chunk: int) -> None:
        """The first visit of a chunk, by the number of its rows and its own."""
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
        """S of both."""
        if number < len(self.totals):
            self._sums(number).weighting.total(self.totals[number].teacher.sums_sbuf, self.chunks)
            self._sums(number).other.total(self.totals[number].student.sums_sbuf, self.chunks)

    def take_terms(self, number: int) -> None:
        """The second visit of rows, and the first one of those that follow."""
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
        """Raise the logits of a chunk that has been visited once, and take differences, if that is not done yet."""
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
        """s, which is returned, and w in the place of the differences."""
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
        """Sums of e_s * s and of e_t * w."""
        rows, columns = logs_sbuf.shape
        totals, sums, weights = self.totals[number], self._sums(number), self.walk.tiles.weights
        of_sides = (
            (totals.student, opened.logits.student_sbuf, logs_sbuf, sums.logs),
            (totals.teacher, opened.logits.teacher_sbuf, opened.difference_sbuf, sums.weighted),
        )
        for turn, (side, logits_sbuf, terms_sbuf, of_side) in enumerate(of_sides):
            weights_tile = weights[(2 * chunk + turn) % len(weights)][0:rows, 0:columns]
            side.take(weights_tile, logits_sbuf, 0)
            sum_of_products(terms_sbuf, 1.0, nl.multiply, weights_tile, of_side.part(chunk, rows))
