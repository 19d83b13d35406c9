# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward whose positions lie on several partitions each, for launches of few positions
(:func:`forward_of_split`).

For Jensen-Shannon, the parts of positions are rows of :class:`.mixture.MixtureForward`, with their maxima as shifts.
Between its two passes each part gets shift and sum of exponentials of its whole position.

A Kullback-Leibler divergence takes one pass (:class:`_SplitForward`). Each chunk k of a part of a position has its own
maxima as shifts, m_k of the distribution that weights the logarithms and n_k of the other one, and its own sums of
exponentials, S_k of the former. With d the differences of the logits and e_k the exponentials that S_k sums, it has A_k
= sum of e_k * (d - c_k), where c_k = m_k - n_k. They are combined at the end
(:class:`nkilib.core.rows.statistics.SplitStatistics`): with m, n and c = m - n of the position, the sum of e * (d - c)
over it is

    sum over k of exp((m_k - m) / T) * (A_k + S_k * (c_k - c)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.row_plan import off_line
from nkilib.core.rows.statistics import Columns, Place, SplitStatistics, Statistics
from nkilib.core.rows.stream import SplitRows
from nkilib.core.rows.tiles import clamp, load_table
from nkilib.experimental.loss.distillation.forward import AHEAD, WEIGHTS, divergences_in, ignore, results_of_sides
from nkilib.experimental.loss.distillation.launch import LOWEST, Launch
from nkilib.experimental.loss.distillation.mixture import MixtureForward
from nkilib.experimental.loss.distillation.pair import Buffers, Exponentials, PairChunk, PairStream, Vectors
from nkilib.experimental.loss.distillation.totals import (
    SplitTotals,
    Totals,
    jensen_shannon_of_totals,
    kl_of_totals,
    sum_of_products,
)
from nkilib.nki import nisa, nl


def _take_raised_maximum(statistics: Statistics, logits_sbuf: nl.NkiTensor, place: Place) -> None:
    """Replace -inf by ``LOWEST`` in a chunk, and compute minus its maximum, which is then finite."""
    neg_max_sbuf = place.of(statistics.neg_max_sbuf)
    nisa.tensor_scalar_reduce(
        dst=logits_sbuf,
        data=logits_sbuf,
        op0=nl.maximum,
        operand0=LOWEST,
        reduce_op=nl.maximum,
        reduce_res=neg_max_sbuf,
        reduce_res_negate=True,
    )
    if not statistics.scale.is_one:
        statistics.scale.multiply(place.of(statistics.bias_sbuf), neg_max_sbuf)


def _store(split: SplitTotals, totals: Totals, vectors: Vectors) -> None:
    """Compute and store the results of a batch of positions from their totals, [1, positions]."""
    launch, line = split.launch, split.batch.as_line
    divergences = (jensen_shannon_of_totals if launch.is_mixed else kl_of_totals)(launch, totals)
    labels_hbm = launch.labels_hbm
    ignore(launch, divergences, None if labels_hbm is None else line.loaded(labels_hbm, nl.int32))
    for vector_hbm, values_sbuf in results_of_sides(vectors, totals) + divergences_in(vectors, divergences):
        line.stored(vector_hbm, values_sbuf)


@dataclass
class _Open:
    """The positions of a batch whose results are not computed yet.

    Attributes:
        split: the statistics of both models.
        center_sbuf: c_k of the module, [partitions, 1, chunks].
        weighted_sbuf, distance_sbuf: A_k and c_k - c of the module, of the same shape.
        combined: the steps of the combination of all partitions, of which the last one gives the totals of the
            positions, [1, positions]. The first three, which give None, need only the maxima of all chunks, so that
            sums of chunks may be computed between them.
    """

    split: SplitTotals
    center_sbuf: nl.NkiTensor
    weighted_sbuf: nl.NkiTensor
    distance_sbuf: nl.NkiTensor
    combined: Iterator[Totals | None] = field(init=False)

    def __post_init__(self) -> None:
        self.combined = self._combine()

    @classmethod
    def make(cls, launch: Launch, rows: SplitRows) -> _Open:
        """Allocate the tiles of a batch of positions."""
        chunks = div_ceil(launch.row_columns, launch.tiling.chunk_size)
        columns = Columns(rows.rows, 1, chunks)
        return cls(SplitTotals.make(launch, rows, chunks), *(columns.tile() for _ in range(3)))

    def _combine(self) -> Iterator[Totals | None]:
        chunks = self.center_sbuf.shape[2]
        weighting, _ = sides = self.split.weighting
        lines = [side.maxima_on_line(chunks) for side in sides]
        yield None
        of_rows = [side.take_maxima(line_psum) for side, line_psum in zip(sides, lines, strict=True)]
        yield None
        distances = [side.take_distances(psum, chunks) for side, psum in zip(sides, of_rows, strict=True)]
        nisa.tensor_tensor(dst=self.distance_sbuf, data1=distances[0], data2=distances[1], op=nl.subtract)
        for side in sides:
            side.parts.take_weights(chunks)
        load_table(nl.log)
        yield None
        # Where all logits of the weighting distribution are -inf, A_k may be infinite, and its weight is 0.
        clamp(self.weighted_sbuf, self.weighted_sbuf, 1.0)
        weights_sbuf = weighting.parts.weights_sbuf
        nisa.tensor_tensor(dst=self.weighted_sbuf, data1=self.weighted_sbuf, data2=weights_sbuf, op=nl.multiply)
        for side in sides:
            side.parts.combine_sums(chunks)
        # The weights are multiplied by S_k now.
        nisa.tensor_tensor(dst=self.distance_sbuf, data1=self.distance_sbuf, data2=weights_sbuf, op=nl.multiply)
        nisa.tensor_tensor(dst=self.weighted_sbuf, data1=self.weighted_sbuf, data2=self.distance_sbuf, op=nl.add)
        of_parts_sbuf = weighting.parts.columns.row_tile()
        nisa.tensor_reduce(dst=of_parts_sbuf, op=nl.add, data=self.weighted_sbuf, axis=2)
        of_sides = [side.parts.row_sum_sbuf for side in (self.split.student, self.split.teacher)]
        *sums, weighted_sbuf = self.split.summed([*of_sides, of_parts_sbuf])
        yield self.split.totals(sums, weighted_sbuf, weighted_sbuf)


@dataclass(frozen=True)
class _SplitForward:
    """The loop of a core over the chunks of its batches.

    Attributes:
        launch: the launch of the kernel.
        batches: the batches of the core.
        buffers: the chunk buffers and scratch on chip.
        opened: the batches whose first chunk has been loaded, by number.
    """

    launch: Launch
    batches: list[SplitRows]
    buffers: Buffers
    opened: dict[int, _Open] = field(default_factory=dict)

    def run(self, vectors: Vectors) -> None:
        """Process all chunks, and store the results of the positions."""
        load_table(nl.exp)
        has_differences = [True] * len(self.batches)
        stream = PairStream.make(
            self.launch, self.batches, self.buffers, has_differences, raise_lowest=self._take_maxima
        )
        last = stream.num_chunks - 1
        for load in range(stream.student.loads):
            pair = stream.taken(load)
            opened = self.opened[pair.visit]
            self._take(opened, pair)
            if pair.chunk.number + self.buffers.ahead >= last:  # all maxima are there
                next(opened.combined)
            if pair.chunk.number == last:
                totals = next(totals for totals in opened.combined if totals is not None)
                _store(self.opened.pop(pair.visit).split, totals, vectors)

    def _take_maxima(self, pair: PairChunk[SplitRows]) -> None:
        """Compute the maxima of a chunk and their difference, and replace -inf in it."""
        if pair.chunk.number == 0:
            self.opened[pair.visit] = _Open.make(self.launch, pair.chunk.batch)
        opened, place = self.opened[pair.visit], Place(0, pair.chunk.number)
        _take_raised_maximum(opened.split.student.parts, pair.student_sbuf, place)
        _take_raised_maximum(opened.split.teacher.parts, pair.teacher_sbuf, place)
        weighting, other = opened.split.weighting
        nisa.tensor_tensor(
            dst=place.of(opened.center_sbuf),
            data1=place.of(other.parts.neg_max_sbuf),
            data2=place.of(weighting.parts.neg_max_sbuf),
            op=nl.subtract,
            engine=nisa.engine.gpsimd,
        )

    def _take(self, opened: _Open, pair: PairChunk[SplitRows]) -> None:
        """Compute the sums of a chunk: of the exponentials of both distributions, and A_k of the module."""
        place = Place(0, pair.chunk.number)
        weighting, other = opened.split.weighting
        weighting_sbuf, other_sbuf = pair.teacher_sbuf, pair.student_sbuf
        if self.launch.is_reverse:
            weighting_sbuf, other_sbuf = other_sbuf, weighting_sbuf
        (rows, columns) = weighting_sbuf.shape
        weights_sbuf = self.buffers.tile("weights", pair.chunk.load, weighting_sbuf)
        weighting.parts.take_sum(weights_sbuf, weighting_sbuf, place)
        center_sbuf, sum_sbuf = place.of(opened.center_sbuf), place.of(opened.weighted_sbuf)
        sum_of_products(pair.difference, center_sbuf, nl.subtract, weights_sbuf, sum_sbuf)
        other.parts.take_sum(self.buffers.unread_sbuf[0:rows, 0:columns], other_sbuf, place)


def _exponentials(side: SplitStatistics) -> Exponentials:
    """Return shifts and sums of the parts, in the tiles of their statistics."""
    parts = side.parts
    tiles = (parts.neg_max_sbuf, parts.bias_sbuf, parts.sums_sbuf)
    return Exponentials(parts.scale, *(tile_sbuf[:, :, 0] for tile_sbuf in tiles))


def _take_positions(sides: tuple[SplitStatistics, ...], of_parts: list[Exponentials]) -> None:
    """Compute shift and sum of exponentials of each position, and give them to all of its parts.

    Each step is issued for both models before the next one, so that no engine waits for one of them alone.
    """
    lines = [side.maxima_on_line(1) for side in sides]
    maxima = [side.take_maxima(line_psum) for side, line_psum in zip(sides, lines, strict=True)]
    for side, neg_max_psum in zip(sides, maxima, strict=True):
        side.take_distances(neg_max_psum, 1)
        side.parts.take_weights(1)
    for side in sides:
        side.combine_sums(1)
    parts = [off_line(side.rows.row_sum_sbuf, side.batch.plan.parts) for side in sides]
    for exponentials, neg_max_psum, sums_psum in zip(of_parts, maxima, parts, strict=True):
        nisa.tensor_copy(dst=exponentials.neg_shift_sbuf, src=neg_max_psum)
        nisa.tensor_copy(dst=exponentials.sums_sbuf, src=sums_psum)
        exponentials.set_bias(0, sums_psum.shape[0])


def _mix(walk: MixtureForward, rows: SplitRows, vectors: Vectors) -> None:
    """Compute and store the results of Jensen-Shannon of a batch of positions."""
    split = SplitTotals.make(walk.launch, rows, 1, is_whole=True)
    sides = (split.student, split.teacher)
    student, teacher = of_parts = [_exponentials(side) for side in sides]
    sums = [nl.ndarray((rows.rows, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]
    totals = Totals(student, teacher, sums[0], sums[1], split.of_parts.temperature)
    for _ in walk.visit([rows], [totals], True, lambda _: None, lambda _: _take_positions(sides, of_parts)):
        pass
    of_exponentials = [side.rows.row_sum_sbuf for side in sides]
    _store(split, split.totals(of_exponentials, *split.summed(sums)), vectors)


def forward_of_split(launch: Launch, vectors: Vectors) -> None:
    """Compute and store the results of this core's positions, each of which lies on several partitions."""
    batches = launch.split_batches()
    if not batches:
        return
    if launch.is_mixed:
        walk = MixtureForward.make(launch)
        for rows in batches:
            _mix(walk, rows, vectors)
        return
    buffers = Buffers.make(launch, AHEAD, {"difference": AHEAD + 1, "weights": WEIGHTS})
    _SplitForward(launch, batches, buffers).run(vectors)
