# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the bias, db, float32 [V]: the sum of the gradient G of the logits over the positions.

If G is float32 or has the type of the bias, Vector sums the transposed block of G along the positions
(:class:`BiasGradient`).

If 16-bit products round G and the bias has another type, db is summed from G before it is rounded
(:class:`UnroundedBiasGradient`). GpSimd, which has little else to do, adds the float32 tiles of G to one another, and
sums the result over its partitions once per block of classes. With kept logits GpSimd multiplies the tiles instead if
Vector has time to add: without a cap, and if G has one term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nkilib.core.hardware import PARTITIONS
from nkilib.experimental.loss.linear.backward.gradient_block import GradientBlock, PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.tile_maker import LastProduct, TilePlace
from nkilib.experimental.loss.linear.block_schedule import Block, cut
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class _EqualTiles:
    """The tiles ``start`` to ``end`` of a block of classes, each of ``rows`` classes."""

    start: int
    end: int
    rows: int

    @property
    def classes(self) -> int:
        return (self.end - self.start) * self.rows


def _equal_tiles(classes: int) -> list[_EqualTiles]:
    """Return the whole tiles of a block of classes, and then the shorter last tile if there is one."""
    whole, rest = divmod(classes, PARTITIONS)
    tiles = [_EqualTiles(0, whole, PARTITIONS)] if whole > 0 else []
    return tiles if rest == 0 else [*tiles, _EqualTiles(whole, whole + 1, rest)]


@dataclass(frozen=True)
class BiasGradient:
    """The gradient of the bias, db, summed along the positions of the transposed gradient of the logits.

    Attributes:
        gradient_hbm: db, [V].
        part_sbuf: the sums of one block of positions, float32 [128, tiles of classes].
        sum_sbuf: the sums of all blocks of positions so far, float32 [128, tiles of classes].
        power: the power of two that the gradient of the logits is scaled by; None for 1.
    """

    gradient_hbm: nl.NkiTensor
    part_sbuf: nl.NkiTensor
    sum_sbuf: nl.NkiTensor
    power: PowerOfTwo | None

    @classmethod
    def make(cls, plan: BackwardPlan, gradient_hbm: nl.NkiTensor, power: PowerOfTwo | None) -> BiasGradient:
        """Allocate the tiles of the sums, without values."""
        shape = (PARTITIONS, plan.class_tiles)
        part_sbuf, sum_sbuf = (nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        return cls(gradient_hbm, part_sbuf, sum_sbuf, power)

    def add(self, gradient: GradientBlock, block: Block, positions: int, is_first: bool, is_last: bool) -> None:
        """Add the sums over a block of positions; after the last block, store the gradient of the bias, db, of these
        classes.

        ``is_first`` and ``is_last`` say whether the block of positions is the first or last one.
        """
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
class UnroundedBiasGradient:
    """The gradient of the bias, db, summed from the float32 tiles of the gradient G of the logits.

    Attributes:
        gradient_hbm: db, [V].
        sums_sbuf: the sums of the tiles of positions so far, float32 [at most 128 positions, classes of a block].
        free_sbuf: float32 tiles of one shape, used by other computations, that are free once a block of G is complete.
        power: the power of two that the gradient of the logits is scaled by; None for 1.
        adds_on_vector: whether Vector adds the tiles whose last step is a product (:class:`.tile_maker.LastProduct`).
    """

    gradient_hbm: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    free_sbuf: list[nl.NkiTensor]
    power: PowerOfTwo | None
    adds_on_vector: bool

    @classmethod
    def make(
        cls,
        plan: BackwardPlan,
        gradient_hbm: nl.NkiTensor,
        free_sbuf: list[nl.NkiTensor],
        power: PowerOfTwo | None,
        num_positions: int,
        has_softcap: bool,
    ) -> UnroundedBiasGradient:
        """Allocate the tiles of the sums, without values."""
        shape = (min(PARTITIONS, num_positions), plan.class_tiles * PARTITIONS)
        sums_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        return cls(gradient_hbm, sums_sbuf, free_sbuf, power, plan.keeps_logits and not has_softcap)

    def with_sums(self, product: LastProduct, place: TilePlace) -> LastProduct:
        """Return the last step of a tile of G, extended by the addition to the sums; the first tile of positions begins
        them.
        """
        return replace(
            product,
            sums_sbuf=place.of_classes(self.sums_sbuf),
            begins_sums=place.column == 0,
            adds_on_vector=self.adds_on_vector and product.factor_sbuf is not None,
        )

    def add(self, gradient: GradientBlock, block: Block, positions: int, is_first: bool, is_last: bool) -> None:
        """Store the gradient of the bias, db, of these classes, once ``is_last`` marks the last block of positions.

        The sums contain all tiles of the block by then.
        """
        if not is_last:
            return
        width = self.free_sbuf[0].shape[1]
        for number, span in enumerate(cut(block.size, width)):
            row_sbuf = self.free_sbuf[number % len(self.free_sbuf)][0:1, 0 : span.size]
            nisa.tensor_partition_reduce(dst=row_sbuf, op=nl.add, data=self.sums_sbuf[:, span.first : span.end])
            if self.power is not None:
                inverse_sbuf = self.power.inverse_sbuf[0:1, :]
                nisa.tensor_scalar(dst=row_sbuf, data=row_sbuf, op0=nl.multiply, operand0=inverse_sbuf)
            classes_hbm = block.part(span.first, span.size).of(self.gradient_hbm)
            nisa.dma_copy(dst=classes_hbm.expand_dim(0), src=row_sbuf)
