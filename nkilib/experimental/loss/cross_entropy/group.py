# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that the forward accumulates for a group of batches, whose results are computed together."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.argmax import Argmax
from nkilib.core.rows.batches import Batch, BatchGroup, StoredRows
from nkilib.core.rows.elements import row_elements, vector_elements
from nkilib.core.rows.moments import FirstMoment, Moments, ShiftedEntropy
from nkilib.core.rows.shifted import ShiftedSums
from nkilib.core.rows.statistics import Columns, Statistics
from nkilib.experimental.loss.cross_entropy.options import Launch, Options
from nkilib.experimental.loss.cross_entropy.targets import TargetElements, TargetMasks
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class TargetValues:
    """The values gathered at the targets of a group: tiles [rows, batches].

    Attributes:
        logits_sbuf: the logits, in the type of the chunks.
        masks: the masks of valid targets; None if all targets are valid.
        weights_sbuf: the class weights of the targets, float32; None without class weights. A target that is
            ignored or in another shard has the weight of the class that :meth:`.targets.TargetFinder.find`
            chose instead.
    """

    logits_sbuf: nl.NkiTensor
    masks: TargetMasks | None
    weights_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, columns: Columns, dtype: nl.DType, options: Options) -> TargetValues:
        """Allocate the tiles; their contents are not initialised."""
        return cls(
            columns.row_tile(dtype),
            None if options.is_plain else TargetMasks.make(columns.rows, columns.batches),
            columns.row_tile() if options.is_weighted else None,
        )

    def masks_of_batch(self, batch: int) -> TargetMasks | None:
        """Return the masks of one batch of the group."""
        return None if self.masks is None else self.masks.of_batch(batch)

    def gather(self, launch: Launch, elements: TargetElements, rows: Batch, batch: int) -> None:
        """Gather the logits at the targets of batch number ``batch`` of the group, and the class weights of the
        targets.

        DMA rounds the target's logit to the type of the tiles just as it rounds the chunks, so it does not exceed
        the maximum of its row.
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
class Group:
    """The values accumulated for a group of batches; None for values that are not requested.

    Attributes:
        batches: the batches of the group.
        statistics, moments, argmax: the maxima and sums of exponentials, the further sums over classes, and the
            largest logit's class, all updated chunk by chunk.
        exact_neg_max_sbuf: minus the maximum of one chunk of logits, [rows, 1], used if an argmax is requested.
        targets: the values at the targets; None for class probabilities.
    """

    batches: StoredRows
    statistics: Statistics
    moments: Moments | None
    argmax: Argmax | None
    exact_neg_max_sbuf: nl.NkiTensor
    targets: TargetValues | None

    @classmethod
    def make(cls, batches: BatchGroup, num_chunks: int, dtype: nl.DType, options: Options) -> Group:
        """Allocate a group for rows of ``num_chunks`` chunks of ``dtype``."""
        columns = Columns.of_group(batches, num_chunks)
        is_capped = options.softcap is not None
        statistics = Statistics.make(columns, nl.float32 if is_capped else dtype, options.scale)
        exact_neg_max_sbuf = statistics.exact_neg_max_sbuf
        if is_capped and options.wanted.argmax:
            exact_neg_max_sbuf = nl.ndarray((columns.rows, 1), dtype=dtype, buffer=nl.sbuf)
        return cls(
            batches,
            statistics,
            Moments.make(columns, options.sums_classes, options.wanted.entropy),
            Argmax.make(columns, options.classes.total, dtype) if options.wanted.argmax else None,
            exact_neg_max_sbuf,
            None if options.has_probabilities else TargetValues.make(columns, dtype, options),
        )

    @property
    def first_moment(self) -> FirstMoment:
        """The weighted sums over the classes of each row, which label smoothing, class probabilities and distance sums
        need.

        Raises:
            ValueError: if no option requires them.
        """
        if self.moments is None or self.moments.first is None:
            raise ValueError("cross_entropy: no option sums over the classes")
        return self.moments.first

    def take_weights(self, chunks: int) -> None:
        """Compute the factor exp(scale * (m_k - m)) of each processed chunk k, from its maximum m_k and the maximum
        m of its row.

        Args:
            chunks: the number of chunks of each row that have been processed.
        """
        distances_sbuf = self.statistics.take_distances(chunks)
        if self.moments is not None:
            self.moments.keep_distances(distances_sbuf, chunks)
        self.statistics.take_weights(chunks)

    def combine(self, chunks: int) -> None:
        """Combine the values of ``chunks`` chunks into values of rows, with the factors of :meth:`take_weights`."""
        if self.moments is not None:
            self.moments.combine(self.statistics, chunks)
        if self.argmax is not None:
            self.argmax.combine(chunks)
        self.statistics.combine_sums(chunks)

    def restart(self, chunks: int) -> None:
        """Combine the values of the first ``chunks`` chunks, which fill all columns of the tiles, into column 0."""
        self.take_weights(chunks)
        self.combine(chunks)
        self.statistics.restart()
        if self.moments is not None:
            self.moments.restart()
        if self.argmax is not None:
            self.argmax.restart()


@dataclass(frozen=True)
class ShiftedGroup:
    """The values accumulated for a group of batches whose exponentials are computed under a shift instead of the
    maximum.

    Attributes:
        batches: the batches of the group.
        statistics, entropy: the sums of exponentials and the terms of the entropy, updated chunk by chunk;
            ``entropy`` is None if it is not requested.
        targets: the values at the targets. For an ignored target, too, they are those of an element of its row.
    """

    batches: BatchGroup
    statistics: ShiftedSums
    entropy: ShiftedEntropy | None
    targets: TargetValues

    @classmethod
    def make(cls, batches: BatchGroup, num_chunks: int, dtype: nl.DType, options: Options) -> ShiftedGroup:
        """Allocate a group for rows of ``num_chunks`` chunks of ``dtype``."""
        columns = Columns.of_group(batches, num_chunks)
        return cls(
            batches,
            ShiftedSums.make(columns, dtype, options.scale),
            ShiftedEntropy.make(columns) if options.wanted.entropy else None,
            TargetValues.make(columns, dtype, options),
        )

    def combine(self, chunks: int) -> None:
        """Combine the values of ``chunks`` chunks into values of rows."""
        self.statistics.combine_sums(chunks)
        if self.entropy is not None:
            self.entropy.combine(self.statistics.columns, chunks)

    def restart(self, chunks: int) -> None:
        """Combine the values of the first ``chunks`` chunks, which fill all columns of the tiles, into column 0."""
        self.statistics.restart(chunks)
        if self.entropy is not None:
            self.entropy.restart(self.statistics.columns, chunks)
