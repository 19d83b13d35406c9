# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The targets of cross-entropy on chip: their columns, the values gathered at them, and the factors of classes.

:class:`TargetFinder` locates the targets of rows and writes their :class:`TargetMasks`; :class:`TargetValues` has the
values that are gathered at the targets. :class:`ClassFactors` streams class weights and class probabilities, chunk by
chunk in step with the logits, and computes the sums that :class:`FactorSums` names.

A row is a position. Tiles [rows, batches] hold one value per row of each batch of a group. The columns of the logits
may be a shard of the vocabulary; a target may be ignored, in another shard, or invalid (no class at all).
:mod:`nkilib.core.rows.elements` explains the index of an element, also for an invalid class.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import (
    ElementIndices,
    clamped,
    int32_column,
    integer_op,
    row_elements,
    vector_elements,
)
from nkilib.core.rows.sbuf import DividedSbuf, TileRing
from nkilib.core.rows.statistics import Columns
from nkilib.core.rows.stream import Stream
from nkilib.core.rows.tiles import sum_in_place
from nkilib.experimental.loss.cross_entropy.launch import Classes, Launch, Options
from nkilib.experimental.loss.temperatures import LoadedRows
from nkilib.nki import explain_index, nisa, nl


@dataclass(frozen=True)
class TargetMasks:
    """Masks of the targets of a group of batches: uint32 tiles [rows, batches], 1 or 0.

    Attributes:
        valid_sbuf: 1 for a target that is not ignored.
        local_sbuf: 1 for a target that is not ignored and whose class the logits hold.
    """

    valid_sbuf: nl.NkiTensor
    local_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, batches: int) -> TargetMasks:
        """Allocate the masks, uninitialised."""
        shape = (rows, batches)
        valid_sbuf = nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf)
        return cls(valid_sbuf, nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf))

    def of_batch(self, batch: int) -> TargetMasks:
        """Return the masks of one batch of the group."""
        return TargetMasks(self.valid_sbuf[:, batch : batch + 1], self.local_sbuf[:, batch : batch + 1])


@dataclass(frozen=True)
class TargetElements:
    """The elements of the logits at the targets of a batch: int32 tiles [rows, 1].

    Attributes:
        index_sbuf: the index of each row's target element, relative to the first row of the batch; out of range for an
            invalid target.
        column_sbuf: the column of each row's target element in the logits.
    """

    index_sbuf: nl.NkiTensor
    column_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class LocatedTargets:
    """The targets of rows and their columns: int32 tiles with one element per row.

    Attributes:
        targets_sbuf: the targets.
        column_sbuf: the column of each target, see :meth:`TargetFinder.locate`.
        is_invalid_sbuf: 1 for an invalid target, else 0.
    """

    targets_sbuf: nl.NkiTensor
    column_sbuf: nl.NkiTensor
    is_invalid_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class TargetValues:
    """The values gathered at the targets of a group of batches: tiles [rows, batches].

    Attributes:
        logits_sbuf: the logits, in the type of the chunks.
        masks: the masks of valid targets; None if all targets are valid.
        weights_sbuf: the class weights of the targets, float32; None without class weights. A target that is ignored or
            in another shard gets the weight of another class.
    """

    logits_sbuf: nl.NkiTensor
    masks: TargetMasks | None
    weights_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, columns: Columns, dtype: nl.DType, options: Options) -> TargetValues:
        """Allocate the tiles, uninitialised."""
        return cls(
            columns.row_tile(dtype),
            None if options.is_plain else TargetMasks.make(columns.rows, columns.batches),
            columns.row_tile() if options.is_weighted else None,
        )

    def masks_of_batch(self, batch: int) -> TargetMasks | None:
        """Return the masks of one batch of the group."""
        return None if self.masks is None else self.masks.of_batch(batch)

    def gather(self, launch: Launch, elements: TargetElements, rows: Batch, batch: int) -> None:
        """Gather the logits and class weights at the targets of one batch.

        DMA rounds the target's logit to the type of the tiles exactly as it rounds the chunks, so the logit does not
        exceed the maximum of its row.

        Args:
            launch: the launch, with logits and class weights.
            elements: the elements at the targets.
            rows: the batch.
            batch: the index of the batch in the group.
        """
        nisa.dma_copy(
            dst=self.logits_sbuf[:, batch : batch + 1],
            src=row_elements(launch.logits_hbm, elements.index_sbuf, rows),
        )
        if self.weights_sbuf is not None and launch.class_weight_hbm is not None:
            nisa.dma_copy(
                dst=self.weights_sbuf[:, batch : batch + 1],
                src=vector_elements(launch.class_weight_hbm, elements.column_sbuf),
            )


@dataclass(frozen=True)
class _ClassRange:
    """The first and the last class of a range, int32 tiles [rows, 1]."""

    first_sbuf: nl.NkiTensor
    last_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, first: int, classes: int) -> _ClassRange:
        return cls(int32_column(rows, first, 0), int32_column(rows, first + classes - 1, 0))

    def nearest(self, targets_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        return clamped(targets_sbuf, self.first_sbuf, self.last_sbuf)


@dataclass(frozen=True)
class TargetFinder:
    """The constants that locate targets, computed once for all batches of a core.

    Attributes:
        targets_hbm: the targets, [N] int32, as classes of the whole vocabulary.
        classes: the classes that the columns of the logits hold.
        indices: computes indices of elements from rows and columns.
        here: the range of classes that the logits hold.
        all: the range of classes of all shards; None if it equals ``here``.
        ignored_sbuf: the ignored class, int32 [rows, 1]; None if no class is ignored.
    """

    targets_hbm: nl.NkiTensor
    classes: Classes
    indices: ElementIndices
    here: _ClassRange
    all: _ClassRange | None
    ignored_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, targets_hbm: nl.NkiTensor, rows: int, cores: int, options: Options) -> TargetFinder:
        """Return a finder for batches of at most ``rows`` positions."""
        classes = options.classes
        return cls(
            targets_hbm,
            classes,
            ElementIndices.make(rows, classes.count, cores),
            _ClassRange.make(rows, classes.first, classes.count),
            _ClassRange.make(rows, 0, classes.total) if classes.is_shard else None,
            None if options.is_plain else int32_column(rows, options.recipe.ignore_index, 0),
        )

    def locate(self, rows: LoadedRows, masks: TargetMasks | None) -> LocatedTargets:
        """Load the targets of rows and compute their columns; also write the masks, if targets may be ignored.

        A target that is ignored or in another shard gets the column of the nearest class of the logits.

        Args:
            rows: loads the elements that belong to the rows.
            masks: the masks to write; None if no target may be ignored.
        """
        targets_sbuf = rows.loaded(self.targets_hbm, nl.int32)
        column_sbuf = self.here.nearest(targets_sbuf)
        is_invalid_sbuf = nl.ndarray(targets_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
        if masks is None or self.ignored_sbuf is None:
            integer_op(is_invalid_sbuf, column_sbuf, targets_sbuf, nl.not_equal)
            return LocatedTargets(targets_sbuf, column_sbuf, is_invalid_sbuf)
        valid_sbuf, local_sbuf = masks.valid_sbuf, masks.local_sbuf
        integer_op(valid_sbuf, targets_sbuf, self.ignored_sbuf, nl.not_equal)
        integer_op(local_sbuf, column_sbuf, targets_sbuf, nl.equal)
        is_class_sbuf = local_sbuf
        if self.all is not None:
            integer_op(is_invalid_sbuf, self.all.nearest(targets_sbuf), targets_sbuf, nl.equal)
            is_class_sbuf = is_invalid_sbuf
            integer_op(column_sbuf, column_sbuf, self.here.first_sbuf, nl.subtract)
        integer_op(is_invalid_sbuf, valid_sbuf, is_class_sbuf, nl.greater)
        integer_op(local_sbuf, local_sbuf, valid_sbuf, nl.multiply)
        return LocatedTargets(targets_sbuf, column_sbuf, is_invalid_sbuf)

    def find(self, batch: Batch, masks: TargetMasks | None) -> TargetElements:
        """Return the target elements of a batch, and write the masks as :meth:`locate` does."""
        return self.found(batch, masks).of_batch(0, batch)

    def found(self, rows: LoadedRows, masks: TargetMasks | None) -> FoundTargets:
        """Return the target elements of a group of batches, and write the masks as :meth:`locate` does."""
        located = self.locate(rows, masks)
        self.indices.add_column(located.is_invalid_sbuf, located.column_sbuf)
        return FoundTargets(self.indices, self.classes, located)


@dataclass(frozen=True)
class FoundTargets:
    """The target elements of a group of batches.

    Attributes:
        indices, classes: see :class:`TargetFinder`.
        located: the targets and their columns. ``is_invalid_sbuf`` holds indices of the target elements within their
            rows instead of flags, out of range for invalid targets.
    """

    indices: ElementIndices
    classes: Classes
    located: LocatedTargets

    def of_batch(self, number: int, batch: Batch) -> TargetElements:
        """Return the target elements of a batch, which is number ``number`` of the group.

        For a target that is ignored or in another shard, it returns another element of the row. A scatter to that
        element must write the value that is already stored there.
        """
        targets_sbuf, column_sbuf, in_row_sbuf = (
            tile_sbuf[:, number : number + 1]
            for tile_sbuf in (self.located.targets_sbuf, self.located.column_sbuf, self.located.is_invalid_sbuf)
        )
        index_sbuf = nl.ndarray((batch.rows, 1), dtype=nl.int32, buffer=nl.sbuf)
        self.indices.add_row(index_sbuf, in_row_sbuf)
        explain_index(index_sbuf, "target", targets_sbuf, batch.first, batch.cores, self.classes.total)
        return TargetElements(index_sbuf, column_sbuf)


class FactorSums(Enum):
    """The sums of class factors that are computed in a pass of their own, before the factors are used."""

    NOTHING = 0
    CLASSES = 1  # once, for all positions
    POSITIONS = 2  # for each batch


@dataclass(frozen=True)
class FactorRings:
    """The ring buffers for chunks of class probabilities and of class weights."""

    probabilities: TileRing
    weights: TileRing

    @classmethod
    def make(cls, sbuf: DividedSbuf, options: Options) -> FactorRings:
        """Allocate the ring buffers that the options need; the others are empty."""
        return cls(sbuf.ring(options.has_probabilities), sbuf.ring(options.needs_class_weights))


@dataclass(frozen=True)
class ClassFactors:
    """The factors by which a loss multiplies its classes, loaded in chunks of the logits' size.

    Attributes:
        options: the options of the kernel.
        batches: the batches of the core.
        sums: the sums of factors that are computed in a separate pass.
        num_chunks: the number of chunks per row.
        streams: the streams of class probabilities and of class weights, in this order; only those that are needed.
    """

    options: Options
    batches: list[Batch]
    sums: FactorSums
    num_chunks: int
    streams: list[Stream[Batch]]

    @classmethod
    def make(
        cls,
        launch: Launch,
        options: Options,
        logits: Stream[Batch],
        rings: FactorRings,
        sums: FactorSums = FactorSums.NOTHING,
    ) -> ClassFactors:
        """Make the streams that the options need; a stream loads a batch once for each pass over its factors.

        Args:
            launch: the launch, with class weights and class probabilities.
            options: the options of the kernel.
            logits: the stream of logits, which determines batches and chunks.
            rings: the ring buffers of the streams.
            sums: the sums of factors that are computed in a separate pass.
        """
        visits = list(logits.batches)
        if sums is FactorSums.CLASSES:
            visits.insert(0, visits[0])
        elif sums is FactorSums.POSITIONS:
            visits = [batch for batch in visits for _ in range(2)]
        streams = []
        if options.has_probabilities:
            streams.append(Stream.make(launch.targets_hbm, visits, rings.probabilities.tiles_sbuf))
        if options.needs_class_weights and launch.class_weight_hbm is not None:
            # The same row for every position: a DMA reads it with stride 0 for all partitions.
            rows_hbm = launch.class_weight_hbm.expand_dim(0).broadcast(0, launch.num_positions)
            streams.append(Stream.make(rows_hbm, visits, rings.weights.tiles_sbuf))
        return cls(options, logits.batches, sums, logits.num_chunks, streams)

    def loaded(self, load: int) -> nl.NkiTensor | None:
        """Load the factors for chunk number ``load`` of the logits; None if all factors are 1.

        Returns:
            A float32 tile [rows, columns] that may be overwritten, see :meth:`_loaded`.
        """
        if not self.streams:
            return None
        visit, chunk = divmod(load, self.num_chunks)
        if self.sums is FactorSums.POSITIONS:
            visit = 2 * visit + 1
        elif self.sums is FactorSums.CLASSES:
            visit += 1
        return self._loaded(visit * self.num_chunks + chunk)

    def sums_of_classes(self) -> nl.NkiTensor | None:
        """Return the sum of all class weights, float32 [rows, 1] with equal rows.

        The result is None unless :attr:`sums` is ``FactorSums.CLASSES``.
        """
        return self._row_sums(0, self.batches[0].rows) if self.sums is FactorSums.CLASSES else None

    def sums_of_positions(self, number: int) -> nl.NkiTensor:
        """Return the sum over all classes of the factors of each position of a batch, float32 [rows, 1]."""
        return self._row_sums(2 * number, self.batches[number].rows)

    def _loaded(self, load: int) -> nl.NkiTensor:
        """Load the factors of a chunk: w_k y'_k for class probabilities y, else w_k.

        w_k is the weight of class k, and y' = (1 - e) y + e / V with the label smoothing e.
        """
        factors_sbuf, *others_sbuf = [stream.loaded(load) for stream in self.streams]
        if self.options.has_probabilities and self.options.spread != 0.0:
            nisa.tensor_scalar(
                dst=factors_sbuf,
                data=factors_sbuf,
                op0=nl.multiply,
                operand0=self.options.kept,
                op1=nl.add,
                operand1=self.options.spread,
            )
        for other_sbuf in others_sbuf:
            nisa.tensor_tensor(dst=factors_sbuf, data1=factors_sbuf, data2=other_sbuf, op=nl.multiply)
        return factors_sbuf

    def _row_sums(self, visit: int, rows: int) -> nl.NkiTensor:
        total_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        part_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        for chunk in range(self.num_chunks):
            factors_sbuf = self._loaded(visit * self.num_chunks + chunk)
            sum_in_place(factors_sbuf, total_sbuf if chunk == 0 else part_sbuf)
            if chunk > 0:
                nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=part_sbuf, op=nl.add)
        return total_sbuf
