# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The elements at the targets of a batch of positions, and the weights of the positions.

An invalid target must not touch another element. So each target is clamped to a class, and if that changes
it and it is not the ignored class, ``INDEX_LIMIT`` is added to the index of its element: the index leaves
the tensor, and the DMA engine reports it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.elements import INDEX_LIMIT, clamped, int32_column, integer_op, vector_elements
from nkilib.core.rows.tiles import cast, constant, selected
from nkilib.experimental.loss.skeletons.indexed.positions import PARTITIONS, PositionBatch, Shape
from nkilib.nki import explain_index, nisa, nl


@dataclass(frozen=True)
class TargetElements:
    """The elements at the targets of a batch, as indices and weights: tiles [positions, 1].

    Attributes:
        index_sbuf: int32, the index of each element within the rows of its :class:`.positions.Block`.
        counts_sbuf: uint32, 1 for a target that is not ignored, else 0.
        weight_sbuf: float32, the class weight of each target; 0 for an ignored one.
    """

    index_sbuf: nl.NkiTensor
    counts_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor

    def gathered(self, block_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Gather the elements from the rows of their block, [rows * elements of a row], in the type of the tensor."""
        positions = self.index_sbuf.shape[0]
        elements_sbuf = nl.ndarray((positions, 1), dtype=block_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=elements_sbuf, src=vector_elements(block_hbm, self.index_sbuf))
        return elements_sbuf

    def counted(self, elements_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the elements in float32, with 0 for ignored targets, whatever their elements are."""
        return selected(cast(elements_sbuf, nl.float32), self.counts_sbuf)


@dataclass(frozen=True)
class ElementFinder:
    """The constants that locate the elements, computed once for all batches of a core: int32 tiles [128, 1].

    Attributes:
        shape: the shape of the input.
        targets_hbm: the targets, int32 [N, D].
        class_weight_hbm: the class weights, float32 [C]; None for 1.
        start_sbuf: the index of the element of class 0 at each position of a batch, without the part that
            depends on the batch's place.
        places_sbuf: the number of places, D.
        penalty_sbuf: ``INDEX_LIMIT``.
        ignored_sbuf: the ignored class; None means that every target is valid.
        first_sbuf, last_sbuf: the first and the last class, to which targets are clamped.
    """

    shape: Shape
    targets_hbm: nl.NkiTensor
    class_weight_hbm: nl.NkiTensor | None
    start_sbuf: nl.NkiTensor
    places_sbuf: nl.NkiTensor
    penalty_sbuf: nl.NkiTensor
    ignored_sbuf: nl.NkiTensor | None
    first_sbuf: nl.NkiTensor
    last_sbuf: nl.NkiTensor

    @classmethod
    def make(
        cls, shape: Shape, targets_hbm: nl.NkiTensor, class_weight_hbm: nl.NkiTensor | None, ignore_index: int | None
    ) -> ElementFinder:
        """Compute the constants for all batches of a core; without an ``ignore_index`` every target is valid."""
        rows = min(PARTITIONS, shape.rows_of_block if shape.is_along_rows else shape.places)
        return cls(
            shape,
            targets_hbm,
            class_weight_hbm,
            int32_column(rows, 0, shape.row_size if shape.is_along_rows else 1),
            int32_column(rows, shape.places, 0),
            int32_column(rows, INDEX_LIMIT, 0),
            None if ignore_index is None else int32_column(rows, ignore_index, 0),
            int32_column(rows, 0, 0),
            int32_column(rows, shape.classes - 1, 0),
        )

    def find(self, batches: list[PositionBatch]) -> list[TargetElements]:
        """Return the target elements of some batches. All their targets are loaded before the first index is
        computed.
        """
        targets = [self._targets(batch) for batch in batches]
        return [self._elements(batch, targets_sbuf) for batch, targets_sbuf in zip(batches, targets, strict=True)]

    def _targets(self, batch: PositionBatch) -> nl.NkiTensor:
        targets_sbuf = nl.ndarray((batch.positions, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=targets_sbuf, src=batch.of(self.targets_hbm))
        return targets_sbuf

    def _elements(self, batch: PositionBatch, targets_sbuf: nl.NkiTensor) -> TargetElements:
        tile = (batch.positions, 1)
        class_sbuf = clamped(targets_sbuf, self.first_sbuf, self.last_sbuf)
        counts_sbuf = nl.ndarray(tile, dtype=nl.uint32, buffer=nl.sbuf)
        index_sbuf = nl.ndarray(tile, dtype=nl.int32, buffer=nl.sbuf)
        if self.ignored_sbuf is None:
            nisa.memset(dst=counts_sbuf, value=1)
        else:
            integer_op(counts_sbuf, targets_sbuf, self.ignored_sbuf, nl.not_equal)
        integer_op(index_sbuf, class_sbuf, targets_sbuf, nl.not_equal)
        integer_op(index_sbuf, index_sbuf, counts_sbuf, nl.multiply)
        integer_op(index_sbuf, index_sbuf, self.penalty_sbuf, nl.multiply)
        in_row_sbuf = nl.ndarray(tile, dtype=nl.int32, buffer=nl.sbuf)
        integer_op(in_row_sbuf, class_sbuf, self.places_sbuf, nl.multiply)
        integer_op(index_sbuf, index_sbuf, in_row_sbuf, nl.add)
        integer_op(index_sbuf, index_sbuf, self.start_sbuf, nl.add)
        if batch.place > 0:
            integer_op(index_sbuf, index_sbuf, int32_column(batch.positions, batch.place, 0), nl.add)
        first, step = (batch.block.first, 1) if batch.is_along_rows else (batch.place, 1)
        explain_index(index_sbuf, "target", targets_sbuf, first, step, self.shape.classes)
        return TargetElements(index_sbuf, counts_sbuf, self._weights(class_sbuf, counts_sbuf))

    def _weights(self, class_sbuf: nl.NkiTensor, counts_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        if self.class_weight_hbm is None:
            return cast(counts_sbuf, nl.float32)
        weight_sbuf = constant(class_sbuf, 0.0)
        nisa.dma_copy(dst=weight_sbuf, src=vector_elements(self.class_weight_hbm, class_sbuf))
        return selected(weight_sbuf, counts_sbuf)
