# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The common part of losses that read the element at a target: positions in batches, elements and upstream gradients.

These losses are the negative log-likelihood and the multi-class margin loss.

:class:`Shape` is the shape of the input. :func:`blocks_of` and :func:`batches_of_block` divide the input into
:class:`Block` and :class:`PositionBatch`. :class:`ElementFinder` computes the indices of the :class:`TargetElements` of
a batch, and :class:`IndexedUpstream` loads the upstream gradients of a batch. :func:`size_of` is for registry entries.

An input has the shape [N, C, D]: N rows, C classes, and D places in each row; D is the product of all dimensions after
the classes, or 1. A *position* is one place of one row. A *batch* is up to 128 positions that are processed together,
one per partition: either one place of adjacent rows, or adjacent places of one row. A *block* is adjacent rows whose
batches one core processes.

An invalid target must not touch another element. Therefore each target is clamped to the range of classes. If clamping
changes a target that is not ``ignore_index``, ``INDEX_LIMIT`` is added to the index of the element, which is then out
of range. The DMA engine reports such an index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.host.loss import SCALAR, TensorSize
from nkilib.core.loss_arguments import in_all_partitions
from nkilib.core.rows.elements import INDEX_LIMIT, clamped, int32_column, integer_op, vector_elements
from nkilib.core.rows.tiles import cast, constant, product, selected
from nkilib.nki import explain_index, nisa, nl

# Batches of a launch: the sums of that many fit a partition of SBUF, and a program of so many its limit.
BATCHES_MAX = 8192


@dataclass(frozen=True)
class Shape:
    """The shape [N, C, D] of an input: N rows, C classes, and D places of each row."""

    rows: int
    classes: int
    places: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Shape:
        """Return the shape of an input [N, C] or [N, C, d1, ...]."""
        places = 1
        for size in shape[2:]:
            places *= size
        return cls(shape[0], shape[1], places)

    @property
    def row_size(self) -> int:
        """The number of elements of a row, C * D."""
        return self.classes * self.places

    @property
    def is_along_rows(self) -> bool:
        """Whether the positions of a batch lie along N (at one place of adjacent rows), instead of along D."""
        return self.rows >= min(self.places, PARTITIONS)

    @property
    def rows_of_block(self) -> int:
        """The number of rows of a block: 1 if batches lie along D.

        Otherwise it is at most 128 and at most half of all rows (rounded up), and so small that an int32 can index all
        elements of a block.
        """
        if not self.is_along_rows:
            return 1
        return max(1, min(PARTITIONS, div_ceil(self.rows, 2), INDEX_LIMIT // self.row_size))


@dataclass(frozen=True)
class Block:
    """Adjacent rows whose positions are all processed by one core.

    Attributes:
        number: the index of the block among all blocks of the launch.
        first: the index of the first row.
        rows: the number of rows.
    """

    number: int
    first: int
    rows: int

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the block's rows of a tensor [N, elements of a row], as a view [rows * elements of a row]."""
        size = tensor_hbm.shape[1]
        return tensor_hbm[self.first : self.first + self.rows].reshape((self.rows * size,))


@dataclass(frozen=True)
class PositionBatch:
    """A batch: up to 128 positions that are processed together, one per partition.

    Attributes:
        number: the index of the batch among all batches of the launch.
        block: the block that contains the positions.
        place: the index of the first position's place in its row, from 0 to D - 1.
        positions: the number of positions.
        is_along_rows: whether the positions lie at one place of adjacent rows, instead of at adjacent places of one
            row.
    """

    number: int
    block: Block
    place: int
    positions: int
    is_along_rows: bool

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the elements of a tensor [N, D] at these positions, as a view [positions, 1]."""
        first = self.block.first
        if self.is_along_rows:
            return tensor_hbm[first : first + self.positions, self.place : self.place + 1]
        view_hbm = tensor_hbm[first : first + 1, self.place : self.place + self.positions]
        return view_hbm.reshape((self.positions, 1))


def blocks_of(shape: Shape) -> list[Block]:
    """Return all blocks of rows of an input, in the order of their rows."""
    size = shape.rows_of_block
    starts = range(0, shape.rows, size)
    return [Block(number, start, min(size, shape.rows - start)) for number, start in enumerate(starts)]


def batches_of_block(shape: Shape, block: Block) -> list[PositionBatch]:
    """Return the batches of a block, numbered on from the batches of the previous block."""
    if shape.is_along_rows:
        first = block.number * shape.places
        return [PositionBatch(first + place, block, place, block.rows, True) for place in range(shape.places)]
    starts = range(0, shape.places, PARTITIONS)
    first = block.number * len(starts)
    return [
        PositionBatch(first + number, block, start, min(PARTITIONS, shape.places - start), False)
        for number, start in enumerate(starts)
    ]


def number_of_batches(shape: Shape) -> int:
    """Return the total number of batches of all blocks."""
    of_block = shape.places if shape.is_along_rows else div_ceil(shape.places, PARTITIONS)
    return len(blocks_of(shape)) * of_block


@dataclass(frozen=True)
class TargetElements:
    """The elements at the targets of a batch, as indices and weights: tiles [positions, 1].

    Attributes:
        index_sbuf: int32, the index of each element in :meth:`Block.of`; ``INDEX_LIMIT`` or more if out of range.
        counts_sbuf: uint32, 1 for a target that is not ignored, else 0.
        weight_sbuf: float32, the class weight of each target; 0 for an ignored one.
    """

    index_sbuf: nl.NkiTensor
    counts_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor

    def gathered(self, block_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the elements at the targets, [positions, 1], gathered from the rows of their block.

        Args:
            block_hbm: the rows of the block, [rows * elements of a row].
        """
        positions = self.index_sbuf.shape[0]
        elements_sbuf = nl.ndarray((positions, 1), dtype=block_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=elements_sbuf, src=vector_elements(block_hbm, self.index_sbuf))
        return elements_sbuf

    def counted(self, elements_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the elements in float32, with 0 for ignored targets."""
        return selected(cast(elements_sbuf, nl.float32), self.counts_sbuf)


@dataclass(frozen=True)
class ElementFinder:
    """The object that computes :class:`TargetElements`, with its constants: int32 tiles [positions of a batch, 1].

    Attributes:
        shape: the shape of the input.
        targets_hbm: the targets, int32 [N, D].
        class_weight_hbm: the class weights, float32 [C]; None for weights of 1.
        start_sbuf: for each partition p, the distance in elements from position 0 to position p of a batch.
        places_sbuf: the number D.
        penalty_sbuf: the number ``INDEX_LIMIT``.
        ignored_sbuf: the number ``ignore_index``; None if no target is ignored.
        first_sbuf: the number 0, the least class, to which lower targets are clamped.
        last_sbuf: the number C - 1, to which higher targets are clamped.
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
        """Compute the constants; with ``ignore_index`` None, no target is ignored."""
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
        """Return the target elements of each of the batches.

        The targets of all batches are loaded before the first index is computed.
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


@dataclass(frozen=True)
class IndexedUpstream:
    """The upstream gradients of the losses.

    Attributes:
        grad_hbm: the upstream gradient of each loss, [N, D]; or of the sum or mean of the losses, float32 [1].
        total_weight_hbm: float32 [1], the number by which :meth:`uniform` divides; None to divide by nothing.
        is_each: whether there is an upstream gradient for each loss.
    """

    grad_hbm: nl.NkiTensor
    total_weight_hbm: nl.NkiTensor | None
    is_each: bool

    def uniform(self) -> nl.NkiTensor | None:
        """Return the upstream gradient that all losses share, float32 [128, 1]; None if each loss has its own.

        The value is read on the device.
        """
        if self.is_each:
            return None
        scale_sbuf = in_all_partitions(self.grad_hbm)
        if self.total_weight_hbm is None:
            return scale_sbuf
        weight_sbuf = in_all_partitions(self.total_weight_hbm)
        nisa.reciprocal(dst=weight_sbuf, data=weight_sbuf)
        return product(scale_sbuf, weight_sbuf)

    def of_batch(self, batch: PositionBatch, uniform_sbuf: nl.NkiTensor | None) -> nl.NkiTensor:
        """Return the upstream gradients of the losses of a batch, [positions, 1].

        Args:
            batch: the positions.
            uniform_sbuf: the result of :meth:`uniform`.
        """
        if uniform_sbuf is not None:
            return uniform_sbuf[0 : batch.positions, :]
        grad_sbuf = nl.ndarray((batch.positions, 1), dtype=self.grad_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=grad_sbuf, src=batch.of(self.grad_hbm))
        return grad_sbuf


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, bool | float | str | None]) -> TensorSize:
    """Return the size of the tensor with the name ``tensor``, for a launch with a sum or mean.

    The input has the shape ``shape``, [N, C]; targets are int32 [N]; any other tensor is a scalar.
    """
    if tensor == "targets":
        return TensorSize(shape[:1], "int32")
    return TensorSize(shape) if tensor == "input" else SCALAR
