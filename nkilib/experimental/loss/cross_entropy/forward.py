# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy of the positions of one core (:func:`forward_of_core`).

The statistics of rows (maxima, sums, and further sums called *moments*) are computed chunk by chunk, and the results
for a group of batches at a time. :class:`_MaximumForward` computes exponentials with the exact maximum of every row,
:class:`_ShiftedForward` under a shift in place of the maximum. *Scores* are the values in tiles: the logits, or the
tangents tanh(x / c) under a cap c; z is the scores times ``Options.scale``. Chunks are numbered over all batches of the
core; the argument ``load`` is such a number. To *open* a chunk is to do all work on it that comes before its
exponentials.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from nkilib.core.hardware import div_ceil
from nkilib.core.psum import PsumRing
from nkilib.core.rows.batches import SWAPPED_BATCHES_MIN, Batch, BatchGroup, RowsAhead, SwappedResult, batch_groups
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.gathered import ROWS_OF_TILE, GatheredRows, KeptValues, Slots
from nkilib.core.rows.moments import Moments, raise_negligible
from nkilib.core.rows.recomputation import FlaggedRows
from nkilib.core.rows.sbuf import TileRing
from nkilib.core.rows.shifted import SUM_MAX_BESIDE_ENTROPY, doubtful, sum_max
from nkilib.core.rows.statistics import (
    STATISTICS_COLUMNS,
    Columns,
    MaximumFolds,
    Place,
    Statistics,
    most_batches_of_group,
)
from nkilib.core.rows.stream import Chunk, Stream
from nkilib.core.rows.tiles import load_table
from nkilib.experimental.loss.cross_entropy.launch import Launch, Options
from nkilib.experimental.loss.cross_entropy.layouts.batches import forward_batches
from nkilib.experimental.loss.cross_entropy.layouts.forward import forward_of_batches
from nkilib.experimental.loss.cross_entropy.results import Group, Results, ShiftedGroup, store_results, swapped_results
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.cross_entropy.targets import (
    ClassFactors,
    FactorRings,
    FoundTargets,
    TargetFinder,
    TargetMasks,
    TargetValues,
)
from nkilib.nki import nisa, nl

# The factor by which a chunk of recomputed rows is smaller.
_RECOMPUTED_PARTS = 2
# Columns of a first chunk from which the shift is computed if an entropy is requested.
_SAMPLE_BESIDE_ENTROPY = 2048


@dataclass(frozen=True)
class _OpenChunk:
    """A chunk whose maximum has been computed, and whose exponentials have not.

    Attributes:
        load: the number of the chunk.
        place: the place of the chunk's statistics in the tiles of its group of batches.
        scores_sbuf: the scores.
    """

    load: int
    place: Place
    scores_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _MaximumForward:
    """The forward with the exact maximum of every row: the state that all chunks share.

    Attributes:
        launch, options: the arguments and the options of the kernel.
        logits: the stream of chunks of logits.
        factors: the stream of class weights and class probabilities.
        scores: scratch tiles for the scores under a cap.
        products: scratch tiles for products of scores and class factors.
        exponentials: PSUM tiles for the exponentials of pieces of a chunk, which the entropy needs; None without an
            entropy.
        folds: tiles into which GpSimd folds chunks, so that Vector takes the maximum of fewer elements; None if Vector
            takes the maximum of whole chunks.
        finder: locates the targets; None for class probabilities.
    """

    launch: Launch
    options: Options
    logits: Stream[Batch]
    factors: ClassFactors
    scores: TileRing
    products: TileRing
    exponentials: PsumRing | None
    folds: MaximumFolds | None
    finder: TargetFinder | None

    @classmethod
    def make(cls, launch: Launch, options: Options, batches: list[Batch]) -> _MaximumForward:
        plan = options.forward_plan
        sbuf, folding = launch.divided_beside_folds(options, batches)
        scores = sbuf.ring(options.softcap is not None)
        rings = FactorRings.make(sbuf, options)
        products = sbuf.ring(options.sums_classes)
        exponentials = PsumRing.make(sbuf.rows, sbuf.chunk_size) if options.wanted.entropy else None
        logits = Stream.make(launch.logits_hbm, batches, sbuf.buffers())
        factors = ClassFactors.make(launch, options, logits, rings)
        finder = None
        if not options.has_probabilities:
            finder = TargetFinder.make(launch.targets_hbm, batches[0].rows, batches[0].cores, options)
        folds = MaximumFolds.make(plan, sbuf, folding)
        return cls(launch, options, logits, factors, scores, products, exponentials, folds, finder)

    def run(self, results: Results) -> None:
        """Process all chunks, and store the results.

        The results of a group are computed during the first chunks of the next group, so that no engine waits for
        another one.
        """
        chunks = self.logits.num_chunks
        groups = batch_groups(self.logits.batches, most_batches_of_group(chunks))
        ahead = self._targets_ahead(groups[0])
        load_table(nl.exp)
        previous, swapped = None, list[SwappedResult]()
        for number, batches in enumerate(groups):
            group = Group.make(batches, chunks, self.launch, self.options)
            first, last = batches.start * chunks, batches.end * chunks - 1
            opened, found = deque[_OpenChunk](), self._found(group, ahead)
            for load in range(first, last + 1):
                self._open_chunks(group, opened, load, batches)
                self._take_exponentials(group, opened.popleft())
                chunk = self.logits.chunk(load)
                if load == first and number + 1 < len(groups):
                    ahead = self._targets_ahead(groups[number + 1])
                if chunk.number == min(1, chunks - 1) and found is not None and group.targets is not None:
                    batch = load // chunks - batches.start
                    group.targets.gather(self.launch, found.of_batch(batch, chunk.batch), chunk.batch, batch)
                if previous is not None and load == first:
                    self._take_logs(previous)
                if previous is not None and load == min(first + 1, last):
                    swapped = self._finish(previous, results)
                if load == first + 2:
                    swapped = self._store(swapped)
            group.take_weights(chunks)
            swapped = self._store(swapped)
            previous = group
        if previous is not None:
            load_table(nl.log)
            self._take_logs(previous)
            store_results(previous, results, self.options)

    def _found(self, group: Group, rows: RowsAhead | None) -> FoundTargets | None:
        if rows is None or group.targets is None or self.finder is None:
            return None
        return self.finder.found(rows, group.targets.masks)

    def _store(self, swapped: list[SwappedResult]) -> list[SwappedResult]:
        for result in swapped:
            result.store()
        return []

    def _finish(self, group: Group, results: Results) -> list[SwappedResult]:
        """Store the results of a group, or begin to swap them between the cores; return the swaps, to be stored
        later.
        """
        batches = group.batches
        if isinstance(batches, BatchGroup) and batches.batches >= SWAPPED_BATCHES_MIN and self.launch.cores_are_alike:
            return swapped_results(group, batches, results, self.options)
        store_results(group, results, self.options)
        return []

    def _targets_ahead(self, group: BatchGroup) -> RowsAhead | None:
        """Begin to load the targets of a group, so that GpSimd, which also folds chunks, does not wait for them; None
        for class probabilities.
        """
        return None if self.finder is None else group.ahead(self.launch.targets_hbm, nl.int32)

    def _take_logs(self, group: Group) -> None:
        group.combine(self.logits.num_chunks)
        group.statistics.take_logs()

    def _open_chunks(self, group: Group, opened: deque[_OpenChunk], load: int, batches: BatchGroup) -> None:
        """Open chunk number ``load`` if it is not open yet; with a cap or an entropy, if possible the next chunk too.

        Opening the next chunk early gives Vector work while it would wait for Scalar or GpSimd. This requires a third
        chunk buffer: with two, it would start a load into the buffer of this chunk.
        """
        options = self.options
        is_ahead = options.softcap is not None or options.wanted.entropy
        has_tiles = len(self.logits.buffers_sbuf) > 2 and len(self.scores.tiles_sbuf) != 1
        if not opened:
            opened.append(self._opened(group, load, batches.start))
        if is_ahead and has_tiles and load < batches.end * self.logits.num_chunks - 1:
            number = self.logits.chunk(load + 1).number
            # Full columns are combined first, for which this chunk must be through.
            if not group.statistics.columns.are_full(number):
                opened.append(self._opened(group, load + 1, batches.start))

    def _opened(self, group: Group, load: int, first_batch: int) -> _OpenChunk:
        """Open a chunk: compute its maximum and, if requested, its sums over classes and its argmax."""
        statistics, moments, chunk = group.statistics, group.moments, self.logits.chunk(load)
        if statistics.columns.are_full(chunk.number):
            group.restart(chunk.number)
        place = statistics.columns.place(load // self.logits.num_chunks - first_batch, chunk.number)
        neg_max_sbuf = place.of(statistics.neg_max_sbuf)
        logits_sbuf = self.logits.loaded(load)
        scores_sbuf = self._scores(load, logits_sbuf)
        statistics.take_maximum(scores_sbuf if self.folds is None else self.folds.folded(load, scores_sbuf), place)
        if group.argmax is not None:
            if self.options.softcap is not None:  # keeps the order, but rounding makes equals of some
                nisa.tensor_reduce(dst=group.exact_neg_max_sbuf, op=nl.maximum, data=logits_sbuf, axis=1, negate=True)
            first_class = self.options.classes.first + chunk.start
            group.argmax.take(logits_sbuf, group.exact_neg_max_sbuf, place, first_class)
        if moments is not None and moments.first is not None:
            factors_sbuf = self.factors.loaded(load)
            products_sbuf = self.products.tile(load, logits_sbuf)
            moments.first.take(scores_sbuf, factors_sbuf, products_sbuf, neg_max_sbuf, place)
        if self.exponentials is not None:
            raise_negligible(scores_sbuf, neg_max_sbuf, statistics.scale.least, is_shared=self.folds is None)
        return _OpenChunk(load, place, scores_sbuf)

    def _take_exponentials(self, group: Group, chunk: _OpenChunk) -> None:
        """Compute the sum of the exponentials of a chunk and, if requested, the terms of the entropy."""
        moments = group.moments
        if moments is None or moments.entropy is None or self.exponentials is None:
            group.statistics.take_sum(chunk.scores_sbuf, chunk.scores_sbuf, chunk.place)
            return
        pieces = self.exponentials.pieces(chunk.load, chunk.scores_sbuf)
        moments.entropy.take(group.statistics, chunk.scores_sbuf, pieces, chunk.place)

    def _scores(self, load: int, logits_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the scores of a chunk of logits; in float32 under a cap."""
        softcap = self.options.softcap
        if softcap is None:
            return logits_sbuf
        scores_sbuf = self.scores.tile(load, logits_sbuf)
        hyperbolic_tangents(scores_sbuf, logits_sbuf, softcap)
        masked_tangents(scores_sbuf, scores_sbuf, logits_sbuf)
        return scores_sbuf


@dataclass(frozen=True)
class _ShiftedForward:
    """The forward under shifts: the state that all chunks share.

    The shift of a row, which is subtracted in place of the maximum, is the larger of the maximum of its first chunk and
    the logit of its target. If the sum of exponentials shows that the shift was unsuitable, the row is recomputed with
    its maximum after all other rows are done (:mod:`nkilib.core.rows.shifted`, :mod:`nkilib.core.rows.recomputation`).

    Attributes:
        launch, options: the arguments and the options of the kernel.
        results: the result vectors of the kernel.
        target_logits: the targets' logits, kept for recomputed rows.
        logits: the stream of chunks of logits.
        groups: the groups of batches.
        finder: locates the targets.
        flagged: the rows to be recomputed.
        exponentials: PSUM tiles for the exponentials of pieces of a chunk, which the entropy needs; None without an
            entropy.
        folds: tiles into which GpSimd folds chunks of recomputed rows, so that Vector takes the maximum of fewer
            elements; None if Vector takes the maximum of whole chunks.
        stores: the DMA instructions that store results; the recomputation of rows waits for them.
    """

    launch: Launch
    options: Options
    results: Results
    target_logits: KeptValues
    logits: Stream[Batch]
    groups: list[BatchGroup]
    finder: TargetFinder
    flagged: FlaggedRows
    exponentials: PsumRing | None
    folds: MaximumFolds | None
    stores: list[nisa.NkiInstruction]

    @classmethod
    def make(cls, launch: Launch, options: Options, results: Results) -> _ShiftedForward:
        """Allocate the state for a core that has at least one position."""
        batches = launch.batches()
        # Recomputed rows take the same buffers, one per partition.
        plan = options.forward_plan
        sbuf = replace(launch.divided(plan, batches), rows=ROWS_OF_TILE)
        logits = Stream.make(launch.logits_hbm, batches, sbuf.buffers(), is_first_halved=True)
        rows, cores = batches[0].rows, batches[0].cores
        flagged = FlaggedRows.make(launch.num_positions, cores, nl.program_id(), rows, len(batches))
        exponentials = None
        if options.wanted.entropy:
            exponentials = PsumRing.make(sbuf.rows, sbuf.chunk_size, flagged.psum_bytes)
        return cls(
            launch,
            options,
            results,
            KeptValues.make("target_logits_hbm", len(batches), launch.dtype),
            logits,
            batch_groups(batches, most_batches_of_group(logits.num_chunks)),
            TargetFinder.make(launch.targets_hbm, rows, cores, options),
            flagged,
            exponentials,
            MaximumFolds.make(plan, sbuf, options.folding(launch.dtype)) if options.wanted.entropy else None,
            [],
        )

    def run(self) -> None:
        """Process all chunks, then the rows that have to be recomputed.

        The results of a group are computed during the chunks of the next group, so that no engine waits for another
        one.
        """
        chunks = self.logits.num_chunks
        previous, group = None, self._group(0)
        self._gather_targets(group, 0)
        for number, batches in enumerate(self.groups):
            first, last = batches.start * chunks, batches.end * chunks - 1
            following, opened = group, first
            for load in range(first, last + 1):
                chunk = self.logits.chunk(load)
                visit = load // chunks
                while opened <= min(load + self._ahead, last):
                    self._open_chunk(group, self.logits.chunk(opened), opened // chunks - batches.start)
                    opened += 1
                self._take_chunk(group, chunk, visit - batches.start)
                if chunk.number == 0 and visit + 1 < len(self.logits.batches):
                    if visit + 1 == batches.end:
                        following = self._group(number + 1)
                    self._gather_targets(following, visit + 1)
                if previous is not None and load == first:
                    self._take_logs(previous)
                # The loads of the group have been issued: stores of single elements keep the DMA engines busy for long.
                if previous is not None and load == max(first, last - 2):
                    self._finish(previous)
            previous, group = group, following
        self._end(group)

    def _group(self, number: int) -> ShiftedGroup:
        return ShiftedGroup.make(self.groups[number], self.logits.num_chunks, self.launch, self.options)

    def _gather_targets(self, group: ShiftedGroup, visit: int) -> None:
        """Gather the logits and class weights at the targets of batch number ``visit``."""
        at, rows = visit - group.batches.start, self.logits.batches[visit]
        elements = self.finder.find(rows, group.targets.masks_of_batch(at))
        group.targets.gather(self.launch, elements, rows, at)

    @property
    def _ahead(self) -> int:
        """The number of chunks that are opened before the sums of the current chunk are computed.

        With an entropy and a third chunk buffer it is 1, so that Vector works on the next chunk meanwhile; else it is
        0. With two buffers, opening the next chunk would start a load into the buffer of the current chunk.
        """
        return 1 if self.options.wanted.entropy and len(self.logits.buffers_sbuf) > 2 else 0

    def _open_chunk(self, group: ShiftedGroup, chunk: Chunk[Batch], batch: int) -> None:
        """Open a chunk: for the first chunk of a row compute the shift, and with an entropy raise negligible
        elements.
        """
        statistics, chunk_sbuf = group.statistics, self.logits.loaded(chunk.load)
        if chunk.number == 0:
            # Beside the entropy, Vector has no time for more.
            columns = min(chunk.columns, _SAMPLE_BESIDE_ENTROPY) if group.entropy is not None else chunk.columns
            sample_sbuf = chunk_sbuf[:, 0:columns]
            statistics.take_shift(sample_sbuf, group.targets.logits_sbuf[:, batch : batch + 1], batch)
        if group.entropy is not None:
            raise_negligible(chunk_sbuf, statistics.shift_of(batch), statistics.scale.least, is_shared=True)

    def _take_chunk(self, group: ShiftedGroup, chunk: Chunk[Batch], batch: int) -> None:
        statistics = group.statistics
        if statistics.columns.are_full(chunk.number):
            group.restart(chunk.number)
        chunk_sbuf = self.logits.on_chip(chunk.load)
        place = statistics.columns.place(batch, chunk.number)
        if group.entropy is None or self.exponentials is None:
            statistics.take_sum(chunk_sbuf, chunk_sbuf, place)
        else:
            group.entropy.take(statistics, chunk_sbuf, self.exponentials.pieces(chunk.load, chunk_sbuf), place)

    def _take_logs(self, group: ShiftedGroup) -> None:
        group.combine(self.logits.num_chunks)
        group.statistics.take_logs()

    def _finish(self, group: ShiftedGroup) -> None:
        self._store(group)
        self.flagged.put(self._counted(group), group.batches)

    def _end(self, group: ShiftedGroup) -> None:
        """Finish the last group; its results are stored while the cores exchange the number of rows to be
        recomputed.
        """
        group.combine(self.logits.num_chunks)
        slots = self._counted(group)
        others_sbuf = self.flagged.exchanged_count()
        group.statistics.take_logs()
        self._store(group)
        self.flagged.put(slots, group.batches)
        self.flagged.recompute(self._recompute, others_sbuf, self.stores)

    def _counted(self, group: ShiftedGroup) -> Slots:
        most = sum_max(self.launch.dtype) if group.entropy is None else SUM_MAX_BESIDE_ENTROPY
        return self.flagged.counted(doubtful(group.statistics.row_sum_sbuf, most))

    def _store(self, group: ShiftedGroup) -> None:
        self.stores.extend(store_results(group, self.results, self.options))
        self.stores.append(self.target_logits.keep(group.targets.logits_sbuf, group.batches))

    def _recompute(self, tiles: list[GatheredRows]) -> None:
        """Recompute the results of the gathered rows with their maxima, and store the results except the targets'
        logits and weights.
        """
        logits = Stream.make(self.launch.logits_hbm, tiles, self._smaller_buffers())
        chunks = logits.num_chunks
        columns = Columns(ROWS_OF_TILE, 1, min(chunks, STATISTICS_COLUMNS))
        groups: list[Group] = []
        for load in range(logits.loads):
            chunk = logits.chunk(load)
            if chunk.number == 0:
                scale = self.options.scale_of(self.launch.temperatures(chunk.batch, (ROWS_OF_TILE, 1)))
                statistics = Statistics.make(columns, self.launch.dtype, scale)
                moments = Moments.make(columns, False, self.options.wanted.entropy)
            if columns.are_full(chunk.number):
                groups[-1].restart(chunk.number)
            chunk_sbuf, place = logits.loaded(load), columns.place(0, chunk.number)
            statistics.take_maximum(chunk_sbuf if self.folds is None else self.folds.folded(load, chunk_sbuf), place)
            if moments is None or moments.entropy is None or self.exponentials is None:
                statistics.take_sum(chunk_sbuf, chunk_sbuf, place)
            else:
                raise_negligible(chunk_sbuf, place.of(statistics.neg_max_sbuf), statistics.scale.least)
                moments.entropy.take(statistics, chunk_sbuf, self.exponentials.pieces(load, chunk_sbuf), place)
            if chunk.number == 0:  # its gathers come behind those of the first chunks
                targets = self._targets_of(chunk.batch)
                groups.append(Group(chunk.batch, statistics, moments, None, statistics.exact_neg_max_sbuf, targets))
        # All tiles at the end: a store that waits for its values would hold up gathers of chunks.
        for group in groups:
            group.take_weights(chunks)
            group.combine(chunks)
        for group in groups:
            group.statistics.take_logs()
            store_results(group, replace(self.results, target_logit_hbm=None, position_weight_hbm=None), self.options)

    def _smaller_buffers(self) -> list[nl.NkiTensor]:
        """Return a part of each chunk buffer, for the shorter chunks of recomputed rows.

        No other work overlaps the first load and the last exponentials of an iteration; short chunks keep both short.
        """
        size = div_ceil(self.logits.chunk_size, _RECOMPUTED_PARTS)
        return [buffer_sbuf[:, 0:size] for buffer_sbuf in self.logits.buffers_sbuf]

    def _targets_of(self, rows: GatheredRows) -> TargetValues:
        """Return the values at the targets of rows to be recomputed, from the stored logits and weights of their
        targets.
        """
        masks = weights_sbuf = None
        if not self.options.is_plain:
            valid_sbuf = nl.ndarray((rows.rows, 1), dtype=nl.uint32, buffer=nl.sbuf)
            ignored_sbuf = int32_column(rows.rows, self.options.recipe.ignore_index, 0)
            integer_op(valid_sbuf, rows.loaded(self.launch.targets_hbm, nl.int32), ignored_sbuf, nl.not_equal)
            masks = TargetMasks(valid_sbuf, valid_sbuf)
        if self.options.is_weighted and self.results.position_weight_hbm is not None:
            weights_sbuf = rows.loaded(self.results.position_weight_hbm)
        return TargetValues(rows.kept(self.target_logits), masks, weights_sbuf)


def forward_of_core(launch: Launch, options: Options, results: Results) -> None:
    """Compute and store the results of this core's positions."""
    laid_out = None if options.with_shift else forward_batches(launch, options)
    if laid_out is not None:
        forward_of_batches(launch, options, results, laid_out)
        return
    if options.with_shift:
        _ShiftedForward.make(launch, options, results).run()
        return
    batches = launch.batches()
    if batches:
        _MaximumForward.make(launch, options, batches).run(results)
