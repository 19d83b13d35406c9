# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where the target of each position is, with a class that may be ignored, or held by another shard.

How the index of an element is made, and what it is for an invalid class: :mod:`nkilib.core.rows.elements`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import ElementIndices, clamped, int32_column, integer_op
from nkilib.experimental.loss.cross_entropy.options import Classes, Options
from nkilib.nki import explain_index, nl


@dataclass(frozen=True)
class TargetMasks:
    """Which targets count: uint32 tiles [rows, batches], 1 or 0.

    Attributes:
        valid_sbuf: 1 for a target that is not ignored.
        held_sbuf: 1 for such a target if the logits hold its class.
    """

    valid_sbuf: nl.NkiTensor
    held_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, batches: int) -> TargetMasks:
        """Not written yet."""
        shape = (rows, batches)
        valid_sbuf = nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf)
        return cls(valid_sbuf, nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf))

    def of_batch(self, batch: int) -> TargetMasks:
        """Those of one batch of the group."""
        return TargetMasks(self.valid_sbuf[:, batch : batch + 1], self.held_sbuf[:, batch : batch + 1])


@dataclass(frozen=True)
class TargetElements:
    """The targets of a batch: int32 tiles [rows, 1].

    Attributes:
        index_sbuf: of each row's target element within the batch's span of rows, out of range of it where the target
            is neither ignored nor a class.
        column_sbuf: the element's column.
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
        """The class of the range that is nearest to each target."""
        return clamped(targets_sbuf, self.first_sbuf, self.last_sbuf)


@dataclass(frozen=True)
class TargetFinder:
    """The constants that targets are compared with, made once for all batches of a core.

    Attributes:
        targets_hbm: [N] int32, counted over all classes.
        classes: of the columns.
        indices: of the elements.
        here: classes that the logits hold.
        all: of all shards; None where that is the same.
        ignored_sbuf: the ignored class, int32 [rows, 1]; None where none is.
    """

    targets_hbm: nl.NkiTensor
    classes: Classes
    indices: ElementIndices
    here: _ClassRange
    all: _ClassRange | None
    ignored_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, targets_hbm: nl.NkiTensor, rows: int, cores: int, options: Options) -> TargetFinder:
        """For batches of at most ``rows`` positions."""
        classes = options.classes
        return cls(
            targets_hbm,
            classes,
            ElementIndices.make(rows, classes.held, cores),
            _ClassRange.make(rows, classes.first, classes.held),
            _ClassRange.make(rows, 0, classes.total) if classes.is_shard else None,
            None if options.is_plain else int32_column(rows, options.recipe.ignore_index, 0),
        )

    def find(self, batch: Batch, masks: TargetMasks | None) -> TargetElements:
        """The target elements of a batch; also writes the masks, of which there are some if targets may be ignored.

        A target that is ignored, or of a class that is not here, is moved to the nearest class that is: its element can
        be gathered, and be scattered if it gets what it would get without the scatter.
        """
        targets_sbuf = batch.loaded(self.targets_hbm, nl.int32)
        column_sbuf = self.here.nearest(targets_sbuf)
        index_sbuf = nl.ndarray((batch.rows, 1), dtype=nl.int32, buffer=nl.sbuf)
        if masks is None or self.ignored_sbuf is None:
            integer_op(index_sbuf, column_sbuf, targets_sbuf, nl.not_equal)
        else:
            valid_sbuf, held_sbuf = masks.valid_sbuf, masks.held_sbuf
            integer_op(valid_sbuf, targets_sbuf, self.ignored_sbuf, nl.not_equal)
            integer_op(held_sbuf, column_sbuf, targets_sbuf, nl.equal)
            is_class_sbuf = held_sbuf
            if self.all is not None:
                integer_op(index_sbuf, self.all.nearest(targets_sbuf), targets_sbuf, nl.equal)
                is_class_sbuf = index_sbuf
                integer_op(column_sbuf, column_sbuf, self.here.first_sbuf, nl.subtract)
            integer_op(index_sbuf, valid_sbuf, is_class_sbuf, nl.greater)
            integer_op(held_sbuf, held_sbuf, valid_sbuf, nl.multiply)
        self.indices.add_position(index_sbuf, column_sbuf)
        explain_index(index_sbuf, "target", targets_sbuf, batch.first, batch.cores, self.classes.total)
        return TargetElements(index_sbuf, column_sbuf)
