"""What a launch of the kernels works on."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.batches import Batch
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

PARTITIONS = 128
# Classes of a row, which is on chip as a whole. Counts of pairs of them are exact in float32.
CLASSES_MAX = 4096
# Blocks of a launch: a program of so many is near its limit.
BLOCKS_MAX = 2048


@dataclass(frozen=True)
class RowBlock:
    """Rows that are worked on at a time, one a partition.

    Attributes:
        number: among all blocks of the launch.
        batch: the rows.
        is_stored: their results are this core's to store.
    """

    number: int
    batch: Batch
    is_stored: bool


@dataclass(frozen=True)
class Launch:
    """A launch of either kernel.

    Attributes:
        function: that is named in errors.
        input_hbm: [N, C].
        targets_hbm: int32 [N, C].
        reduction: of the loss.
    """

    function: str
    input_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor
    reduction: str

    @property
    def rows(self) -> int:
        """N."""
        return int(self.input_hbm.shape[0])

    @property
    def classes(self) -> int:
        """C."""
        return int(self.input_hbm.shape[1])

    @property
    def is_each(self) -> bool:
        """Losses are not reduced."""
        return self.reduction == "none"

    @property
    def factor(self) -> float:
        """What the sum of a row is multiplied by, of a mean too."""
        return 1.0 / (self.classes * (self.rows if self.reduction == "mean" else 1))

    @property
    def number_of_blocks(self) -> int:
        """Of all cores: an even number, so that both run their loops equally often; it does not depend on them."""
        return 2 * div_ceil(self.rows, 2 * PARTITIONS)

    def loaded(self, block: RowBlock, buffer_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """The input of a block, in a tile [128, C]; zeros where the other core may store over it."""
        input_sbuf = buffer_sbuf[0 : block.batch.rows, :]
        if block.is_stored:
            nisa.dma_copy(dst=input_sbuf, src=block.batch.part_of(self.input_hbm, 0, self.classes))
        else:
            nisa.memset(dst=input_sbuf, value=0.0)
        return input_sbuf

    def blocks(self) -> list[RowBlock]:
        """Those of this core. Of a single row each core takes the same one, and the first core stores it."""
        cores, core, count = nl.num_programs(), nl.program_id(0), self.number_of_blocks
        if self.rows == 1:
            return [RowBlock(0, Batch(0, 1, 1), core == 0)]
        bounds = [self.rows * number // count for number in range(count + 1)]
        return [
            RowBlock(number, Batch(bounds[number], bounds[number + 1] - bounds[number], 1), True)
            for number in range(core, count, cores)
        ]
