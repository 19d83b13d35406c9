# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of cross-entropy in the layouts of :mod:`.batches`, with the exact maximum of every position
(:func:`forward_of_batches`).

A piece is some positions of each partition, or some columns of a part of a position. Each has its own maximum and its
own sum of exponentials (:mod:`nkilib.core.rows.statistics`). Those of a split position are combined across its
partitions at the end (:class:`_Parts`), from the distances of their maxima from that of the position. The results are
computed from tiles [partitions, positions of a partition], or for split positions on a line, [1, positions].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.moments import EntropyMoment, FirstMoment, Moments, lowest_relevant, raise_infinite, raise_to
from nkilib.core.rows.row_plan import RowBatch, RowPiece, RowPlan, on_line
from nkilib.core.rows.sbuf import Ring, ring_of
from nkilib.core.rows.statistics import Columns, Place, SplitStatistics, Statistics, halved
from nkilib.core.rows.tiles import load_table
from nkilib.experimental.loss.cross_entropy.launch import Launch, Options
from nkilib.experimental.loss.cross_entropy.layouts.batches import BUFFERS, HALVES, TERMS
from nkilib.experimental.loss.cross_entropy.layouts.targets import ColumnsOnChip, check_targets
from nkilib.experimental.loss.cross_entropy.results import Group, Results, store_early_results, store_results
from nkilib.experimental.loss.cross_entropy.targets import TargetFinder, TargetMasks, TargetValues
from nkilib.nki import nisa, nl

# Of so many pieces, GpSimd shares the maxima of one, if its rows have so many columns.
_SHARED_MAXIMA, _HALVED_MIN = 3, 64
# Batches whose logarithms are taken together: Scalar loads another activation table for them.
_BATCHES_OF_LOGS = 2


@dataclass(frozen=True)
class _Parts:
    """The statistics of split positions, and their other sums, from those of their parts.

    Attributes:
        statistics: the statistics of parts and positions.
        moments: the sums of the pieces of each partition, [partitions, 1, pieces].
        row_moments: the sums of the positions, [1, positions].
    """

    statistics: SplitStatistics
    moments: Moments | None
    row_moments: Moments | None

    def take_weights(self, pieces: int) -> None:
        """Compute the maxima of the positions, and the factor exp(scale * (m_k - m)) of each piece of a partition."""
        statistics = self.statistics
        of_rows_psum = statistics.take_maxima(statistics.maxima_on_line(pieces))
        distances_sbuf = statistics.take_distances(of_rows_psum, pieces)
        if self.moments is not None:
            self.moments.keep_distances(distances_sbuf, pieces)
        statistics.parts.take_weights(pieces)

    def combine_sums(self, pieces: int) -> None:
        """Compute the sums of exponentials of the positions, and the other sums."""
        if self.moments is not None and self.row_moments is not None:
            self.moments.combine(self.statistics.parts, pieces)
            for of_rows_sbuf, of_parts_sbuf in zip(
                _sums_of_rows(self.row_moments), _sums_of_rows(self.moments), strict=True
            ):
                self.statistics.reduce_line(of_rows_sbuf, on_line(of_parts_sbuf), nl.add)
        self.statistics.combine_sums(pieces)


def _sums_of_rows(moments: Moments) -> list[nl.NkiTensor]:
    """Return the tiles of the sums of rows."""
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
        statistics, moments: the statistics and sums of the pieces, [partitions, positions of a partition, pieces of a
            position].
        parts: the combination of the parts of split positions; None for packed ones.
        group: the values of the positions, from which the results are computed.
        column_sbuf: the columns of the targets of packed positions; None for split ones.
        check: the access that is out of range if a target is; None if the target's logit is gathered by an access.
    """

    batch: RowBatch
    statistics: Statistics
    moments: Moments | None
    parts: _Parts | None
    group: Group
    column_sbuf: nl.NkiTensor | None = None
    check: nisa.NkiInstruction | None = None


def _on_line(gathered: TargetValues) -> TargetValues:
    """Bring values gathered at targets, [positions, 1], to a line, [1, positions], where their masks are."""

    def of(column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        line_psum = on_line(column_sbuf)
        line_sbuf = nl.ndarray(line_psum.shape, dtype=column_sbuf.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=line_sbuf, src=line_psum)
        return line_sbuf

    weights_sbuf = gathered.weights_sbuf
    return TargetValues(of(gathered.logits_sbuf), gathered.masks, None if weights_sbuf is None else of(weights_sbuf))


@dataclass(frozen=True)
class _Begun:
    """A position of each partition whose terms of the entropy are not summed: the operands of
    :meth:`EntropyMoment.take_terms`.
    """

    entropy: EntropyMoment
    statistics: Statistics
    elements_sbuf: nl.NkiTensor
    exponentials_sbuf: nl.NkiTensor
    place: Place


@dataclass
class _Forward:
    """The loop of a core over the pieces of its batches.

    Attributes:
        launch, options: the arguments and the options of the kernel.
        plan: the plan of the positions.
        batches: the batches of the core.
        finder: the object that locates the targets.
        on_chip: the gathers of packed positions; None for split ones.
        buffers: tiles for pieces of logits.
        junk_sbuf: a tile for exponentials of which only the sums are used.
        terms: a tile for other numbers of which only the sums are used, if there are any.
        exponentials: tiles for exponentials, if an entropy is requested.
        halves: tiles for the larger elements of pairs.
        visits: the batches and their pieces in the order of processing.
        loaded_sbuf: the tiles of the pieces that have been loaded, by the number of the visit.
        compared: the number of pieces whose maxima have been computed.
        begun: the position whose exponentials are computed, and the terms of its entropy are not.
    """

    launch: Launch
    options: Options
    plan: RowPlan
    batches: list[RowBatch]
    finder: TargetFinder
    on_chip: ColumnsOnChip | None
    buffers: Ring
    junk_sbuf: nl.NkiTensor
    terms: Ring
    exponentials: Ring
    halves: Ring
    visits: list[tuple[RowBatch, RowPiece]]
    loaded_sbuf: list[nl.NkiTensor] = field(default_factory=list)
    compared: int = 0
    begun: list[_Begun] = field(default_factory=list)

    @classmethod
    def make(cls, launch: Launch, options: Options, batches: list[RowBatch]) -> _Forward:
        plan = batches[0].plan
        visits = [(batch, piece) for batch in batches for piece in batch.pieces]
        columns = max(piece.columns for _, piece in visits)
        sums_more = options.sums_classes or options.wanted.entropy
        # The piece before the present one is not finished where there is an entropy.
        buffers = Ring(
            ring_of(
                min(BUFFERS + options.wanted.entropy, len(visits)), max(piece.size for _, piece in visits), launch.dtype
            )
        )
        return cls(
            launch,
            options,
            plan,
            batches,
            TargetFinder.make(launch.targets_hbm, PARTITIONS, 1, options),
            None if plan.parts > 1 else ColumnsOnChip.make(launch, plan),
            buffers,
            nl.ndarray((PARTITIONS, columns), dtype=nl.bfloat16, buffer=nl.sbuf),
            Ring(ring_of(1 if sums_more else 0, columns, nl.bfloat16)),
            Ring(ring_of(TERMS if options.wanted.entropy else 0, columns, nl.float32)),
            Ring(ring_of(HALVES, max(piece.rows * div_ceil(piece.columns, 2) for _, piece in visits), launch.dtype)),
            visits,
        )

    def run(self, results: Results) -> None:
        """Process all pieces. A batch is combined during the first pieces of the next one, and its results are computed
        after them, or at the end.
        """
        done: list[_Open] = []
        combining: deque[Callable[[], None]] = deque()
        load_table(nl.exp)
        following = self._opened(self.batches[0])
        for number in range(len(self.batches)):
            opened = following
            for place, (piece, piece_sbuf) in enumerate(self._loaded_pieces(number)):
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
        self._finish_entropy()
        while combining:
            combining.popleft()()
        self._store(done, results)

    def _loaded_pieces(self, number: int) -> Iterator[tuple[RowPiece, nl.NkiTensor]]:
        """Yield the pieces of a batch with their tiles, and load later ones into free tiles."""
        first = sum(len(batch.pieces) for batch in self.batches[:number])
        for place, piece in enumerate(self.batches[number].pieces):
            visit = first + place
            ahead = BUFFERS if visit == 0 else visit + BUFFERS - 1
            for batch, later in self.visits[len(self.loaded_sbuf) : ahead]:
                tile_sbuf = batch.piece_of(self.buffers.next_tile(), later)
                batch.load(self.launch.logits_hbm, later, tile_sbuf, float("-inf"))
                self.loaded_sbuf.append(tile_sbuf)
            yield piece, self.loaded_sbuf[visit]

    def _moments(self, columns: Columns) -> Moments | None:
        return Moments.make(columns, self.options.sums_classes, self.options.wanted.entropy)

    def _statistics(self, rows: RowBatch, columns: Columns) -> Statistics:
        temperatures = self.launch.temperatures(rows, (columns.rows, columns.batches))
        return Statistics.make(columns, self.launch.dtype, self.options.scale_of(temperatures))

    def _opened(self, batch: RowBatch) -> _Open:
        """Allocate the statistics of a batch, and find its targets."""
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
        """Allocate the statistics of split positions, and gather the logits at their targets."""
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
        """Compute the maxima and the sums of a piece, and gather the logits at its targets."""
        statistics, targets, moments = opened.statistics, opened.group.targets, opened.moments
        statistics.take_maxima(self._compared(piece_sbuf), piece.first, piece.end, piece.column)
        if self.on_chip is not None and targets is not None and opened.column_sbuf is not None:
            self.on_chip.gather(targets.logits_sbuf, piece_sbuf, opened.column_sbuf, piece)
        if moments is not None and moments.first is not None:
            self._take_first(moments.first, statistics, piece, piece_sbuf)
        if moments is not None and moments.entropy is not None:
            self._take_entropies(moments.entropy, statistics, piece, piece_sbuf)
            return
        junk_sbuf = self.junk_sbuf[0 : piece_sbuf.shape[0], 0 : piece.columns]
        for row in range(piece.rows):
            statistics.take_sum(junk_sbuf, piece_sbuf[:, row], Place(piece.first + row, piece.column))

    def _compared(self, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return elements among which are the largest of a piece. Of some pieces of 16-bit types, or of all but the
        first where an entropy keeps Vector busy, GpSimd takes the larger ones of pairs.
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
        """Compute the sums of distances from the maxima of a piece."""
        counts_sbuf = first.factors_sbuf[:, piece.first : piece.end, piece.column]
        nisa.memset(dst=counts_sbuf, value=float(piece.columns), engine=nisa.engine.gpsimd)
        terms_sbuf = self.terms.next_tile()[0 : piece_sbuf.shape[0], 0 : piece.columns]
        for row in range(piece.rows):
            place = Place(piece.first + row, piece.column)
            first.take_products(piece_sbuf[:, row], None, terms_sbuf, place.of(statistics.neg_max_sbuf), place)

    def _take_entropies(
        self, entropy: EntropyMoment, statistics: Statistics, piece: RowPiece, piece_sbuf: nl.NkiTensor
    ) -> None:
        """Compute the sums of exponentials of a piece, and those of their products with distances from the maximum.

        Vector prepares a position before it finishes the one ahead, so that it does not wait for Scalar.
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
        """Compute the sum of the products of the position that has begun, if there is one."""
        for begun in self.begun:
            raise_infinite(begun.elements_sbuf)
            terms_sbuf = self.terms.next_tile()[0 : begun.elements_sbuf.shape[0], 0 : begun.elements_sbuf.shape[1]]
            begun.entropy.take_terms(
                begun.statistics, begun.elements_sbuf, begun.exponentials_sbuf, terms_sbuf, begun.place
            )
        self.begun.clear()

    def _combining(self, opened: _Open, is_last: bool) -> list[Callable[[], None]]:
        """Return the steps that combine the statistics of the pieces of a batch, to be issued one after the other."""
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
        """Compute and store the results of batches whose statistics are complete."""
        remaining = results
        for opened in done:
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
