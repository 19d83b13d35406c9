# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""An operand pair, hidden states and output weight, as the backward makes logits of it.

What it loads of a pair: tiles of X^T, W^T of a block of classes, its bias.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.blocks import Block, Span, cut
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.experimental.loss.linear.shared.operands import ClassRow, Matrix
from nkilib.experimental.loss.linear.shared.sizes import CastBytes
from nkilib.experimental.loss.linear.shared.staging import Staging
from nkilib.nki import nl


@dataclass(frozen=True)
class OperandPair:
    """X and W, and what becomes of their product.

    Attributes:
        operands: X, W and the bias.
        softcap: of the logits; None for none.
        lowest_bias: what the bias is raised to where it is less; None where it stays.
        masked_score: under a softcap, what takes the place of the tangent of a masked class, whose bias is raised to
            twice that; None where it stays -1.
        scores_stay: tiles of the gradient are made of the scores themselves; else they are opened with them alone.
    """

    operands: LinearOperands
    softcap: float | None = None
    lowest_bias: float | None = None
    masked_score: float | None = None
    scores_stay: bool = True


@dataclass(frozen=True)
class PairSizes:
    """What the plan of a backward depends on of an operand pair whose gradients are not wanted.

    Attributes:
        features: D.
        itemsize: bytes of an element of the products.
        has_classes_first: W is [V, D].
        weight_itemsize: bytes of an element of W in HBM where it is cast on its way; else 0.
        staging_bytes: of a partition, for W that is transposed and then cast.
    """

    features: int
    itemsize: int
    has_classes_first: bool = True
    weight_itemsize: int = 0
    staging_bytes: int = 0

    @classmethod
    def of_operands(cls, operands: LinearOperands) -> PairSizes:
        """The sizes of a pair."""
        itemsize, cast_bytes = dtype_bytes(operands.dtype), operands.casts.weight
        return cls.of_weight(operands.num_features, itemsize, operands.has_classes_first, cast_bytes)

    @classmethod
    def of_weight(cls, features: int, itemsize: int, has_classes_first: bool, weight_itemsize: int) -> PairSizes:
        """The sizes of a pair, which say what memory its weight is cast in: none if the transfer itself casts it."""
        staging = CastBytes(weight=weight_itemsize).backward_staging(has_classes_first) if has_classes_first else 0
        return cls(features, itemsize, has_classes_first, weight_itemsize, staging)

    @property
    def feature_tiles(self) -> int:
        """Tiles of 128 features."""
        return div_ceil(self.features, PARTITIONS)

    @property
    def loaded_itemsize(self) -> int:
        """Bytes of an element of W in HBM."""
        return self.weight_itemsize or self.itemsize

    @property
    def tile_bytes(self) -> int:
        """Bytes of a partition for 128 positions of X^T, or 128 classes of W^T."""
        return self.feature_tiles * PARTITIONS * self.itemsize


@dataclass(frozen=True)
class WeightPart:
    """A part of W^T of some classes, as large as a transfer is.

    Attributes:
        pair: number of the operand pair.
        classes: which, in HBM.
        at: the first of them, counted in the block of classes.
        span: of these classes, or of the features where those are the rows in HBM.
    """

    pair: int
    classes: Block
    at: int
    span: Span


@dataclass(frozen=True)
class PairBuffers:
    """The buffers of an operand pair.

    Attributes:
        number: of the pair.
        operands: X, W and the bias.
        inputs: tiles of X^T, [128, tiles of features, 128]; of logits, float32 [128, classes], where they are kept.
        weight_sbuf: W^T of a block of classes, [128, tiles of features, classes]; None where logits are kept, or where
            it streams by.
        bias: of a block; None without.
        staging: for W of another type than that of the products, which X has here.
    """

    number: int
    operands: LinearOperands
    inputs: Ring
    weight_sbuf: nl.NkiTensor | None
    bias: ClassRow | None
    staging: Staging | None

    @property
    def feature_tiles(self) -> int:
        """Tiles of 128 features."""
        return div_ceil(self.operands.num_features, PARTITIONS)

    def load_input(self, positions: Span, tile: int) -> nl.NkiTensor:
        """A tile of X^T of a block of positions, in the next buffer."""
        rows = min(PARTITIONS, positions.size - tile * PARTITIONS)
        tile_sbuf = self.inputs.next_tile()
        of_tile = Matrix(self.operands.input_hbm).rows_of(positions.first + tile * PARTITIONS, rows)
        of_tile.load_transposed(tile_sbuf)
        return tile_sbuf

    def weight(self, classes: Block) -> Matrix:
        """W of some classes, [classes, features]."""
        has_classes_first = self.operands.has_classes_first
        weight_hbm = classes.of(self.operands.weight_hbm, 0 if has_classes_first else 1)
        return Matrix(weight_hbm, not has_classes_first, self.staging)

    def weight_parts(self, classes: Block, at: int, class_tiles: int) -> list[WeightPart]:
        """What W^T of some classes is loaded in, of blocks of so many tiles of classes."""
        if self.weight_sbuf is None:
            return []
        if self.operands.has_classes_first:
            pieces = cut(classes.size, PARTITIONS)
        else:
            step = div_ceil(self.feature_tiles, class_tiles) * PARTITIONS
            pieces = cut(self.operands.num_features, step)
        return [WeightPart(self.number, classes, at, span) for span in pieces]

    def load_weight(self, part: WeightPart) -> None:
        """A part of W^T, which kept logits do not need."""
        if self.weight_sbuf is None:
            return
        weight, span = self.weight(part.classes), part.span
        if self.operands.has_classes_first:
            at = part.at + span.first
            weight.rows_of(span.first, span.size).load_transposed(self.weight_sbuf[:, :, at : at + span.size])
            return
        tiles_sbuf = self.weight_sbuf[:, span.first // PARTITIONS : div_ceil(span.end, PARTITIONS), :]
        at_sbuf = tiles_sbuf[:, :, part.at : part.at + part.classes.size]
        weight.columns_of(span.first, span.size).load_transposed(at_sbuf)
