# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of distillation on one core: a row is read once for a Kullback-Leibler divergence, twice for
Jensen-Shannon.

*Rows* are the positions, a *chunk* is some columns of a batch of rows, and the *totals* of rows are their shifts and
sums (:class:`.totals.Totals`). :func:`forward_of_core` computes and stores the results of all rows. A Kullback-Leibler
divergence is computed by :class:`KullbackLeiblerForward`, Jensen-Shannon by :class:`.mixture.MixtureForward`.

Logits are shifted before their exponentials are taken. The *shift* of a row is the maximum of its first columns, which
may be far from the maximum of the row; its sums of exponentials then show that. Such rows are recomputed with their
maxima after all others (:mod:`nkilib.core.rows.recomputation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import GROUP_BATCHES_MAX, Batch, BatchGroup, batch_groups
from nkilib.core.rows.gathered import GatheredRows
from nkilib.core.rows.recomputation import FlaggedRows
from nkilib.core.rows.stream import Rows
from nkilib.core.rows.tiles import selected
from nkilib.experimental.loss.distillation.launch import POSITIONS, Launch
from nkilib.experimental.loss.distillation.mixture import MixtureForward
from nkilib.experimental.loss.distillation.pair import (
    Buffers,
    CoreRows,
    Exponentials,
    PairChunk,
    PairStream,
    RowTemperatures,
    Vectors,
    loaded_rows,
    valid_mask,
)
from nkilib.experimental.loss.distillation.tiling import SAMPLE_COLUMNS
from nkilib.experimental.loss.distillation.totals import (
    ChunkSums,
    Divergences,
    Totals,
    jensen_shannon_of_totals,
    kl_of_totals,
    sum_of_products,
)
from nkilib.nki import nisa, nl

# Chunks that are opened ahead, and tiles: GpSimd computes differences while Vector and Scalar process earlier chunks.
AHEAD, WEIGHTS = 2, 2


def _shift_difference(first: Exponentials, second: Exponentials) -> nl.NkiTensor:
    center_sbuf = nl.ndarray(first.neg_shift_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=center_sbuf, data1=second.neg_shift_sbuf, data2=first.neg_shift_sbuf, op=nl.subtract)
    return center_sbuf


@dataclass(frozen=True)
class KullbackLeiblerForward:
    """The forward of a Kullback-Leibler divergence in either direction, which reads the chunks of some rows once.

    Attributes:
        launch: the launch of the kernel.
        buffers: the chunk buffers and scratch memory on chip.
        sums: the sums of exponentials of two batches, which batches use alternately.
    """

    launch: Launch
    buffers: Buffers
    sums: list[ChunkSums]

    @classmethod
    def make(cls, launch: Launch) -> KullbackLeiblerForward:
        """Allocate the memory of a launch whose beta is 0 or 1."""
        chunks = div_ceil(launch.vocab_size, launch.tiling.chunk_size)
        buffers = Buffers.make(launch, AHEAD, {"difference": AHEAD + 1, "weights": WEIGHTS})
        return cls(launch, buffers, [ChunkSums.make(chunks) for _ in range(2)])

    def visit(
        self, rows: list[Rows], totals: list[Totals], has_maxima: bool, at_shifts: Callable[[int], None]
    ) -> Iterator[int]:
        """Compute the totals of rows, and yield the index of each entry of ``rows`` after its totals are computed.

        Args:
            rows: the rows, each entry a batch or some gathered rows.
            totals: the totals of each entry of ``rows``.
            has_maxima: whether the shift of a row is its maximum, from an additional pass before; else the maximum of
                its first columns.
            at_shifts: a function that is called with the index of an entry after the shifts of its rows are computed.
        """

        def open_rows(pair: PairChunk[Rows]) -> None:
            if pair.chunk.number == 0 and not has_maxima:
                self._take_shifts(pair, totals[pair.visit])
                at_shifts(pair.visit)

        visits, has_differences = (rows * 2, [False, True]) if has_maxima else (rows, [True] * len(rows))
        stream = PairStream.make(self.launch, visits, self.buffers, has_differences, open_rows)
        if has_maxima:
            for load in range(stream.num_chunks):
                self._take_maxima(stream.taken(load), totals[0])
        for number, of_rows in enumerate(totals):
            visit = number + has_maxima
            center_sbuf = None
            for load in range(visit * stream.num_chunks, (visit + 1) * stream.num_chunks):
                pair = stream.taken(load)
                if center_sbuf is None:
                    center_sbuf = _shift_difference(*of_rows.weighting(self.launch))
                self._take(pair, of_rows, center_sbuf)
            self._close(visit, stream.num_chunks, of_rows)
            yield number

    def _take_maxima(self, pair: PairChunk[Rows], totals: Totals) -> None:
        is_further = pair.chunk.number > 0
        totals.student.take_shift(pair.student_sbuf, 0, is_further)
        totals.teacher.take_shift(pair.teacher_sbuf, 0, is_further)

    def _take_shifts(self, pair: PairChunk[Rows], totals: Totals) -> None:
        columns = min(pair.chunk.columns, SAMPLE_COLUMNS)
        totals.student.take_shift(pair.student_sbuf[:, 0:columns], 0)
        totals.teacher.take_shift(pair.teacher_sbuf[:, 0:columns], 0)

    def _take(self, pair: PairChunk[Rows], totals: Totals, center_sbuf: nl.NkiTensor) -> None:
        """Compute the sums of a chunk: of the exponentials of both distributions, and of e * (d - c).

        e are the exponentials of the distribution that weights the logarithms, d are its logits minus the other
        distribution's.

        Args:
            pair: the chunk.
            totals: the totals of its rows.
            center_sbuf: c, the difference of the shifts, [rows, 1].
        """
        launch, sums = self.launch, self.sums[pair.visit % len(self.sums)]
        weighting, other = totals.weighting(launch)
        weighting_sbuf, other_sbuf = pair.teacher_sbuf, pair.student_sbuf
        if launch.is_reverse:
            weighting_sbuf, other_sbuf = other_sbuf, weighting_sbuf
        (rows, columns), number = weighting_sbuf.shape, pair.chunk.number
        weights_sbuf = self.buffers.tile("weights", pair.chunk.load, weighting_sbuf)
        weighting.take(weights_sbuf, weighting_sbuf, 0, sums.weighting.part(number, rows))
        sum_of_products(pair.difference, center_sbuf, nl.subtract, weights_sbuf, sums.weighted.part(number, rows))
        unread_sbuf = self.buffers.unread_sbuf[0:rows, 0:columns]
        other.take(unread_sbuf, other_sbuf, 0, sums.other.part(number, rows))

    def _close(self, visit: int, chunks: int, totals: Totals) -> None:
        sums = self.sums[visit % len(self.sums)]
        weighting, other = totals.weighting(self.launch)
        sums.weighting.total(weighting.sums_sbuf, chunks)
        sums.weighted.total(totals.weighted_sbuf, chunks)
        sums.other.total(other.sums_sbuf, chunks)


def divergences_in(vectors: Vectors, divergences: Divergences) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    return [(vectors.loss_hbm, divergences.loss_sbuf), (vectors.moment_hbm, divergences.moment_sbuf)]


def results_of_sides(vectors: Vectors, totals: Totals) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    student, teacher = totals.student, totals.teacher
    return [
        (vectors.student_shift_hbm, student.neg_shift_sbuf),
        (vectors.student_sum_hbm, student.sums_sbuf),
        (vectors.teacher_shift_hbm, teacher.neg_shift_sbuf),
        (vectors.teacher_sum_hbm, teacher.sums_sbuf),
    ]


def ignore(launch: Launch, divergences: Divergences, labels_sbuf: nl.NkiTensor | None) -> None:
    """Set the results of ignored positions to 0, whatever their logits are."""
    if labels_sbuf is None:
        return
    counts_sbuf = valid_mask(labels_sbuf, launch.options.ignore_index)
    for values_sbuf in {
        id(result_sbuf): result_sbuf for result_sbuf in (divergences.loss_sbuf, divergences.moment_sbuf)
    }.values():
        nisa.tensor_copy(dst=values_sbuf, src=selected(values_sbuf, counts_sbuf))


@dataclass(frozen=True)
class _CoreForward:
    """The forward of all rows of a core, for either divergence.

    Attributes:
        launch: the launch of the kernel.
        batches: the batches of the core.
        walk: the forward of the divergence, which computes the totals of rows.
        totals: the totals of all rows.
        flagged: the rows to be recomputed. None if the shifts are the maxima of whole rows, or if there is only one
            position, because then a core may have none, and the cores could not agree on a number of rows.
    """

    launch: Launch
    batches: list[Batch]
    walk: KullbackLeiblerForward | MixtureForward
    totals: Totals
    flagged: FlaggedRows | None

    @classmethod
    def make(cls, launch: Launch, batches: list[Batch]) -> _CoreForward:
        walk = MixtureForward.make(launch) if launch.is_mixed else KullbackLeiblerForward.make(launch)
        flagged = None
        if launch.has_samples and launch.num_positions > 1:
            flagged = FlaggedRows.make(
                launch.num_positions, nl.num_programs(), nl.program_id(), batches[0].rows, len(batches)
            )
        temperatures = RowTemperatures.of(launch, CoreRows(batches), (POSITIONS, len(batches)))
        return cls(launch, batches, walk, Totals.make(len(batches), temperatures), flagged)

    def run(self, vectors: Vectors) -> None:
        stores: list[nisa.NkiInstruction] = []
        for group, labels_sbuf in self._visited_groups(vectors, stores):
            stores += self._finish(group, labels_sbuf, vectors)
        if self.flagged is None:
            return
        others_sbuf = self.flagged.exchanged_count()

        def compute(tiles: list[GatheredRows]) -> None:
            for tile in tiles:
                self._recompute(tile, vectors)

        self.flagged.recompute(compute, others_sbuf, stores)

    def _visited_groups(
        self, vectors: Vectors, stores: list[nisa.NkiInstruction]
    ) -> Iterator[tuple[BatchGroup, nl.NkiTensor | None]]:
        """Yield each group of batches with its labels, after the totals of the group are computed.

        Shifts are the maxima of first columns. Shifts and sums are stored batch by batch, because a store of one value
        per row keeps a DMA engine as busy as a whole row, and loads would wait for many of them.
        """
        groups = {group.start: group for group in batch_groups(self.batches, GROUP_BATCHES_MAX)}
        labels: list[nl.NkiTensor] = []

        def load_labels(number: int) -> None:
            # Behind the loads of the first chunks, and long before the group is finished.
            if number in groups and self.launch.labels_hbm is not None:
                of_group = self.batches[number : groups[number].end]
                labels.append(loaded_rows(self.launch.labels_hbm, of_group, nl.int32)[0 : groups[number].rows, :])

        totals = [self.totals.of_batches(number, number + 1, batch.rows) for number, batch in enumerate(self.batches)]
        visited = self.walk.visit(self.batches, totals, False, load_labels)
        for group in groups.values():
            for number in range(group.start, group.end):
                next(visited)
                if self.flagged is None and self.launch.has_samples:
                    self._replace_doubtful()
                stores += [
                    self.batches[number].stored(vector_hbm, tile_sbuf)
                    for vector_hbm, tile_sbuf in results_of_sides(vectors, totals[number])
                ]
            yield group, labels.pop(0) if labels else None

    def _finish(
        self, group: BatchGroup, labels_sbuf: nl.NkiTensor | None, vectors: Vectors
    ) -> list[nisa.NkiInstruction]:
        """Store the divergences of a group of batches, count its rows that have to be recomputed, and return the
        stores.
        """
        totals = self.totals.of_batches(group.start, group.end, group.rows)
        divergences = self._divergences(totals)
        ignore(self.launch, divergences, labels_sbuf)
        stores = [group.stored(vector_hbm, tile_sbuf) for vector_hbm, tile_sbuf in divergences_in(vectors, divergences)]
        if self.flagged is not None:
            self.flagged.add(totals.doubtful(self.launch), group)
        return stores

    def _replace_doubtful(self) -> None:
        """Recompute the row of a launch of one position with its maximum as the shift.

        The recomputed totals replace the first ones if the first sums are untrusted (:meth:`Totals.doubtful`).
        """
        exact = self._under_maxima(self.batches[0])
        flags_sbuf = self.totals.doubtful(self.launch)
        doubtful_sbuf = nl.ndarray(flags_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=doubtful_sbuf, src=flags_sbuf)
        for tile_sbuf, exact_sbuf in zip(self.totals.tiles(), exact.tiles(), strict=True):
            nisa.tensor_copy_predicated(dst=tile_sbuf, src=exact_sbuf, predicate=doubtful_sbuf)

    def _recompute(self, tile: GatheredRows, vectors: Vectors) -> None:
        totals = self._under_maxima(tile)
        divergences = self._divergences(totals)
        labels_hbm = self.launch.labels_hbm
        ignore(self.launch, divergences, None if labels_hbm is None else tile.loaded(labels_hbm, nl.int32))
        for vector_hbm, values_sbuf in divergences_in(vectors, divergences) + results_of_sides(vectors, totals):
            tile.stored(vector_hbm, values_sbuf)

    def _under_maxima(self, rows: Batch | GatheredRows) -> Totals:
        """Return the totals of rows, computed with the maximum of each whole row as its shift.

        An additional pass over the logits computes the maxima, before the totals are computed.
        """
        all_rows = Totals.make(1, RowTemperatures.of(self.launch, rows, (rows.rows, 1)))
        totals = all_rows.of_batches(0, 1, rows.rows)
        for _ in self.walk.visit([rows], [totals], True, lambda _: None):
            pass
        return all_rows

    def _divergences(self, totals: Totals) -> Divergences:
        return (jensen_shannon_of_totals if self.launch.is_mixed else kl_of_totals)(self.launch, totals)


def forward_of_core(launch: Launch, vectors: Vectors) -> None:
    """Compute and store the results of this core's positions."""
    batches = launch.batches()
    if batches:
        _CoreForward.make(launch, batches).run(vectors)
