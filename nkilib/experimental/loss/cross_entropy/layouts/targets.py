# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The targets of positions whose logits are on chip, in the layouts of :mod:`.batches`.

A *packed* position shares its partition with other positions; a *part* of a position is the elements that one of its
several partitions holds. :class:`ColumnsOnChip` gathers the elements of packed positions at their targets,
:func:`columns_of_parts` computes in which column of its part a target is, and :func:`last_parts` marks the last parts,
which may be longer. These operations do not detect invalid targets, so :func:`check_targets` accesses HBM out of range
if a target is invalid.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS
from nkilib.core.loss_arguments import in_all_partitions
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import INDEX_LIMIT, int32_column, integer_op, vector_elements
from nkilib.core.rows.row_plan import RowBatch, RowPiece, RowPlan
from nkilib.core.rows.tiles import cast
from nkilib.experimental.loss.cross_entropy.launch import Launch
from nkilib.experimental.loss.cross_entropy.targets import LocatedTargets, TargetFinder
from nkilib.nki import explain_index, nisa, nl


def check_targets(finder: TargetFinder, rows: Batch | RowBatch, located: LocatedTargets) -> nisa.NkiInstruction:
    """Report invalid targets by an access of HBM: each partition loads a target, from an index that is out of range if
    one of its own targets is invalid.

    Returns:
        The DMA instruction. Results must depend on this instruction, so that the access takes place.
    """
    is_invalid_sbuf = located.is_invalid_sbuf
    partitions, columns = is_invalid_sbuf.shape
    any_sbuf = is_invalid_sbuf
    if columns > 1:
        any_sbuf = nl.ndarray((partitions, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=any_sbuf, op=nl.maximum, data=is_invalid_sbuf, axis=1)
    index_sbuf = nl.ndarray((partitions, 1), dtype=nl.int32, buffer=nl.sbuf)
    integer_op(index_sbuf, any_sbuf, int32_column(partitions, INDEX_LIMIT, 0), nl.multiply)
    step = rows.cores if isinstance(rows, Batch) else rows.rows_each
    explain_index(
        index_sbuf, "target", located.targets_sbuf, rows.first, step, finder.classes.total, located.is_invalid_sbuf
    )
    target_sbuf = nl.ndarray((partitions, 1), dtype=nl.int32, buffer=nl.sbuf)
    return nisa.dma_copy(dst=target_sbuf, src=vector_elements(finder.targets_hbm, index_sbuf))


@dataclass(frozen=True)
class ColumnsOnChip:
    """Gathers one element of each packed position, at its target, on chip.

    Attributes:
        row_start_sbuf: the index in its partition of the first element of each position of a piece (:class:`RowPiece`),
            int32 [128, positions of a piece].
        weights_sbuf: the class weights, float32 [128, V]; None without class weights.
    """

    row_start_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: Launch, plan: RowPlan) -> ColumnsOnChip:
        """Compute the start indices, and load the class weights if the launch has them."""
        row_start_sbuf = nl.ndarray((PARTITIONS, plan.rows_of_piece), dtype=nl.int32, buffer=nl.sbuf)
        nisa.iota(dst=row_start_sbuf, pattern=[[plan.row_size, plan.rows_of_piece]], offset=0, channel_multiplier=0)
        weight_hbm = launch.class_weight_hbm
        return cls(row_start_sbuf, None if weight_hbm is None else in_all_partitions(weight_hbm))

    def gather(
        self, dst_sbuf: nl.NkiTensor, piece_sbuf: nl.NkiTensor, column_sbuf: nl.NkiTensor, piece: RowPiece
    ) -> None:
        """Gather one element of each position of a piece.

        Args:
            dst_sbuf: the destination, [partitions, positions of the batch]; the positions of the piece are written.
            piece_sbuf: the piece, [partitions, positions of the piece, V].
            column_sbuf: the columns to gather, int32 [partitions, positions of the batch].
            piece: says which positions of the batch the piece has.
        """
        index_sbuf = nl.ndarray((column_sbuf.shape[0], piece.rows), dtype=nl.uint32, buffer=nl.sbuf)
        starts_sbuf = self.row_start_sbuf[:, 0 : piece.rows]
        integer_op(index_sbuf, column_sbuf[:, piece.first : piece.end], starts_sbuf, nl.add)
        nisa.nc_n_gather(dst=dst_sbuf[:, piece.first : piece.end], data=piece_sbuf, indices=index_sbuf)

    def gather_weights(self, column_sbuf: nl.NkiTensor) -> nl.NkiTensor | None:
        """Return the class weights at the columns, float32 of the shape of ``column_sbuf``; None without class
        weights.
        """
        if self.weights_sbuf is None:
            return None
        partitions = column_sbuf.shape[0]
        index_sbuf = nl.ndarray(column_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=index_sbuf, src=column_sbuf, engine=nisa.engine.gpsimd)
        gathered_sbuf = nl.ndarray(column_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_n_gather(dst=gathered_sbuf, data=self.weights_sbuf[0:partitions], indices=index_sbuf)
        return gathered_sbuf


def _parts_of(partitions: int, parts: int) -> nl.NkiTensor:
    """Return the number of the part that each partition has of its position, int32 [partitions, 1]."""
    part_sbuf = int32_column(partitions, 0, 1)
    nisa.tensor_scalar(dst=part_sbuf, data=part_sbuf, op0=nl.bitwise_and, operand0=parts - 1)
    return part_sbuf


def last_parts(parts: int) -> nl.NkiTensor:
    """Return 1 for each partition that has the last of ``parts`` parts of a position, else 0: uint32 [128, 1]."""
    is_last_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.uint32, buffer=nl.sbuf)
    integer_op(is_last_sbuf, _parts_of(PARTITIONS, parts), int32_column(PARTITIONS, parts - 1, 0), nl.equal)
    return is_last_sbuf


def columns_of_parts(batch: RowBatch, column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the column of each target within the part of its position that a partition has, float32.

    The result is negative, or at least the number of columns of the part, if the target is in another part.

    Args:
        batch: the positions. The number of partitions of a position is a power of two.
        column_sbuf: the columns within whole positions, int32 [partitions, positions of a partition].
    """
    parts, width = batch.plan.parts, batch.plan.width
    if parts == 1:
        return cast(column_sbuf, nl.float32)
    partitions = column_sbuf.shape[0]
    start_sbuf = _parts_of(partitions, parts)
    integer_op(start_sbuf, start_sbuf, int32_column(partitions, width, 0), nl.multiply)
    own_sbuf = nl.ndarray(column_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    integer_op(own_sbuf, column_sbuf, start_sbuf, nl.subtract)
    return own_sbuf
