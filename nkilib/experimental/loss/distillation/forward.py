"""The forward on one core.

A Kullback-Leibler divergence takes one visit of a row: its shifts are the maxima of its first columns. What is wrong
with them in a row shows in its sums; such rows are computed anew under their maxima when all others are done
(:mod:`nkilib.core.rows.recomputation`). Jensen-Shannon takes a second visit for the terms of the mixture, which need
both log-sum-exps.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.gathered import GatheredRows
from nkilib.core.rows.recomputation import FlaggedRows
from nkilib.core.rows.stream import Rows
from nkilib.core.rows.tiles import selected
from nkilib.experimental.loss.distillation.options import Launch
from nkilib.experimental.loss.distillation.pair import Buffers, PairStream
from nkilib.experimental.loss.distillation.rows import Exponentials, Vectors, groups_of, loaded_rows
from nkilib.experimental.loss.distillation.totals import (
    Divergences,
    Totals,
    jensen_shannon_of_totals,
    kl_of_totals,
)
from nkilib.experimental.loss.distillation.visits import Visits, center_of, shift_difference
from nkilib.nki import nisa, nl

_PSUM_TURNS = 3


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
        buffers, visits: what a visit takes.
        totals: of all rows.
        flagged: rows to be computed anew; None where the shifts are the maxima of whole rows, and where a core has
            none, so that cores could not agree on a number of rows.
    """

    launch: Launch
    batches: list[Batch]
    buffers: Buffers
    visits: Visits
    totals: Totals
    flagged: FlaggedRows | None

    @classmethod
    def make(cls, launch: Launch, batches: list[Batch]) -> _Forward:
        scratch = ("difference", "other", "student", "power") if launch.is_mixed else ("difference", "other")
        buffers = Buffers.make(launch, scratch, _PSUM_TURNS)
        parts = PairStream.make(launch, batches, buffers).pieces_of_row
        flagged = None
        if launch.has_samples and launch.num_positions > 1:
            flagged = FlaggedRows.make(
                launch.num_positions, nl.num_programs(), nl.program_id(), batches[0].rows, len(batches)
            )
        totals = Totals.make(len(batches), launch.scale)
        return cls(launch, batches, buffers, Visits.make(launch, buffers, parts), totals, flagged)

    def run(self, vectors: Vectors) -> None:
        """Go through all rows, then through those that are to be computed anew."""
        self._visit(self.batches, self.totals, self.launch.is_mixed)
        if self.flagged is None and self.launch.has_samples:
            self._replace_doubtful()
        found = self._divergences(self.totals)
        self._ignore(found, None)
        stores = self._store(vectors, found)
        if self.flagged is None:
            return
        doubtful_sbuf = self.totals.doubtful(self.launch)
        for group in groups_of(self.batches):
            flags_sbuf = nl.ndarray((group.rows, group.batches), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=flags_sbuf, src=doubtful_sbuf[0 : group.rows, group.start : group.end])
            self.flagged.put(self.flagged.counted(flags_sbuf), group)
        others_sbuf = self.flagged.exchanged_count()

        def compute(tiles: list[GatheredRows]) -> None:
            for tile in tiles:
                self._anew(tile, vectors)

        self.flagged.recompute(compute, others_sbuf, stores)

    def _visit(self, batches: list[Batch], totals: Totals, has_two: bool) -> None:
        """All batches, each once or twice, under shifts that are known from their first columns."""
        visits = [batch for batch in batches for _ in range(2 if has_two else 1)]
        stream = PairStream.make(self.launch, visits, self.buffers)
        for number, batch in enumerate(batches):
            of_batch = totals.of_batch(number, batch.rows)
            first = number * (2 if has_two else 1)
            if has_two:
                self._first_visit(stream, first, of_batch, takes_shifts=True)
                self._second_visit(stream, first + 1, of_batch)
            else:
                self._only_visit(stream, first, of_batch, takes_shifts=True)

    def _first_visit(self, stream: PairStream[Rows], visit: int, totals: Totals, takes_shifts: bool) -> None:
        for load in range(visit * stream.num_chunks, (visit + 1) * stream.num_chunks):
            pair = stream.loaded(load)
            if takes_shifts:
                self.visits.shifts(pair, totals)
            self.visits.exponentials(pair, totals)
        self.visits.close_exponentials(visit, stream.num_chunks, totals)

    def _second_visit(self, stream: PairStream[Rows], visit: int, totals: Totals) -> None:
        center_sbuf = center_of(self.launch, totals)
        for load in range(visit * stream.num_chunks, (visit + 1) * stream.num_chunks):
            self.visits.mixture(stream.loaded(load), totals, center_sbuf)
        self.visits.close_mixture(visit, self.launch.vocab_size, stream.num_chunks, totals)

    def _only_visit(self, stream: PairStream[Rows], visit: int, totals: Totals, takes_shifts: bool) -> None:
        center_sbuf = None
        for load in range(visit * stream.num_chunks, (visit + 1) * stream.num_chunks):
            pair = stream.loaded(load)
            if takes_shifts:
                self.visits.shifts(pair, totals)
            if center_sbuf is None:
                center_sbuf = shift_difference(*totals.weighting(self.launch))
            self.visits.divergence(pair, totals, center_sbuf)
        self.visits.close_divergence(visit, self.launch.vocab_size, stream.num_chunks, totals)

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
        self._ignore(found, tile)
        for vector_hbm, values_sbuf in _results(vectors, found, totals):
            tile.stored(vector_hbm, values_sbuf)

    def _under_maxima(self, rows: Rows) -> Totals:
        """The totals of rows under their maxima: one more visit, which takes these."""
        all_rows = Totals.make(1, self.launch.scale)
        totals = all_rows.of_batch(0, rows.rows)
        stream = PairStream.make(self.launch, [rows] * (3 if self.launch.is_mixed else 2), self.buffers)
        for load in range(stream.num_chunks):
            self.visits.maxima(stream.loaded(load), totals)
        if self.launch.is_mixed:
            self._first_visit(stream, 1, totals, takes_shifts=False)
            self._second_visit(stream, 2, totals)
        else:
            self._only_visit(stream, 1, totals, takes_shifts=False)
        return all_rows

    def _divergences(self, totals: Totals) -> Divergences:
        return (jensen_shannon_of_totals if self.launch.is_mixed else kl_of_totals)(self.launch, totals)

    def _ignore(self, found: Divergences, tile: GatheredRows | None) -> None:
        """The loss of positions that do not count is 0, whatever their logits are."""
        labels_hbm = self.launch.labels_hbm
        if labels_hbm is None:
            return
        if tile is None:
            labels_sbuf = loaded_rows(labels_hbm, self.batches, nl.int32)
        else:
            labels_sbuf = tile.loaded(labels_hbm, nl.int32)
        counts_sbuf = counting(labels_sbuf, self.launch.options.ignore_index)
        for values_sbuf in {id(each): each for each in (found.loss_sbuf, found.moment_sbuf)}.values():
            nisa.tensor_copy(dst=values_sbuf, src=selected(values_sbuf, counts_sbuf))

    def _store(self, vectors: Vectors, found: Divergences) -> list[nisa.NkiInstruction]:
        return [
            group.stored(vector_hbm, values_sbuf[0 : group.rows, group.start : group.end])
            for vector_hbm, values_sbuf in _results(vectors, found, self.totals)
            for group in groups_of(self.batches)
        ]


def counting(labels_sbuf: nl.NkiTensor, ignore_index: int) -> nl.NkiTensor:
    """1 where a label is not ``ignore_index``, else 0: uint32, compared as integers."""
    rows, batches = labels_sbuf.shape
    counts_sbuf = nl.ndarray((rows, batches), dtype=nl.uint32, buffer=nl.sbuf)
    ignored_sbuf = int32_column(rows, ignore_index, 0).broadcast(1, batches)
    integer_op(counts_sbuf, labels_sbuf, ignored_sbuf, nl.not_equal)
    return counts_sbuf


def _results(vectors: Vectors, found: Divergences, totals: Totals) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    def of_side(side: Exponentials) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        return side.neg_shift_sbuf, side.sums_sbuf

    tiles = (found.loss_sbuf, found.moment_sbuf, *of_side(totals.student), *of_side(totals.teacher))
    return list(zip(vectors.returned(), tiles, strict=True))
