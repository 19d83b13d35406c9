"""The gradient of the bias, db = G^T 1."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.backward_plan import BackwardPlan
from nkilib.experimental.loss.linear.blocks import Block
from nkilib.experimental.loss.linear.gradient_block import GradientBlock
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear.power_of_two import PowerOfTwo
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class BiasGradient:
    """db, float32 [V]: sums of G^T along the positions.

    Attributes:
        gradient_hbm: [V].
        part_sbuf: the sums of one block of positions, float32 [128, tiles of classes].
        sum_sbuf: the sums of all blocks of positions so far, float32 [128, tiles of classes].
        power: of the gradient.
    """

    gradient_hbm: nl.NkiTensor
    part_sbuf: nl.NkiTensor
    sum_sbuf: nl.NkiTensor
    power: PowerOfTwo | None

    @classmethod
    def make(cls, plan: BackwardPlan, gradient_hbm: nl.NkiTensor, power: PowerOfTwo | None) -> BiasGradient:
        """Nothing is summed yet."""
        shape = (PARTITIONS, plan.class_tiles)
        part_sbuf, sum_sbuf = (nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        return cls(gradient_hbm, part_sbuf, sum_sbuf, power)

    def add(self, gradient: GradientBlock, block: Block, positions: int, is_first: bool, is_last: bool) -> None:
        """A block of positions, the first or the last one of its classes, or both or neither."""
        for tiles in _equal_tiles(block.size):
            rows, start, end = tiles.rows, tiles.start, tiles.end
            sums_sbuf, total_sbuf = self.part_sbuf[0:rows, start:end], self.sum_sbuf[0:rows, start:end]
            nisa.tensor_reduce(
                dst=sums_sbuf, op=nl.add, data=gradient.classes_first_sbuf[0:rows, start:end, 0:positions], axis=2
            )
            if self.power is not None:
                nisa.tensor_scalar(
                    dst=sums_sbuf, data=sums_sbuf, op0=nl.multiply, operand0=self.power.inverse_sbuf[0:rows, :]
                )
            if not is_first:
                nisa.tensor_tensor(dst=sums_sbuf, data1=total_sbuf, data2=sums_sbuf, op=nl.add)
            if not is_last:
                nisa.tensor_copy(dst=total_sbuf, src=sums_sbuf)
                continue
            classes_hbm = block.of(self.gradient_hbm)[start * PARTITIONS : start * PARTITIONS + tiles.classes]
            nisa.dma_copy(dst=classes_hbm.reshape_dim(0, (end - start, rows)).permute((1, 0)), src=sums_sbuf)


@dataclass(frozen=True)
class _EqualTiles:
    """Tiles ``start`` to ``end`` of a block, of so many classes each."""

    start: int
    end: int
    rows: int

    @property
    def classes(self) -> int:
        return (self.end - self.start) * self.rows


def _equal_tiles(classes: int) -> list[_EqualTiles]:
    """The whole tiles of a block, and what is left of it."""
    whole, rest = divmod(classes, PARTITIONS)
    found = [_EqualTiles(0, whole, PARTITIONS)] if whole > 0 else []
    return found if rest == 0 else [*found, _EqualTiles(whole, whole + 1, rest)]
