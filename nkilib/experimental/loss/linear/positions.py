"""A block of positions: X^T of its tiles, and where its results belong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Block
from nkilib.experimental.loss.linear.operands import PARTITIONS, Matrix, store_positions
from nkilib.experimental.loss.linear.staging import Staging
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class StoredPositions:
    """Where the results of a block of positions are stored.

    Attributes:
        block: the positions.
    """

    block: Block

    @property
    def start(self) -> int:
        """They are a batch by themselves."""
        return 0

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store float32 [128, tiles] as the values of a vector [N] that belong to the positions."""
        return store_positions(self.block.of(vector_hbm), values_sbuf)[-1]


def load_input(
    tiles_sbuf: Sequence[nl.NkiTensor], input_hbm: nl.NkiTensor, block: Block, staging: Staging | None
) -> None:
    """X^T of a block: [128, ceil(D / 128), 128] each; behind the last position stand zeros, whose logits are finite."""
    for number, tile_sbuf in enumerate(tiles_sbuf):
        count = min(PARTITIONS, block.size - number * PARTITIONS)
        if count < PARTITIONS:
            nisa.memset(dst=tile_sbuf, value=0.0)
        of_tile = Matrix(block.part(number * PARTITIONS, count).of(input_hbm), staging=staging)
        of_tile.load_transposed(tile_sbuf)
