# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient db of the bias, float32 [V]: the sum of G, the gradient of the logits, over the positions.

G is computed one block at a time: some positions and some classes, in tiles of at most 128 positions.

If G is float32 or has the dtype of the bias, Vector sums the transposed block of G along the positions
(:class:`BiasGradient`).

If 16-bit products round G and the bias has another dtype, db is summed from G before G is rounded
(:class:`UnroundedBiasGradient`). GpSimd, which has little else to do, adds the float32 tiles of G to one another, and
sums the result over its partitions once per block of classes. If the forward has kept the logits and they are not
capped, Vector has time to add: it adds the tiles whose last step is a product, and GpSimd computes these products.
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
    """Consecutive tiles of a block of classes that all have the same number of classes.

    Attributes:
        start, end: the number of the first tile, and of the tile after the last.
        rows: the number of classes of each tile.
    """

    start: int
    end: int
    rows: int

    @property
    def classes(self) -> int:
        return (self.end - self.start) * self.rows


def _equal_tiles(classes: int) -> list[_EqualTiles]:
    # One range for the whole tiles of 128 classes, and one for the shorter last tile; each only if there is one.
    whole, rest = divmod(classes, PARTITIONS)
    tiles = [_EqualTiles(0, whole, PARTITIONS)] if whole > 0 else []
    return tiles if rest == 0 else [*tiles, _EqualTiles(whole, whole + 1, rest)]


@dataclass(frozen=True)
class BiasGradient:
    """The computation of db from the transposed blocks of G, summed along the positions.

    Attributes:
        gradient_hbm: db, [V].
        part_sbuf: the sums over one block of positions, float32 [128, tiles of classes].
        sum_sbuf: the sums over all blocks of positions so far, float32 [128, tiles of classes].
        power: the power of two that G is multiplied by; None for 1.
    """

    gradient_hbm: nl.NkiTensor
    part_sbuf: nl.NkiTensor
    sum_sbuf: nl.NkiTensor
    power: PowerOfTwo | None

    @classmethod
    def make(cls, plan: BackwardPlan, gradient_hbm: nl.NkiTensor, power: PowerOfTwo | None) -> BiasGradient:
        """Allocate the two tiles of sums, uninitialized."""
        shape = (PARTITIONS, plan.class_tiles)
        part_sbuf, sum_sbuf = (nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        return cls(gradient_hbm, part_sbuf, sum_sbuf, power)

    def add(self, gradient: GradientBlock, block: Block, positions: int, is_first: bool, is_last: bool) -> None:
        """Add the sums of G over one block of positions to ``sum_sbuf``; after the last block of positions, store db.

        Args:
            gradient: the block of G.
            block: the classes of the block, whose db is stored.
            positions: the number of positions of the block.
            is_first, is_last: whether the block of positions is the first or last one.
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
    """The computation of db from the float32 tiles of G, before they are rounded.

    Attributes:
        gradient_hbm: db, [V].
        sums_sbuf: the sum of the tiles of G so far, float32 [at most 128 positions, classes of a block].
        free_sbuf: float32 tiles of one shape, which :meth:`add` overwrites. Other computations have finished with them
            when a block of G is complete.
        power: the power of two that G is multiplied by; None for 1.
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
        """Allocate ``sums_sbuf``, uninitialized.

        Args:
            plan: the plan of the backward.
            gradient_hbm, free_sbuf, power: see the class.
            num_positions: the number of positions of the launch.
            has_softcap: whether the logits are capped; Vector adds only if the logits are kept and not capped.
        """
        shape = (min(PARTITIONS, num_positions), plan.class_tiles * PARTITIONS)
        sums_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        return cls(gradient_hbm, sums_sbuf, free_sbuf, power, plan.keeps_logits and not has_softcap)

    def with_sums(self, product: LastProduct, place: TilePlace) -> LastProduct:
        """Return a copy of ``product`` that also adds the tile of G to ``sums_sbuf``; nothing is issued.

        The first tile of positions is stored in ``sums_sbuf`` instead of being added.

        Args:
            product: the last step of the tile.
            place: the positions and classes of the tile.
        """
        return replace(
            product,
            sums_sbuf=place.of_classes(self.sums_sbuf),
            begins_sums=place.column == 0,
            adds_on_vector=self.adds_on_vector and product.factor_sbuf is not None,
        )

    def add(self, gradient: GradientBlock, block: Block, positions: int, is_first: bool, is_last: bool) -> None:
        """Store db of the classes of ``block`` after the last block of positions; before the last one, do nothing.

        :meth:`with_sums` has already added all tiles of positions. The arguments are those of :meth:`BiasGradient.add`.
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
