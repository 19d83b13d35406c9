# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward on one core.

The shifts of rows are the maxima of their first columns. What is wrong with them in a row shows in its sums; such rows
are computed anew under their maxima when all others are done (:mod:`nkilib.core.rows.recomputation`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.rows.batches import GROUP_BATCHES_MAX, Batch, BatchGroup, batch_groups
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.gathered import GatheredRows
from nkilib.core.rows.recomputation import FlaggedRows
from nkilib.core.rows.stream import Rows
from nkilib.core.rows.tiles import selected
from nkilib.experimental.loss.distillation.divergence_forward import DivergenceForward
from nkilib.experimental.loss.distillation.mixture_forward import MixtureForward
from nkilib.experimental.loss.distillation.options import Launch
from nkilib.experimental.loss.distillation.rows import Vectors, loaded_rows
from nkilib.experimental.loss.distillation.totals import (
    Divergences,
    Totals,
    jensen_shannon_of_totals,
    kl_of_totals,
)
from nkilib.nki import nisa, nl


def forward_of_core(launch: Launch, vectors: Vectors) -> None:
    """The results of the positions of this core."""
    batches = launch.batches()
    if batches:
        _Forward.make(launch, batches).run(vectors)


@dataclass(frozen=True)
class _Forward:
    """What all rows have in common.

    Attributes:
        launch: of the kernel.
        batches: of the core.
        walk: gathers the totals of rows.
        totals: of all rows.
        flagged: rows to be computed anew; None where the shifts are the maxima of whole rows, and where a core has
            none, so that cores could not agree on a number of rows.
    """

    launch: Launch
    batches: list[Batch]
    walk: DivergenceForward | MixtureForward
    totals: Totals
    flagged: FlaggedRows | None

    @classmethod
    def make(cls, launch: Launch, batches: list[Batch]) -> _Forward:
        walk = MixtureForward.make(launch) if launch.is_mixed else DivergenceForward.make(launch)
        flagged = None
        if launch.has_samples and launch.num_positions > 1:
            flagged = FlaggedRows.make(
                launch.num_positions, nl.num_programs(), nl.program_id(), batches[0].rows, len(batches)
            )
        return cls(launch, batches, walk, Totals.make(len(batches), launch.scale), flagged)

    def run(self, vectors: Vectors) -> None:
        """Go through all rows, then through those that are to be computed anew."""
        stores: list[nisa.NkiInstruction] = []
        for group, labels_sbuf in self._visited_groups(vectors, stores):
            stores += self._finish(group, labels_sbuf, vectors)
        if self.flagged is None:
            return
        others_sbuf = self.flagged.exchanged_count()

        def compute(tiles: list[GatheredRows]) -> None:
            for tile in tiles:
                self._anew(tile, vectors)

        self.flagged.recompute(compute, others_sbuf, stores)

    def _visited_groups(
        self, vectors: Vectors, stores: list[nisa.NkiInstruction]
    ) -> Iterator[tuple[BatchGroup, nl.NkiTensor | None]]:
        """Groups of batches, and their labels, each when its batches have been visited.

        All batches are visited under shifts that are known from their first columns. Shifts and sums are stored batch
        by batch: a value of a row is as dear as a row for a DMA engine, and loads would wait for many.
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
                    for vector_hbm, tile_sbuf in _results_of_sides(vectors, totals[number])
                ]
            yield group, labels.pop(0) if labels else None

    def _finish(
        self, group: BatchGroup, labels_sbuf: nl.NkiTensor | None, vectors: Vectors
    ) -> list[nisa.NkiInstruction]:
        """Store the divergences of a group of batches, and count its rows that are to be computed anew."""
        totals = self.totals.of_batches(group.start, group.end, group.rows)
        found = self._divergences(totals)
        self._ignore(found, labels_sbuf)
        stores = [group.stored(vector_hbm, tile_sbuf) for vector_hbm, tile_sbuf in _divergences_in(vectors, found)]
        if self.flagged is not None:
            self.flagged.add(totals.doubtful(self.launch), group)
        return stores

    def _replace_doubtful(self) -> None:
        """The only row under its maxima too, in the place of what is not to be trusted."""
        exact = self._under_maxima(self.batches[0])
        flags_sbuf = self.totals.doubtful(self.launch)
        doubtful_sbuf = nl.ndarray(flags_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=doubtful_sbuf, src=flags_sbuf)
        for tile_sbuf, exact_sbuf in zip(self.totals.tiles(), exact.tiles(), strict=True):
            nisa.tensor_copy_predicated(dst=tile_sbuf, src=exact_sbuf, predicate=doubtful_sbuf)

    def _anew(self, tile: GatheredRows, vectors: Vectors) -> None:
        """The results of rows under their maxima."""
        totals = self._under_maxima(tile)
        found = self._divergences(totals)
        labels_hbm = self.launch.labels_hbm
        self._ignore(found, None if labels_hbm is None else tile.loaded(labels_hbm, nl.int32))
        for vector_hbm, values_sbuf in _divergences_in(vectors, found) + _results_of_sides(vectors, totals):
            tile.stored(vector_hbm, values_sbuf)

    def _under_maxima(self, rows: Rows) -> Totals:
        """The totals of rows under their maxima, which are taken first."""
        all_rows = Totals.make(1, self.launch.scale)
        totals = all_rows.of_batches(0, 1, rows.rows)
        for _ in self.walk.visit([rows], [totals], True, lambda _: None):
            pass
        return all_rows

    def _divergences(self, totals: Totals) -> Divergences:
        return (jensen_shannon_of_totals if self.launch.is_mixed else kl_of_totals)(self.launch, totals)

    def _ignore(self, found: Divergences, labels_sbuf: nl.NkiTensor | None) -> None:
        """The loss of positions that do not count is 0, whatever their logits are."""
        if labels_sbuf is None:
            return
        counts_sbuf = counting(labels_sbuf, self.launch.options.ignore_index)
        for values_sbuf in {id(each): each for each in (found.loss_sbuf, found.moment_sbuf)}.values():
            nisa.tensor_copy(dst=values_sbuf, src=selected(values_sbuf, counts_sbuf))


def counting(labels_sbuf: nl.NkiTensor, ignore_index: int) -> nl.NkiTensor:
    """1 where a label is not ``ignore_index``, else 0: uint32, compared as integers."""
    rows, batches = labels_sbuf.shape
    counts_sbuf = nl.ndarray((rows, batches), dtype=nl.uint32, buffer=nl.sbuf)
    ignored_sbuf = int32_column(rows, ignore_index, 0).broadcast(1, batches)
    integer_op(counts_sbuf, labels_sbuf, ignored_sbuf, nl.not_equal)
    return counts_sbuf


def _divergences_in(vectors: Vectors, found: Divergences) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    return [(vectors.loss_hbm, found.loss_sbuf), (vectors.moment_hbm, found.moment_sbuf)]


def _results_of_sides(vectors: Vectors, totals: Totals) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    student, teacher = totals.student, totals.teacher
    return [
        (vectors.student_shift_hbm, student.neg_shift_sbuf),
        (vectors.student_sum_hbm, student.sums_sbuf),
        (vectors.teacher_shift_hbm, teacher.neg_shift_sbuf),
        (vectors.teacher_sum_hbm, teacher.sums_sbuf),
    ]
