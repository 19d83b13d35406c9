"""The scores of both models for a block of positions, which a core keeps in HBM between its two visits.

For each block of classes a position has the student's scores and then the teacher's: what a transfer moves for a
position is contiguous, and twice as long as the scores of one model. DMA moves rows of less than 2 KiB more slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Block, Span
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear_distillation.visits import ScoreGroup
from nkilib.nki import nisa, nl

_MODELS = 2


@dataclass(frozen=True)
class KeptPair:
    """A scratch of one core.

    Attributes:
        first_class: of the core.
        scratch_hbm: float32 [positions, models * classes of the core].
    """

    first_class: int
    scratch_hbm: nl.NkiTensor

    @classmethod
    def make(cls, tiles: int, share: Span, number: int) -> KeptPair:
        """For so many tiles of positions and a core's share of the classes; the name has the number."""
        shape = (tiles * PARTITIONS, _MODELS * share.size)
        name = f"kept_scores_{number}_hbm"
        return cls(share.first, nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm, name=name))

    def store(self, scores: ScoreGroup, classes: Block) -> None:
        """Keep the scores of a group of tiles, those of rows behind the last position too."""
        for number in range(scores.tiles):
            nisa.dma_copy(
                dst=self._of_tile(scores.start + number, classes, 1)[:, 0], src=scores.pair_sbuf[:, :, number]
            )

    def load(self, dst_sbuf: nl.NkiTensor, tile: int, classes: Block) -> None:
        """Load what is kept of one tile of positions.

        Args:
            dst_sbuf: float32 [128, blocks, models, classes].
            tile: its number.
            classes: the first block of classes of equal blocks, one after the other.
        """
        nisa.dma_copy(dst=dst_sbuf, src=self._of_tile(tile, classes, int(dst_sbuf.shape[1])))

    def _of_tile(self, tile: int, classes: Block, blocks: int) -> nl.NkiTensor:
        """The view [128, blocks, models, classes]."""
        first = (classes.first - self.first_class) * _MODELS
        of_classes = Block(first, blocks * _MODELS * classes.size).of(self.scratch_hbm, 1)
        of_tile = of_classes.slice(0, tile * PARTITIONS, (tile + 1) * PARTITIONS)
        return of_tile.reshape_dim(1, (blocks, _MODELS, classes.size))
