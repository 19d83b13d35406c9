# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward on one core.

The shifts of rows are the maxima of their first columns. An unsuitable shift of a row shows in its sums; such rows are
recomputed under their maxima when all others are done (:mod:`nkilib.core.rows.recomputation`).
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
    """Compute and store the results of this core's positions."""
    batches = launch.batches()
    if batches:
        _Forward.make(launch, batches).run(vectors)


@dataclass(frozen=True)
class _Forward:
    """The state that all rows of the forward share.

    Attributes:
        launch: the launch of the kernel.
        batches: the batches of the core.
        walk: the object that gathers the totals of rows.
        totals: the totals of all rows.
        flagged: the rows to be recomputed. None if the shifts are the maxima of whole rows, or if there is only one
            position: then a core may have none, and the cores could not agree on a number of rows.
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
        """Process all rows, then the rows that have to be recomputed."""
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
        """Yield groups of batches and their labels, each when its batches have been visited.

        All batches are visited under shifts from their first columns. Shifts and sums are stored batch
        by batch: a value of a row costs a DMA engine as much as a row, and loads would wait for many.
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
        """Store the divergences of a group of batches, and count its rows that have to be recomputed."""
        totals = self.totals.of_batches(group.start, group.end, group.rows)
        divergences = self._divergences(totals)
        self._ignore(divergences, labels_sbuf)
        stores = [
            group.stored(vector_hbm, tile_sbuf) for vector_hbm, tile_sbuf in _divergences_in(vectors, divergences)
        ]
        if self.flagged is not None:
            self.flagged.add(totals.doubtful(self.launch), group)
        return stores

    def _replace_doubtful(self) -> None:
        """Compute the row of a launch of one position under its maxima too, and replace its totals if untrusted."""
        exact = self._under_maxima(self.batches[0])
        flags_sbuf = self.totals.doubtful(self.launch)
        doubtful_sbuf = nl.ndarray(flags_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=doubtful_sbuf, src=flags_sbuf)
        for tile_sbuf, exact_sbuf in zip(self.totals.tiles(), exact.tiles(), strict=True):
            nisa.tensor_copy_predicated(dst=tile_sbuf, src=exact_sbuf, predicate=doubtful_sbuf)

    def _recompute(self, tile: GatheredRows, vectors: Vectors) -> None:
        """Recompute and store the results of rows under their maxima."""
        totals = self._under_maxima(tile)
        divergences = self._divergences(totals)
        labels_hbm = self.launch.labels_hbm
        self._ignore(divergences, None if labels_hbm is None else tile.loaded(labels_hbm, nl.int32))
        for vector_hbm, values_sbuf in _divergences_in(vectors, divergences) + _results_of_sides(vectors, totals):
            tile.stored(vector_hbm, values_sbuf)

    def _under_maxima(self, rows: Rows) -> Totals:
        """Return the totals of rows under their maxima, which are taken first."""
        all_rows = Totals.make(1, self.launch.scale)
        totals = all_rows.of_batches(0, 1, rows.rows)
        for _ in self.walk.visit([rows], [totals], True, lambda _: None):
            pass
        return all_rows

    def _divergences(self, totals: Totals) -> Divergences:
        return (jensen_shannon_of_totals if self.launch.is_mixed else kl_of_totals)(self.launch, totals)

    def _ignore(self, divergences: Divergences, labels_sbuf: nl.NkiTensor | None) -> None:
        """Set the results of ignored positions to 0, whatever their logits are."""
        if labels_sbuf is None:
            return
        counts_sbuf = valid_mask(labels_sbuf, self.launch.options.ignore_index)
        for values_sbuf in {
            id(result_sbuf): result_sbuf for result_sbuf in (divergences.loss_sbuf, divergences.moment_sbuf)
        }.values():
            nisa.tensor_copy(dst=values_sbuf, src=selected(values_sbuf, counts_sbuf))


def valid_mask(labels_sbuf: nl.NkiTensor, ignore_index: int) -> nl.NkiTensor:
    """Return a mask, uint32: 1 where a label is not ``ignore_index``, else 0. Labels are compared as integers."""
    rows, batches = labels_sbuf.shape
    counts_sbuf = nl.ndarray((rows, batches), dtype=nl.uint32, buffer=nl.sbuf)
    ignored_sbuf = int32_column(rows, ignore_index, 0).broadcast(1, batches)
    integer_op(counts_sbuf, labels_sbuf, ignored_sbuf, nl.not_equal)
    return counts_sbuf


def _divergences_in(vectors: Vectors, divergences: Divergences) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    return [(vectors.loss_hbm, divergences.loss_sbuf), (vectors.moment_hbm, divergences.moment_sbuf)]


def _results_of_sides(vectors: Vectors, totals: Totals) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    student, teacher = totals.student, totals.teacher
    return [
        (vectors.student_shift_hbm, student.neg_shift_sbuf),
        (vectors.student_sum_hbm, student.sums_sbuf),
        (vectors.teacher_shift_hbm, teacher.neg_shift_sbuf),
        (vectors.teacher_sum_hbm, teacher.sums_sbuf),
    ]
