"""The forward on one core: statistics chunk by chunk, results group by group of batches."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch, batch_groups
from nkilib.core.rows.elements import row_elements, vector_elements
from nkilib.core.rows.moments import distances_from_maximum
from nkilib.core.rows.sbuf import TileRing
from nkilib.core.rows.statistics import most_batches_of_group
from nkilib.core.rows.stream import Chunk, Stream
from nkilib.experimental.loss.cross_entropy.class_factors import ClassFactors, FactorRings
from nkilib.experimental.loss.cross_entropy.group import Group, TargetValues
from nkilib.experimental.loss.cross_entropy.options import Launch, Options
from nkilib.experimental.loss.cross_entropy.results import Results, store_results
from nkilib.experimental.loss.cross_entropy.shifted_forward import shifted_forward_of_core
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.cross_entropy.targets import TargetElements, TargetFinder
from nkilib.nki import nisa, nl


def forward_of_core(launch: Launch, options: Options, results: Results) -> None:
    """The results of the positions of this core."""
    if options.with_shift:
        shifted_forward_of_core(launch, options, results)
        return
    batches = launch.batches()
    if batches:
        _Forward.make(launch, options, batches).run(results)


@dataclass(frozen=True)
class _Scores:
    """A chunk on chip: the logits, and a tile that is to be multiplied with ``scale`` to give z, the capped ones."""

    logits_sbuf: nl.NkiTensor
    tile_sbuf: nl.NkiTensor
    scale: float


@dataclass(frozen=True)
class _Forward:
    """What all chunks have in common.

    Attributes:
        launch, options: of the kernel.
        logits: the chunks.
        factors: of the classes.
        scores, products, exponentials: scratch, for what its name says.
        finder: of the targets; None for class probabilities.
    """

    launch: Launch
    options: Options
    logits: Stream[Batch]
    factors: ClassFactors
    scores: TileRing
    products: TileRing
    exponentials: TileRing
    finder: TargetFinder | None

    @classmethod
    def make(cls, launch: Launch, options: Options, batches: list[Batch]) -> _Forward:
        sbuf = launch.divided(options.forward_plan, batches)
        scores = sbuf.ring(options.softcap is not None)
        rings = FactorRings.make(sbuf, options)
        products, exponentials = sbuf.ring(options.needs_products), sbuf.ring(options.wanted.entropy)
        logits = Stream(launch.logits_hbm, batches, sbuf.buffers())
        factors = ClassFactors.make(launch, options, logits, rings)
        finder = None
        if not options.has_probabilities:
            finder = TargetFinder.make(launch.targets_hbm, batches[0].rows, batches[0].cores, options)
        return cls(launch, options, logits, factors, scores, products, exponentials, finder)

    def run(self, results: Results) -> None:
        """Go through all chunks.

        A group is finished beside the first chunks of the next one, so that no engine waits for another one.
        """
        chunks = self.logits.num_chunks
        previous = None
        for batches in batch_groups(self.logits.batches, most_batches_of_group(chunks)):
            group = Group.make(batches, chunks, self.launch.dtype, self.options)
            first, last = batches.start * chunks, batches.end * chunks - 1
            for load in range(first, last + 1):
                chunk = self.logits.chunk(load)
                batch = load // chunks - batches.start
                self._take_chunk(group, chunk, batch)
                if group.targets is not None and self.finder is not None:
                    if chunk.number == 0:
                        elements = self.finder.find(chunk.batch, group.targets.masks_of_batch(batch))
                    if chunk.number == min(1, chunks - 1):
                        self._gather(elements, group.targets, chunk, batch)
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

    def _gather(self, elements: TargetElements, targets: TargetValues, chunk: Chunk[Batch], batch: int) -> None:
        """The logits at the targets of a batch, and their class weights.

        DMA rounds this logit to the type of the tiles just as it rounds the chunks: no other one exceeds the maximum.
        """
        nisa.dma_copy(
            dst=targets.logits_sbuf[:, batch : batch + 1],
            src=row_elements(self.launch.logits_hbm, elements.index_sbuf, chunk.batch),
        )
        if targets.weights_sbuf is not None and self.launch.class_weight_hbm is not None:
            nisa.dma_copy(
                dst=targets.weights_sbuf[:, batch : batch + 1],
                src=vector_elements(self.launch.class_weight_hbm, elements.column_sbuf),
            )

    def _take_chunk(self, group: Group, chunk: Chunk[Batch], batch: int) -> None:
        """Everything about one chunk: its maximum, sums and, where asked for, moments and argmax."""
        statistics, moments = group.statistics, group.moments
        if statistics.columns.are_full(chunk.number):
            group.restart(chunk.number)
        place = statistics.columns.place(batch, chunk.number)
        neg_max_sbuf = place.of(statistics.neg_max_sbuf)
        scores = self._scores(chunk)
        statistics.take_maximum(scores.tile_sbuf, place, scores.scale)
        if group.argmax is not None:
            if self.options.softcap is not None:  # keeps the order, but rounding makes equals of some
                nisa.tensor_reduce(
                    dst=group.exact_neg_max_sbuf, op=nl.maximum, data=scores.logits_sbuf, axis=1, negate=True
                )
            first_class = self.options.classes.first + chunk.start
            group.argmax.take(scores.logits_sbuf, group.exact_neg_max_sbuf, place, first_class)
        exponentials_sbuf = scores.tile_sbuf
        if moments is not None and moments.first is not None:
            factors_sbuf = self.factors.loaded(chunk.load)
            products_sbuf = self.products.tile(chunk.load, scores.logits_sbuf)
            moments.first.take(scores.tile_sbuf, factors_sbuf, products_sbuf, neg_max_sbuf, place)
        if moments is None or moments.entropy is None:
            statistics.take_sum(exponentials_sbuf, scores.tile_sbuf, place, scores.scale)
            return
        exponentials_sbuf = self.exponentials.tile(chunk.load, scores.logits_sbuf)
        distances_sbuf = self.products.tile(chunk.load, scores.logits_sbuf)
        distances_from_maximum(distances_sbuf, scores.tile_sbuf, neg_max_sbuf)
        statistics.take_sum(exponentials_sbuf, scores.tile_sbuf, place, scores.scale)
        moments.entropy.take(exponentials_sbuf, distances_sbuf, place)

    def _scores(self, chunk: Chunk[Batch]) -> _Scores:
        """A chunk on chip, under its cap if there is one.

        The tangents of the next chunk are issued before the exponentials of this one, which wait for Vector. That takes
        a third chunk buffer: with two, the load after the next one would come before this chunk is used.
        """
        logits, softcap = self.logits, self.options.softcap
        if softcap is None:
            logits_sbuf = logits.loaded(chunk.load)
            return _Scores(logits_sbuf, logits_sbuf, 1.0)
        ahead = 1 if len(logits.buffers_sbuf) > 2 and len(self.scores.tiles_sbuf) > 1 else 0
        first = 0 if chunk.load == 0 else chunk.load + ahead
        for load in range(first, min(chunk.load + ahead + 1, logits.loads)):
            issued_sbuf = logits.loaded(load)
            hyperbolic_tangents(self.scores.tile(load, issued_sbuf), issued_sbuf, softcap)
        logits_sbuf = logits.on_chip(chunk.load)
        scores_sbuf = self.scores.tile(chunk.load, logits_sbuf)
        masked_tangents(scores_sbuf, scores_sbuf, logits_sbuf)
        if not self.options.needs_products:
            return _Scores(logits_sbuf, scores_sbuf, softcap)
        nisa.tensor_scalar(dst=scores_sbuf, data=scores_sbuf, op0=nl.multiply, operand0=softcap)
        return _Scores(logits_sbuf, scores_sbuf, 1.0)
