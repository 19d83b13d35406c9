# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy of the positions of a core in the layouts of :mod:`.batches` (:func:`forward_of_batches`).

The maximum of every position is exact. A partition holds several positions (*packed*) or a part of one (*split*). A
*piece* is the part of a batch that is loaded at a time: some positions of each partition, or some columns of a part of
a position. Each piece of a position has its own maximum m_k and sum of exponentials
(:mod:`nkilib.core.rows.statistics`); with a cap, m_k is the maximum of the tangents, tanh(logit / cap). *Moments* are
further sums, for options that need them. For split positions, the statistics of the partitions are combined at the end
(:class:`_Parts`), with the factors exp(scale * (m_k - m)), where m is the maximum of the position. The results are
computed from tiles [partitions, positions of a partition], or [1, positions] for split positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.moments import EntropyMoment, FirstMoment, Moments, lowest_relevant, raise_infinite, raise_to
from nkilib.core.rows.row_plan import RowBatch, RowPiece, RowPlan, on_line
from nkilib.core.rows.sbuf import Ring, ring_of
from nkilib.core.rows.statistics import Columns, Place, SplitStatistics, Statistics, halved
from nkilib.core.rows.tiles import float32_like, load_table, scaled, selected
from nkilib.experimental.loss.cross_entropy.launch import Launch, Options
from nkilib.experimental.loss.cross_entropy.layouts.batches import BUFFERS, HALVES, SCORES, TERMS, LoadedPieces
from nkilib.experimental.loss.cross_entropy.layouts.targets import ColumnsOnChip, check_targets, last_parts
from nkilib.experimental.loss.cross_entropy.results import Group, Results, store_early_results, store_results
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.cross_entropy.targets import TargetFinder, TargetMasks, TargetValues
from nkilib.nki import nisa, nl

# Of so many pieces, GpSimd shares the maxima of one, if its rows have so many columns.
_SHARED_MAXIMA, _HALVED_MIN = 3, 64
# Batches whose logarithms are taken together: Scalar loads another activation table for them.
_BATCHES_OF_LOGS = 2


@dataclass(frozen=True)
class _Parts:
    """The statistics of split positions, combined from the statistics of their parts.

    Attributes:
        statistics: the statistics of the parts and of the positions.
        moments: the moments of the pieces of each partition, [partitions, 1, pieces].
        row_moments: the moments of the positions, [1, positions].
    """

    statistics: SplitStatistics
    moments: Moments | None
    row_moments: Moments | None

    def take_weights(self, pieces: int) -> None:
        """Compute the maximum m of each position, and the factor exp(scale * (m_k - m)) of each piece."""
        statistics = self.statistics
        of_rows_psum = statistics.take_maxima(statistics.maxima_on_line(pieces))
        distances_sbuf = statistics.take_distances(of_rows_psum, pieces)
        if self.moments is not None:
            self.moments.keep_distances(distances_sbuf, pieces)
        statistics.parts.take_weights(pieces)

    def combine_sums(self, pieces: int) -> None:
        """Compute the sum of exponentials and the moments of each position."""
        if self.moments is not None and self.row_moments is not None:
            self.moments.combine(self.statistics.parts, pieces)
            for of_rows_sbuf, of_parts_sbuf in zip(
                _sums_of_rows(self.row_moments), _sums_of_rows(self.moments), strict=True
            ):
                self.statistics.reduce_line(of_rows_sbuf, on_line(of_parts_sbuf), nl.add)
        self.statistics.combine_sums(pieces)


def _sums_of_rows(moments: Moments) -> list[nl.NkiTensor]:
    tiles = []
    if moments.first is not None:
        tiles += [moments.first.row_factors_sbuf, moments.first.row_first_sbuf]
    if moments.entropy is not None:
        tiles.append(moments.entropy.row_entropy_sbuf)
    return tiles


@dataclass
class _Open:
    """A batch whose results are not computed yet.

    Attributes:
        batch: the positions.
        statistics, moments: the statistics and moments of the pieces, [partitions, positions of a partition, pieces of
            a position].
        parts: combines the parts of split positions; None for packed positions.
        group: the values of the positions, from which the results are computed.
        column_sbuf: the columns of the targets of packed positions; None for split positions.
        check: the DMA access that is out of range if a target is invalid; None for split positions, whose logits are
            gathered by DMA, which checks targets.
    """

    batch: RowBatch
    statistics: Statistics
    moments: Moments | None
    parts: _Parts | None
    group: Group
    column_sbuf: nl.NkiTensor | None = None
    check: nisa.NkiInstruction | None = None


def _on_line(gathered: TargetValues) -> TargetValues:
    """Move gathered logits and weights from [positions, 1] to [1, positions]; the masks have this shape already."""

    def of(column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        line_psum = on_line(column_sbuf)
        line_sbuf = nl.ndarray(line_psum.shape, dtype=column_sbuf.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=line_sbuf, src=line_psum)
        return line_sbuf

    weights_sbuf = gathered.weights_sbuf
    return TargetValues(of(gathered.logits_sbuf), gathered.masks, None if weights_sbuf is None else of(weights_sbuf))


@dataclass(frozen=True)
class _Begun:
    """The operands of :meth:`EntropyMoment.take_terms` for one position of each partition, until that method is
    called.
    """

    entropy: EntropyMoment
    statistics: Statistics
    elements_sbuf: nl.NkiTensor
    exponentials_sbuf: nl.NkiTensor
    place: Place


@dataclass(frozen=True)
class _Waiting:
    """A piece of scores, the logits or with a cap their tangents, whose exponentials are not computed yet."""

    opened: _Open
    piece: RowPiece
    scores_sbuf: nl.NkiTensor


@dataclass
class _Forward:
    """The loop of a core over the pieces of its batches.

    Attributes:
        launch, options: the arguments and the options of the kernel.
        plan: the plan of the positions.
        batches: the batches of the core.
        finder: locates the targets.
        on_chip: gathers elements of packed positions; None for split positions.
        pieces: the pieces of the batches.
        junk_sbuf: a tile for exponentials of which only the sums are used.
        terms: a ring of one tile for other values of which only the sums are used; empty without moments.
        exponentials: tiles for exponentials, if an entropy is requested.
        halves: tiles for the larger element of each pair (:func:`.halved`).
        compared: the number of pieces whose maxima have been computed.
        begun: the position whose exponentials have been computed while the terms of its entropy have not; at most one.
        scores: tiles for the tangents of capped logits; none without a cap.
        is_last_sbuf: 1 in the partitions that hold the last part of a position, else 0, uint32 [128, 1]; None if all
            parts are equally long, or nothing is summed over the classes.
        waiting: the piece of capped logits whose maxima have been computed while its exponentials have not.
    """

    launch: Launch
    options: Options
    plan: RowPlan
    batches: list[RowBatch]
    finder: TargetFinder
    on_chip: ColumnsOnChip | None
    pieces: LoadedPieces
    junk_sbuf: nl.NkiTensor
    terms: Ring
    exponentials: Ring
    halves: Ring
    scores: Ring
    is_last_sbuf: nl.NkiTensor | None
    compared: int = 0
    begun: list[_Begun] = field(default_factory=list)
    waiting: list[_Waiting] = field(default_factory=list)

    @classmethod
    def make(cls, launch: Launch, options: Options, batches: list[RowBatch]) -> _Forward:
        plan = batches[0].plan
        # The piece before the present one is not finished where there is an entropy.
        pieces = LoadedPieces.make(launch, batches, BUFFERS + options.wanted.entropy, BUFFERS)
        columns, sums_more = pieces.columns, options.sums_classes or options.wanted.entropy
        halves = max(piece.rows * div_ceil(piece.columns, 2) for _, piece in pieces.visits)
        return cls(
            launch,
            options,
            plan,
            batches,
            TargetFinder.make(launch.targets_hbm, PARTITIONS, 1, options),
            None if plan.parts > 1 else ColumnsOnChip.make(launch, plan),
            pieces,
            nl.ndarray((PARTITIONS, columns), dtype=nl.bfloat16, buffer=nl.sbuf),
            Ring(ring_of(1 if sums_more else 0, columns, nl.bfloat16)),
            Ring(ring_of(TERMS if options.wanted.entropy else 0, columns, nl.float32)),
            Ring(ring_of(HALVES, halves, launch.dtype)),
            Ring(ring_of(SCORES if options.softcap is not None else 0, columns, nl.float32)),
            last_parts(plan.parts) if options.sums_classes and plan.tail else None,
        )

    def run(self, results: Results) -> None:
        """Process all pieces, and store the results.

        The statistics of a batch are combined during the first pieces of the next batch.
        """
        done: list[_Open] = []
        combining: deque[Callable[[], None]] = deque()
        load_table(nl.exp)
        following = self._opened(self.batches[0])
        for number in range(len(self.batches)):
            opened = following
            for place, (piece, piece_sbuf) in enumerate(self.pieces.of_batch(number)):
                if place == 0 and number + 1 < len(self.batches):
                    following = self._opened(self.batches[number + 1])
                self._take(opened, piece, piece_sbuf)
                if combining:
                    combining.popleft()()
            while combining:
                combining.popleft()()
            if len(done) == _BATCHES_OF_LOGS:
                self._store(done, results)
                done = []
            combining += self._combining(opened, number + 1 == len(self.batches))
            done.append(opened)
        self._take_waiting()
        self._finish_entropy()
        while combining:
            combining.popleft()()
        self._store(done, results)

    def _moments(self, columns: Columns) -> Moments | None:
        return Moments.make(columns, self.options.sums_classes, self.options.wanted.entropy)

    def _statistics(self, rows: RowBatch, columns: Columns) -> Statistics:
        temperatures = self.launch.temperatures(rows, (columns.rows, columns.batches))
        dtype = self.launch.dtype if self.options.softcap is None else nl.float32
        return Statistics.make(columns, dtype, self.options.scale_of(temperatures))

    def _opened(self, batch: RowBatch) -> _Open:
        """Return a batch with allocated statistics and located targets."""
        columns = Columns(batch.partitions, batch.rows_each, self.plan.pieces_per_row)
        statistics = self._statistics(batch, columns)
        moments = self._moments(columns)
        if self.on_chip is None:
            return self._opened_parts(batch, statistics, moments)
        masks = None if self.options.is_plain else TargetMasks.make(columns.rows, columns.batches)
        located = self.finder.locate(batch, masks)
        logits_sbuf = columns.row_tile(self.launch.dtype)
        targets = TargetValues(logits_sbuf, masks, self.on_chip.gather_weights(located.column_sbuf))
        group = Group(batch, statistics, moments, None, statistics.exact_neg_max_sbuf, targets)
        check = check_targets(self.finder, batch, located)
        return _Open(batch, statistics, moments, None, group, located.column_sbuf, check)

    def _opened_parts(self, batch: RowBatch, statistics: Statistics, moments: Moments | None) -> _Open:
        """Return a batch of split positions with allocated statistics and gathered logits of the targets."""
        line, rows = batch.as_line, batch.as_rows
        columns = Columns(1, batch.lines, 1)
        of_rows, row_moments = self._statistics(line, columns), self._moments(columns)
        gathered = TargetValues.make(Columns(batch.lines, 1, 1), self.launch.dtype, self.options)
        gathered.gather(self.launch, self.finder.find(rows, gathered.masks_of_batch(0)), rows, 0)
        masks = None if gathered.masks is None else TargetMasks.make(1, batch.lines)
        if masks is not None:
            self.finder.locate(line, masks)
        targets = replace(gathered, masks=masks)
        group = Group(line, of_rows, row_moments, None, of_rows.exact_neg_max_sbuf, targets)
        parts = _Parts(SplitStatistics(batch, statistics, of_rows), moments, row_moments)
        return _Open(batch, statistics, moments, parts, group)

    def _take(self, opened: _Open, piece: RowPiece, piece_sbuf: nl.NkiTensor) -> None:
        """Compute the maxima and the sums of a piece, and gather the logits at its targets.

        The exponentials of capped logits wait until Scalar has the tangents of the next piece, whose maxima Vector
        takes meanwhile.
        """
        statistics, targets, moments = opened.statistics, opened.group.targets, opened.moments
        scores_sbuf = self._scores(piece_sbuf)
        statistics.take_maxima(self._compared(scores_sbuf), piece.first, piece.end, piece.column)
        if self.on_chip is not None and targets is not None and opened.column_sbuf is not None:
            self.on_chip.gather(targets.logits_sbuf, piece_sbuf, opened.column_sbuf, piece)
        if moments is not None and moments.first is not None:
            self._take_first(moments.first, statistics, piece, scores_sbuf)
        self._take_waiting()
        self.waiting.append(_Waiting(opened, piece, scores_sbuf))
        if self.options.softcap is None:
            self._take_waiting()

    def _take_waiting(self) -> None:
        """Compute the sums of exponentials of the piece that waits for that, if there is one."""
        for waiting in self.waiting:
            piece, scores_sbuf = waiting.piece, waiting.scores_sbuf
            statistics, moments = waiting.opened.statistics, waiting.opened.moments
            if moments is not None and moments.entropy is not None:
                self._take_entropies(moments.entropy, statistics, piece, scores_sbuf)
                continue
            junk_sbuf = self.junk_sbuf[0 : scores_sbuf.shape[0], 0 : piece.columns]
            for row in range(piece.rows):
                statistics.take_sum(junk_sbuf, scores_sbuf[:, row], Place(piece.first + row, piece.column))
        self.waiting.clear()
        if self.options.softcap is not None:  # combined after the next piece
            self._finish_entropy()

    def _scores(self, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the scores, which times ``Options.scale`` are z: the logits, or with a cap their tangents."""
        softcap = self.options.softcap
        if softcap is None:
            return piece_sbuf
        scores_sbuf = self.scores.next_shaped(piece_sbuf.shape)
        hyperbolic_tangents(scores_sbuf, piece_sbuf, softcap)
        masked_tangents(scores_sbuf, scores_sbuf, piece_sbuf)
        return scores_sbuf

    def _compared(self, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return elements of a piece that include its maxima.

        In some pieces GpSimd keeps the larger element of each pair, so that Vector compares half as many. With an
        entropy these are all pieces but the first; without, every ``_SHARED_MAXIMA``-th piece of a 16-bit type. Other
        pieces, and short ones, are returned as they are.
        """
        self.compared += 1
        is_shared = piece_sbuf.dtype != nl.float32 and self.compared % _SHARED_MAXIMA == 0
        if self.options.wanted.entropy:
            is_shared = self.compared > 1
        if not is_shared or piece_sbuf.shape[2] < _HALVED_MIN:
            return piece_sbuf
        return halved(piece_sbuf, self.halves)

    def _take_first(
        self, first: FirstMoment, statistics: Statistics, piece: RowPiece, piece_sbuf: nl.NkiTensor
    ) -> None:
        """Sum, for each position of a piece, the distances of its elements from its maximum."""
        columns = min(piece.columns, self.plan.width - piece.start)
        counts_sbuf = first.factors_sbuf[:, piece.first : piece.end, piece.column]
        nisa.memset(dst=counts_sbuf, value=float(columns), engine=nisa.engine.gpsimd)
        terms_sbuf = self.terms.next_tile()[0 : piece_sbuf.shape[0], 0:columns]
        for row in range(piece.rows):
            place = Place(piece.first + row, piece.column)
            elements_sbuf = piece_sbuf[:, row]
            neg_max_sbuf = place.of(statistics.neg_max_sbuf)
            first.take_products(elements_sbuf[:, 0:columns], None, terms_sbuf, neg_max_sbuf, place)
            if columns < piece.columns:
                self._take_tail(first, elements_sbuf[:, columns : piece.columns], neg_max_sbuf, place)

    def _take_tail(
        self, first: FirstMoment, elements_sbuf: nl.NkiTensor, neg_max_sbuf: nl.NkiTensor, place: Place
    ) -> None:
        """Add the distances of columns that only the last part of a position has, and their number."""
        if self.is_last_sbuf is None:
            return
        partitions, columns = elements_sbuf.shape
        is_last_sbuf, distances_sbuf = self.is_last_sbuf[0:partitions], float32_like(elements_sbuf)
        nisa.tensor_scalar(dst=distances_sbuf, data=elements_sbuf, op0=nl.add, operand0=neg_max_sbuf)
        own_sbuf = selected(distances_sbuf, is_last_sbuf.broadcast(1, columns))
        sum_sbuf, count_sbuf = float32_like(neg_max_sbuf), scaled(is_last_sbuf, float(columns))
        nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=own_sbuf, axis=1)
        for total_sbuf, added_sbuf in ((first.first_sbuf, sum_sbuf), (first.factors_sbuf, count_sbuf)):
            at_sbuf = place.of(total_sbuf)
            nisa.tensor_tensor(dst=at_sbuf, data1=at_sbuf, data2=added_sbuf, op=nl.add)

    def _take_entropies(
        self, entropy: EntropyMoment, statistics: Statistics, piece: RowPiece, piece_sbuf: nl.NkiTensor
    ) -> None:
        """Compute the sums of exponentials of a piece, and of their products with distances from the maximum.

        Vector begins a position before it finishes the previous one, so that it does not wait for Scalar.
        """
        neg_max_sbuf = statistics.neg_max_sbuf[:, piece.first : piece.end, piece.column]
        lowest_sbuf = lowest_relevant(neg_max_sbuf, statistics.scale.least)
        for row in range(piece.rows):
            elements_sbuf, place = piece_sbuf[:, row], Place(piece.first + row, piece.column)
            if piece_sbuf.dtype != nl.float16:
                raise_to(elements_sbuf, lowest_sbuf[:, row : row + 1])
            exponentials_sbuf = self.exponentials.next_tile()[0 : piece_sbuf.shape[0], 0 : piece.columns]
            statistics.take_sum(exponentials_sbuf, elements_sbuf, place)
            self._finish_entropy()
            self.begun.append(_Begun(entropy, statistics, elements_sbuf, exponentials_sbuf, place))

    def _finish_entropy(self) -> None:
        """Compute the sum of the products of the position in :attr:`begun`, if there is one."""
        for begun in self.begun:
            raise_infinite(begun.elements_sbuf)
            terms_sbuf = self.terms.next_tile()[0 : begun.elements_sbuf.shape[0], 0 : begun.elements_sbuf.shape[1]]
            begun.entropy.take_terms(
                begun.statistics, begun.elements_sbuf, begun.exponentials_sbuf, terms_sbuf, begun.place
            )
        self.begun.clear()

    def _combining(self, opened: _Open, is_last: bool) -> list[Callable[[], None]]:
        """Return functions that combine the statistics of a batch's pieces, to be called in order."""
        pieces, parts, group = self.plan.pieces_per_row, opened.parts, opened.group
        if parts is None:
            return [partial(self._combine_packed, opened)]

        def take_weights() -> None:
            parts.take_weights(pieces)
            if is_last:  # after the last batch, only logarithms are left to Scalar
                load_table(nl.log)

        def combine_sums() -> None:
            parts.combine_sums(pieces)
            opened.group = replace(group, targets=None if group.targets is None else _on_line(group.targets))

        return [take_weights, combine_sums]

    def _combine_packed(self, opened: _Open) -> None:
        group = opened.group
        if opened.moments is not None:
            group.take_weights(1)
            group.combine(1)
            return
        statistics, shape = opened.statistics, (group.statistics.columns.rows, group.statistics.columns.batches)
        opened.group = replace(
            group,
            statistics=replace(
                statistics,
                row_neg_max_sbuf=statistics.neg_max_sbuf.reshape(shape),
                row_sum_sbuf=statistics.sums_sbuf.reshape(shape),
            ),
        )

    def _store(self, done: list[_Open], results: Results) -> None:
        remaining = results
        for opened in done if self.options.softcap is None else []:
            remaining = store_early_results(opened.group, results)
        for opened in done:
            opened.group.statistics.take_logs()
        for opened in done:
            stores = store_results(opened.group, remaining, self.options)
            if opened.check is not None:
                stores[-1].depends_on(opened.check, kind=nisa.dependency.runtime)


def forward_of_batches(launch: Launch, options: Options, results: Results, batches: list[RowBatch]) -> None:
    """Compute and store the results of this core's batches."""
    if batches:
        _Forward.make(launch, options, batches).run(results)
