"""A number for each class of a block, the same on all partitions: a bias, or class weights."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Block
from nkilib.experimental.loss.linear.operands import PARTITIONS, load_broadcast
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class ClassRow:
    """Numbers of the classes of a block.

    Attributes:
        vector_hbm: [V].
        row_sbuf: float32 [128, classes of a block].
        lowest: what the numbers are raised to where they are less; None where they stay.
    """

    vector_hbm: nl.NkiTensor
    row_sbuf: nl.NkiTensor
    lowest: float | None = None

    @classmethod
    def make(cls, vector_hbm: nl.NkiTensor, classes: int, lowest: float | None = None) -> ClassRow:
        """For blocks of at most so many classes. Nothing is loaded yet."""
        row_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
        return cls(vector_hbm, row_sbuf, lowest)

    def load(self, classes: Block, at: int) -> None:
        """Load the numbers of some classes to ``at`` and what follows."""
        load_broadcast(self.row_sbuf[:, at : at + classes.size], classes.of(self.vector_hbm))

    def raise_lowest(self, at: int, count: int) -> None:
        """Raise ``count`` numbers from ``at`` on to the lowest one."""
        if self.lowest is not None:
            part_sbuf = self.row_sbuf[:, at : at + count]
            nisa.tensor_scalar(dst=part_sbuf, data=part_sbuf, op0=nl.maximum, operand0=self.lowest)
