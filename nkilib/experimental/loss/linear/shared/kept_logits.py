# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The logits of some positions, which a core keeps in HBM between the loss and the gradients of one launch.

They are kept in float32 as they are, so that the gradients equal those from recomputed logits. Under a cap the tangents
``tanh(logit / cap)`` are kept instead, which the gradient needs too.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.linear.shared.blocks import Block, Span
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class KeptLogits:
    """The scratch memory of one core for logits.

    Attributes:
        first_class: the first class of the core.
        scratch_hbm: the logits, float32 [positions, classes of the core].
    """

    first_class: int
    scratch_hbm: nl.NkiTensor

    @classmethod
    def make(cls, positions: int, share: Span) -> KeptLogits:
        """Allocate memory for ``positions`` positions and a core's share of the classes; nothing is kept yet."""
        shape = (positions, share.size)
        scratch_hbm = nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm, name="kept_logits_hbm")
        return cls(share.first, scratch_hbm)

    def store(self, tiles_sbuf: nl.NkiTensor, start: int, classes: Block) -> None:
        """Keep tiles ``start``, ``start + 1``, ... of 128 positions.

        All of them are one store, because in a device loop over the classes, stores wait for each other.

        Args:
            tiles_sbuf: the logits, float32 [128, tiles, at least classes]; values beyond the last position are left
                out.
            start: the number of the first tile.
            classes: the classes of the logits.
        """
        held_hbm = self._of(classes)
        first, positions = start * PARTITIONS, self.scratch_hbm.shape[0]
        size = min(positions - first, tiles_sbuf.shape[1] * PARTITIONS)
        whole, rest = divmod(size, PARTITIONS)
        if whole > 0:
            whole_hbm = held_hbm.slice(0, first, first + whole * PARTITIONS).reshape_dim(0, (whole, PARTITIONS))
            nisa.dma_copy(dst=whole_hbm.permute((1, 0, 2)), src=tiles_sbuf[:, 0:whole, 0 : classes.size])
        if rest > 0:
            rest_hbm = held_hbm.slice(0, first + whole * PARTITIONS, first + size)
            nisa.dma_copy(dst=rest_hbm, src=tiles_sbuf[0:rest, whole, 0 : classes.size])

    def load(self, dst_sbuf: nl.NkiTensor, tile: int, classes: Block) -> None:
        """Load the kept logits of one tile of positions.

        Args:
            dst_sbuf: the destination, float32 [positions of the tile, classes].
            tile: the number of the tile.
            classes: the classes of the logits.
        """
        first = tile * PARTITIONS
        nisa.dma_copy(dst=dst_sbuf, src=self._of(classes).slice(0, first, first + dst_sbuf.shape[0]))

    def _of(self, classes: Block) -> nl.NkiTensor:
        """Return the view of some classes, [positions, classes]."""
        return Block(classes.first - self.first_class, classes.size).of(self.scratch_hbm, 1)


@dataclass(frozen=True)
class Keeping:
    """The arguments of a forward that keeps its logits.

    Attributes:
        kept: the memory for the logits of this core; None if it has no classes.
        shares: the classes of each core.
        program_share: the forward's share of the instructions that the program of a core may have.
    """

    kept: KeptLogits | None
    shares: list[Span]
    program_share: float
