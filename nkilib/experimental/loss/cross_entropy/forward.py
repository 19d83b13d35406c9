# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward on one core.

The statistics of rows, such as maxima and sums, are computed chunk by chunk, and the results from them for
a group of batches at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nkilib.core.rows.batches import Batch, BatchGroup, batch_groups
from nkilib.core.rows.folds import MaximumFolds
from nkilib.core.rows.moments import raise_negligible
from nkilib.core.rows.psum import PsumRing
from nkilib.core.rows.sbuf import TileRing
from nkilib.core.rows.statistics import Place, most_batches_of_group
from nkilib.core.rows.stream import Stream
from nkilib.experimental.loss.cross_entropy.class_factors import ClassFactors, FactorRings
from nkilib.experimental.loss.cross_entropy.group import Group
from nkilib.experimental.loss.cross_entropy.options import Launch, Options
from nkilib.experimental.loss.cross_entropy.results import Results, store_results
from nkilib.experimental.loss.cross_entropy.shifted_forward import shifted_forward_of_core
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.cross_entropy.targets import TargetFinder
from nkilib.nki import nisa, nl


def forward_of_core(launch: Launch, options: Options, results: Results) -> None:
    """Compute and store the results of this core's positions."""
    if options.with_shift:
        shifted_forward_of_core(launch, options, results)
        return
    batches = launch.batches()
    if batches:
        _Forward.make(launch, options, batches).run(results)


@dataclass(frozen=True)
class _OpenChunk:
    """A chunk whose maximum has been computed, and whose exponentials have not.

    Attributes:
        load: the index of the chunk among all chunks of the core.
        place: the place of the chunk's statistics in the tiles of its group of batches.
        scores_sbuf: the scores, which times ``Options.scale`` are z: the logits, or the tangents tanh(x / c)
            for a cap c.
    """

    load: int
    place: Place
    scores_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _Forward:
    """The state that all chunks of the forward share.

    Attributes:
        launch, options: the arguments and the options of the kernel.
        logits: the stream of chunks of logits.
        factors: the stream of class weights and class probabilities.
        scores, products: scratch tiles for scores (with a cap), and for products of scores and class factors.
        exponentials: PSUM buffers for exponentials of pieces of a chunk, used for the entropy; None without
            that.
        folds: tiles into which GpSimd folds chunks, so that Vector takes the maximum of fewer elements; None if
            Vector takes the maximum of whole chunks.
        finder: the object that locates the targets; None for class probabilities.
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
    def make(cls, launch: Launch, options: Options, batches: list[Batch]) -> _Forward:
        plan = options.forward_plan
        sbuf = launch.divided(plan, batches)
        scores = sbuf.ring(options.softcap is not None)
        rings = FactorRings.make(sbuf, options)
        products = sbuf.ring(options.sums_classes)
        exponentials = PsumRing.make(sbuf.rows, sbuf.chunk_size) if options.wanted.entropy else None
        logits = Stream.make(launch.logits_hbm, batches, sbuf.buffers())
        factors = ClassFactors.make(launch, options, logits, rings)
        finder = None
        if not options.has_probabilities:
            finder = TargetFinder.make(launch.targets_hbm, batches[0].rows, batches[0].cores, options)
        folds = MaximumFolds.make(plan, sbuf) if options.folds_maxima(launch.dtype) else None
        return cls(launch, options, logits, factors, scores, products, exponentials, folds, finder)

    def run(self, results: Results) -> None:
        """Process all chunks, and store the results of each group of batches.

        The results of a group are computed during the first chunks of the next one, so that no engine waits for
        another one.
        """
        chunks = self.logits.num_chunks
        previous = None
        for batches in batch_groups(self.logits.batches, most_batches_of_group(chunks)):
            group = Group.make(batches, chunks, self.launch.dtype, self.options)
            first, last = batches.start * chunks, batches.end * chunks - 1
            opened = deque[_OpenChunk]()
            for load in range(first, last + 1):
                self._open_chunks(group, opened, load, batches)
                self._take_exponentials(group, opened.popleft())
                chunk = self.logits.chunk(load)
                batch = load // chunks - batches.start
                if group.targets is not None and self.finder is not None:
                    if chunk.number == 0:
                        elements = self.finder.find(chunk.batch, group.targets.masks_of_batch(batch))
                    if chunk.number == min(1, chunks - 1):
                        group.targets.gather(self.launch, elements, chunk.batch, batch)
                if previous is not None and load == first:
                    self._take_logs(previous)
                if previous is not None and load == min(first + 1, last):
                    store_results(previous, results, self.options)
            group.take_weights(chunks)
            previous = group
        if previous is not None:
            self._take_logs(previous)
            store_results(previous, results, self.options)

    def _take_logs(self, group: Group) -> None:
        group.combine(self.logits.num_chunks)
        group.statistics.take_logs()

    def _open_chunks(self, group: Group, opened: deque[_OpenChunk], load: int, batches: BatchGroup) -> None:
        """Do the work that precedes the exponentials of chunk number ``load``, unless it is done, and of the next one
        if possible.

        If Scalar or GpSimd prepares a chunk for Vector, or Vector runs after Scalar, engines would wait for each
        other; so they work on the next chunk of the group in the meantime. That requires a third chunk buffer: with
        two, the load after the next one would be issued before this chunk is used.
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
        """Do the work on a chunk that precedes its exponentials: its maximum and, if requested, its class sums and
        argmax.
        """
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
            raise_negligible(scores_sbuf, neg_max_sbuf, statistics.scale, is_shared=self.folds is None)
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
        """Return the scores, which times ``Options.scale`` are z: the logits or, with a cap c, tanh(logits / c) in
        float32.
        """
        softcap = self.options.softcap
        if softcap is None:
            return logits_sbuf
        scores_sbuf = self.scores.tile(load, logits_sbuf)
        hyperbolic_tangents(scores_sbuf, logits_sbuf, softcap)
        masked_tangents(scores_sbuf, scores_sbuf, logits_sbuf)
        return scores_sbuf
