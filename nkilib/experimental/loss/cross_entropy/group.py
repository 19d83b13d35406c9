# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the forward gathers of a group of batches, whose results are made at once."""

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
    """What is gathered at the targets of a group: tiles [rows, batches].

    Attributes:
        logits_sbuf: the logits, in the type of the chunks.
        masks: which targets count; None where all do.
        weights_sbuf: float32 weights of the classes that the targets, moved where they have to be, stand for; None
            without class weights.
    """

    logits_sbuf: nl.NkiTensor
    masks: TargetMasks | None
    weights_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, columns: Columns, dtype: nl.DType, options: Options) -> TargetValues:
        """Not written yet."""
        return cls(
            columns.row_tile(dtype),
            None if options.is_plain else TargetMasks.make(columns.rows, columns.batches),
            columns.row_tile() if options.is_weighted else None,
        )

    def masks_of_batch(self, batch: int) -> TargetMasks | None:
        """The masks of one batch of the group."""
        return None if self.masks is None else self.masks.of_batch(batch)

    def gather(self, launch: Launch, elements: TargetElements, rows: Batch, batch: int) -> None:
        """The logits at the targets of one batch of the group, and their class weights.

        DMA rounds this logit to the type of the tiles just as it rounds the chunks: no other one exceeds the maximum.
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
    """What is gathered of a group of batches; None for what nobody asks for.

    Attributes:
        batches: of the group.
        statistics, moments, argmax: chunk by chunk.
        exact_neg_max_sbuf: where an argmax is asked for, minus the maximum of one chunk of logits, [rows, 1].
        targets: None for class probabilities.
    """

    batches: StoredRows
    statistics: Statistics
    moments: Moments | None
    argmax: Argmax | None
    exact_neg_max_sbuf: nl.NkiTensor
    targets: TargetValues | None

    @classmethod
    def make(cls, batches: BatchGroup, num_chunks: int, dtype: nl.DType, options: Options) -> Group:
        """For rows of so many chunks of ``dtype``."""
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
        """What is summed over the classes of each row.

        Raises:
            ValueError: nothing is.
        """
        if self.moments is None or self.moments.first is None:
            raise ValueError("cross_entropy: no option sums over the classes")
        return self.moments.first

    def take_weights(self, chunks: int) -> None:
        """How the chunks of each row are to be weighted, when ``chunks`` of them have gone through."""
        distances_sbuf = self.statistics.take_distances(chunks)
        if self.moments is not None:
            self.moments.keep_distances(distances_sbuf, chunks)
        self.statistics.take_weights(chunks)

    def combine(self, chunks: int) -> None:
        """What was gathered of chunks becomes that of rows, once the weights are there."""
        if self.moments is not None:
            self.moments.combine(self.statistics, chunks)
        if self.argmax is not None:
            self.argmax.combine(chunks)
        self.statistics.combine_sums(chunks)

    def restart(self, chunks: int) -> None:
        """Put what ``chunks`` chunks have left in the columns, which are full, into column 0."""
        self.take_weights(chunks)
        self.combine(chunks)
        self.statistics.restart()
        if self.moments is not None:
            self.moments.restart()
        if self.argmax is not None:
            self.argmax.restart()


@dataclass(frozen=True)
class ShiftedGroup:
    """What is gathered of a group of batches where exponentials are taken under a shift.

    Attributes:
        batches: of the group.
        statistics, entropy: chunk by chunk; None for an entropy that nobody asks for.
        targets: one of each row is an element of the row, whether it counts or not.
    """

    batches: BatchGroup
    statistics: ShiftedSums
    entropy: ShiftedEntropy | None
    targets: TargetValues

    @classmethod
    def make(cls, batches: BatchGroup, num_chunks: int, dtype: nl.DType, options: Options) -> ShiftedGroup:
        """For rows of so many chunks of ``dtype``."""
        columns = Columns.of_group(batches, num_chunks)
        return cls(
            batches,
            ShiftedSums.make(columns, dtype, options.scale),
            ShiftedEntropy.make(columns) if options.wanted.entropy else None,
            TargetValues.make(columns, dtype, options),
        )

    def combine(self, chunks: int) -> None:
        """What was gathered of chunks becomes that of rows."""
        self.statistics.combine_sums(chunks)
        if self.entropy is not None:
            self.entropy.combine(self.statistics.columns, chunks)

    def restart(self, chunks: int) -> None:
        """Put what ``chunks`` chunks have left in the columns, which are full, into column 0."""
        self.statistics.restart(chunks)
        if self.entropy is not None:
            self.entropy.restart(self.statistics.columns, chunks)
