"""An operand pair, hidden states and output weight, as the backward makes logits of it."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.experimental.loss.linear.sizes import TILE, CastBytes


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
        return div_ceil(self.features, TILE)

    @property
    def loaded_itemsize(self) -> int:
        """Bytes of an element of W in HBM."""
        return self.weight_itemsize or self.itemsize

    @property
    def tile_bytes(self) -> int:
        """Bytes of a partition for 128 positions of X^T, or 128 classes of W^T."""
        return self.feature_tiles * TILE * self.itemsize
