"""What a launch of the kernels works on, and what can be chosen."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.experimental.loss.multi_margin.host.tiling import MultiMarginTiling
from nkilib.experimental.loss.skeletons.indexed.elements import ElementFinder
from nkilib.experimental.loss.skeletons.indexed.positions import (
    Block,
    PositionBatch,
    Shape,
    batches_of_block,
    blocks_of,
)
from nkilib.nki import nl


@dataclass(frozen=True)
class MultiMarginOptions:
    """Options of the loss, by the names that operators and kernels have for them.

    Attributes:
        p: 1 or 2, the exponent.
        margin: that the element at the target should exceed others by.
    """

    p: int = 1
    margin: float = 1.0


@dataclass(frozen=True)
class RowBlock:
    """Rows that are worked on at a time, one a partition.

    Attributes:
        batch: as the stream has them.
        positions: as targets have them.
    """

    batch: Batch
    positions: PositionBatch

    @property
    def number(self) -> int:
        """Among all blocks of the launch."""
        return self.positions.number


@dataclass(frozen=True)
class Launch:
    """A launch of either kernel.

    Attributes:
        function: that is named in errors.
        input_hbm: [N, C].
        targets_hbm: int32 [N].
        class_weight_hbm: float32 [C]; None for 1.
        options: of the loss.
        reduction: of it.
        tiling: of a row.
    """

    function: str
    input_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor
    class_weight_hbm: nl.NkiTensor | None
    options: MultiMarginOptions
    reduction: str
    tiling: MultiMarginTiling

    @property
    def shape(self) -> Shape:
        """Of the input."""
        return Shape.of(tuple(self.input_hbm.shape))

    @property
    def is_each(self) -> bool:
        """Losses are not reduced."""
        return self.reduction == "none"

    @property
    def factor(self) -> float:
        """What the sum of a row is multiplied by, of a mean too, beside its weight."""
        shape = self.shape
        return 1.0 / (shape.classes * (shape.rows if self.reduction == "mean" else 1))

    @property
    def number_of_blocks(self) -> int:
        """Of all cores."""
        return len(blocks_of(self.shape))

    def blocks(self) -> list[RowBlock]:
        """Those of this core. How rows are divided into blocks does not depend on the number of cores."""
        own = blocks_of(self.shape)[nl.program_id(0) :: nl.num_programs()]
        return [_row_block(self.shape, block) for block in own]

    def finder(self) -> ElementFinder:
        """Of the elements at the targets."""
        targets_hbm = self.targets_hbm.reshape((self.shape.rows, 1))
        return ElementFinder.make(self.shape, targets_hbm, self.class_weight_hbm, None)


def _row_block(shape: Shape, block: Block) -> RowBlock:
    (positions,) = batches_of_block(shape, block)
    return RowBlock(Batch(block.first, block.rows, 1), positions)
