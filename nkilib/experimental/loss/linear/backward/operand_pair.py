# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""An operand pair, hidden states and output weight, from which the backward computes logits.

The backward loads these operands of a pair: tiles of X^T, W^T of a block of classes, its bias.
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
    """X and W, and how logits are computed from their product.

    Attributes:
        operands: X, W and the bias.
        softcap: the cap of the logits; None for none.
        lowest_bias: the value that lower biases are raised to; None if the bias stays as it is.
        masked_score: under a softcap, the value that replaces the tangent of a masked class, whose bias is raised to
            twice that value; None if the tangent stays -1.
        scores_stay: whether the scores are needed until a tile of the gradient is computed; else only until it is
            opened (:meth:`TileMaker.open`).
    """

    operands: LinearOperands
    softcap: float | None = None
    lowest_bias: float | None = None
    masked_score: float | None = None
    scores_stay: bool = True


@dataclass(frozen=True)
class PairSizes:
    """The sizes of an operand pair without gradients that the plan of a backward depends on.

    Attributes:
        features: D.
        itemsize: bytes of an element of the products.
        has_classes_first: W is [V, D].
        weight_itemsize: bytes of an element of W in HBM if it is cast while it is loaded; else 0.
        staging_bytes: bytes per partition for a W that is transposed and then cast.
    """

    features: int
    itemsize: int
    has_classes_first: bool = True
    weight_itemsize: int = 0
    staging_bytes: int = 0

    @classmethod
    def of_operands(cls, operands: LinearOperands) -> PairSizes:
        """Return the sizes of a pair."""
        itemsize, cast_bytes = dtype_bytes(operands.dtype), operands.casts.weight
        return cls.of_weight(operands.num_features, itemsize, operands.has_classes_first, cast_bytes)

    @classmethod
    def of_weight(cls, features: int, itemsize: int, has_classes_first: bool, weight_itemsize: int) -> PairSizes:
        """Return the sizes of a pair, with the staging memory of its weight: none if the transfer itself casts it."""
        staging = CastBytes(weight=weight_itemsize).backward_staging(has_classes_first) if has_classes_first else 0
        return cls(features, itemsize, has_classes_first, weight_itemsize, staging)

    @property
    def feature_tiles(self) -> int:
        """The number of tiles of 128 features."""
        return div_ceil(self.features, PARTITIONS)

    @property
    def loaded_itemsize(self) -> int:
        """The bytes of an element of W in HBM."""
        return self.weight_itemsize or self.itemsize

    @property
    def tile_bytes(self) -> int:
        """The bytes per partition of 128 positions of X^T, or of 128 classes of W^T."""
        return self.feature_tiles * PARTITIONS * self.itemsize


@dataclass(frozen=True)
class WeightPart:
    """A part of W^T of some classes, as large as one transfer.

    Attributes:
        pair: the number of the operand pair.
        classes: the classes, in HBM.
        at: the first of the classes, counted in the block of classes.
        span: the part: some of these classes, counted from the first of them, if W is [V, D]; some features if it is
            [D, V].
    """

    pair: int
    classes: Block
    at: int
    span: Span


@dataclass(frozen=True)
class PairBuffers:
    """The buffers of an operand pair.

    Attributes:
        number: the number of the pair.
        operands: X, W and the bias.
        inputs: tiles of X^T, [128, tiles of features, 128]; if logits are kept, tiles of logits, float32 [128,
            classes].
        weight_sbuf: W^T of a block of classes, [128, tiles of features, classes]; None if logits are kept, or if W^T
            streams.
        bias: the bias of a block; None without a bias.
        staging: the staging memory for a W of another type than the products; X has the type of the products here.
    """

    number: int
    operands: LinearOperands
    inputs: Ring
    weight_sbuf: nl.NkiTensor | None
    bias: ClassRow | None
    staging: Staging | None

    @property
    def feature_tiles(self) -> int:
        """The number of tiles of 128 features."""
        return div_ceil(self.operands.num_features, PARTITIONS)

    def load_input(self, positions: Span, tile: int) -> nl.NkiTensor:
        """Load a tile of X^T of a block of positions into the next buffer."""
        rows = min(PARTITIONS, positions.size - tile * PARTITIONS)
        tile_sbuf = self.inputs.next_tile()
        of_tile = Matrix(self.operands.input_hbm).rows_of(positions.first + tile * PARTITIONS, rows)
        of_tile.load_transposed(tile_sbuf)
        return tile_sbuf

    def weight(self, classes: Block) -> Matrix:
        """Return W of some classes, [classes, features]."""
        has_classes_first = self.operands.has_classes_first
        weight_hbm = classes.of(self.operands.weight_hbm, 0 if has_classes_first else 1)
        return Matrix(weight_hbm, not has_classes_first, self.staging)

    def weight_parts(self, classes: Block, at: int, class_tiles: int) -> list[WeightPart]:
        """Return the parts in which W^T of some classes is loaded, for blocks of ``class_tiles`` tiles of classes."""
        if self.weight_sbuf is None:
            return []
        if self.operands.has_classes_first:
            pieces = cut(classes.size, PARTITIONS)
        else:
            step = div_ceil(self.feature_tiles, class_tiles) * PARTITIONS
            pieces = cut(self.operands.num_features, step)
        return [WeightPart(self.number, classes, at, span) for span in pieces]

    def load_weight(self, part: WeightPart) -> None:
        """Load a part of W^T; kept logits do not need it."""
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
