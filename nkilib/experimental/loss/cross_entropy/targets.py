# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The location of each position's target, whose class may be ignored or held by another shard of the
vocabulary.

:mod:`nkilib.core.rows.elements` explains the index of an element, also for an invalid class.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import ElementIndices, clamped, int32_column, integer_op
from nkilib.experimental.loss.cross_entropy.options import Classes, Options
from nkilib.nki import explain_index, nl


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
        """Allocate the masks; their contents are not initialised."""
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
        index_sbuf: the index of each row's target element within the batch's span of rows; out of the span's
            range where the target is neither ignored nor a class.
        column_sbuf: the column of the element.
    """

    index_sbuf: nl.NkiTensor
    column_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _ClassRange:
    """The first and the last class of a range, int32 tiles [rows, 1]."""

    first_sbuf: nl.NkiTensor
    last_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, first: int, classes: int) -> _ClassRange:
        return cls(int32_column(rows, first, 0), int32_column(rows, first + classes - 1, 0))

    def nearest(self, targets_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the class of the range that is nearest to each target."""
        return clamped(targets_sbuf, self.first_sbuf, self.last_sbuf)


@dataclass(frozen=True)
class TargetFinder:
    """The constants that locate the targets, computed once for all batches of a core.

    Attributes:
        targets_hbm: the targets, [N] int32, as classes of the whole vocabulary.
        classes: the classes that the columns of the logits hold.
        indices: the object that turns rows and columns into indices of elements.
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

    def find(self, batch: Batch, masks: TargetMasks | None) -> TargetElements:
        """Return the target elements of a batch, and write the masks if targets may be ignored.

        A target that is ignored, or whose class is in another shard, is replaced by the nearest class held here. So
        the element that is gathered exists; and a scatter to it does no harm if it writes the value that is stored
        there anyway.
        """
        targets_sbuf = batch.loaded(self.targets_hbm, nl.int32)
        column_sbuf = self.here.nearest(targets_sbuf)
        index_sbuf = nl.ndarray((batch.rows, 1), dtype=nl.int32, buffer=nl.sbuf)
        if masks is None or self.ignored_sbuf is None:
            integer_op(index_sbuf, column_sbuf, targets_sbuf, nl.not_equal)
        else:
            valid_sbuf, local_sbuf = masks.valid_sbuf, masks.local_sbuf
            integer_op(valid_sbuf, targets_sbuf, self.ignored_sbuf, nl.not_equal)
            integer_op(local_sbuf, column_sbuf, targets_sbuf, nl.equal)
            is_class_sbuf = local_sbuf
            if self.all is not None:
                integer_op(index_sbuf, self.all.nearest(targets_sbuf), targets_sbuf, nl.equal)
                is_class_sbuf = index_sbuf
                integer_op(column_sbuf, column_sbuf, self.here.first_sbuf, nl.subtract)
            integer_op(index_sbuf, valid_sbuf, is_class_sbuf, nl.greater)
            integer_op(local_sbuf, local_sbuf, valid_sbuf, nl.multiply)
        self.indices.add_position(index_sbuf, column_sbuf)
        explain_index(index_sbuf, "target", targets_sbuf, batch.first, batch.cores, self.classes.total)
        return TargetElements(index_sbuf, column_sbuf)
