# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the input, dX = G W, summed in float32 in HBM.

N positions, D features, V classes; G is the gradient of the logits, W the weight. A *stripe* is a range of features, a
*region* of dX a range of positions and of features.

:class:`InputGradient` sums dX of a core over the core's blocks of classes, and :class:`InputSum` adds up the sums of
all cores. Where both cores compute the same classes (:class:`.memory_plan.ClassCover`), each core adds only its own
classes to dX (:class:`OwnClasses`).
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.sbuf import Ring
from nkilib.experimental.loss.linear.backward.gradient_block import GradientBlock, PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import ClassCover
from nkilib.experimental.loss.linear.block_schedule import Span, cut
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class InputGradient:
    """The dX of this core, summed over its blocks of classes in HBM.

    Attributes:
        partial_hbm: the sum, float32 [N, D].
        banks: the banks of PSUM for the products.
        results: the ring buffer of tiles on their way to HBM, float32 [128, stripe].
        power: the power of two that G is multiplied by; None for 1.
    """

    partial_hbm: nl.NkiTensor
    banks: Ring
    results: Ring
    power: PowerOfTwo | None

    def restart(self) -> None:
        """Restart the ring buffer of the results, at the start of a round (:mod:`.rounds`)."""
        self.results.restart()

    def clear(self) -> None:
        """Store zeros in ``partial_hbm``.

        This is for loops in which every block adds to the sum, because no block is known to be the first.
        """
        zeros_sbuf = self.results.tiles[0]
        nisa.memset(dst=zeros_sbuf, value=0.0)
        positions, features = self.partial_hbm.shape
        for rows in cut(positions, PARTITIONS):
            for columns in cut(features, zeros_sbuf.shape[1]):
                place_hbm = self.partial_hbm[rows.first : rows.end, columns.first : columns.end]
                nisa.dma_copy(dst=place_hbm, src=zeros_sbuf[0 : rows.size, 0 : columns.size])

    def add_tile(
        self,
        gradient: GradientBlock,
        weight_sbuf: nl.NkiTensor,
        place_hbm: nl.NkiTensor,
        tile: int,
        classes: int,
        is_first: bool,
    ) -> None:
        """Compute dX of one tile of positions and one stripe of features, and store it in the sum or add it to the sum.

        Args:
            gradient: the block of G.
            weight_sbuf: the stripe of W, [128, tiles of classes, stripe].
            place_hbm: the region of ``partial_hbm`` that gets the result, [rows, stripe].
            tile: the number of the tile of positions in the block.
            classes: the number of classes of the block.
            is_first: whether the result is stored; otherwise it is added.
        """
        rows, features = place_hbm.shape
        first = tile * PARTITIONS
        bank_psum = self.banks.next_tile()[0:rows, 0:features]
        for number, span in enumerate(cut(classes, PARTITIONS)):
            nisa.nc_matmul(
                dst=bank_psum,
                stationary=gradient.classes_first_sbuf[0 : span.size, number, first : first + rows],
                moving=weight_sbuf[0 : span.size, number, 0:features],
                accumulate=number > 0,
            )
        result_sbuf = self.results.next_tile()[0:rows, 0:features]
        if self.power is None:
            nisa.tensor_copy(dst=result_sbuf, src=bank_psum, engine=nisa.engine.scalar)
        else:
            nisa.activation(dst=result_sbuf, op=nl.copy, data=bank_psum, scale=self.power.inverse_sbuf[0:rows, :])
        if is_first:
            nisa.dma_copy(dst=place_hbm, src=result_sbuf)
        else:
            nisa.dma_compute(dst=place_hbm, srcs=[place_hbm, result_sbuf], reduce_op=nl.add)


@dataclass(frozen=True)
class InputSum:
    """The addition of the sums of all cores, by DMA, which rounds once; each core adds an equal share of the rows.

    Attributes:
        gradient_hbm: the result dX, [N, D].
        partials_hbm: for each core that has classes, the core's sum, float32 [N, D].
        core: the number of this core, which has classes.
    """

    gradient_hbm: nl.NkiTensor
    partials_hbm: list[nl.NkiTensor]
    core: int

    def synchronise(self, positions: Span, features: Span) -> None:
        """Wait at a barrier until all cores have stored their sums of a region of dX."""
        if len(self.partials_hbm) == 1:
            return
        for partial_hbm in self.partials_hbm:
            place_hbm = partial_hbm[positions.first : positions.end, features.first : features.end]
            nisa.core_barrier(place_hbm, tuple(range(len(self.partials_hbm))))

    def add(self, positions: Span, features: Span, part: int, parts: int) -> None:
        """Add up the sums of the cores for some of this core's rows of a region; call it after :meth:`synchronise`.

        Args:
            positions, features: the region.
            part, parts: the rows are split into ``parts`` DMA transfers, and this call issues transfer number ``part``.
                Between short transfers, other transfers need not wait for a long one.
        """
        share = div_ceil(positions.size, len(self.partials_hbm))
        of_core = min(share, positions.size - self.core * share)
        of_part = div_ceil(of_core, parts)
        first = positions.first + self.core * share + part * of_part
        end = min(first + of_part, positions.first + self.core * share + of_core)
        if first >= end:
            return
        place = slice(first, end), slice(features.first, features.end)
        partials_hbm = [partial_hbm[place] for partial_hbm in self.partials_hbm]
        if len(partials_hbm) == 1:
            nisa.dma_copy(dst=self.gradient_hbm[place], src=partials_hbm[0])
        else:
            nisa.dma_compute(dst=self.gradient_hbm[place], srcs=partials_hbm, reduce_op=nl.add)


@dataclass(frozen=True)
class OwnClasses:
    """A mask of the classes of the current block: 1 for those that belong to this core, else 0.

    Attributes:
        count: the number of classes that belong to this core.
        places_sbuf: the index of each class of the block, counted from the first class of this core, float32 [128,
            tiles of classes].
        mask_sbuf: the mask, float32 [128, tiles of classes].
    """

    count: int
    places_sbuf: nl.NkiTensor
    mask_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, cover: ClassCover) -> OwnClasses:
        """Allocate the tiles and compute ``places_sbuf`` for the first block; :meth:`find` computes the mask."""
        shape = (PARTITIONS, cover.size // PARTITIONS)
        places_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=places_sbuf, pattern=[[PARTITIONS, shape[1]]], offset=0, channel_multiplier=1)
        own = cls(cover.own.size, places_sbuf, nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
        own.step(cover.first - cover.own.first)
        return own

    def find(self) -> None:
        """Compute the mask of the current block of classes."""
        nisa.tensor_scalar(dst=self.mask_sbuf, data=self.places_sbuf, op0=nl.greater_equal, operand0=0.0)
        nisa.scalar_tensor_tensor(
            dst=self.mask_sbuf,
            data=self.places_sbuf,
            op0=nl.less,
            operand0=float(self.count),
            op1=nl.multiply,
            operand1=self.mask_sbuf,
        )

    def step(self, classes: int) -> None:
        """Move ``places_sbuf`` to the block that begins ``classes`` classes later."""
        nisa.tensor_scalar(dst=self.places_sbuf, data=self.places_sbuf, op0=nl.add, operand0=float(classes))

    def keep(self, weight_sbuf: nl.NkiTensor) -> None:
        """Set the rows of W that belong to another core to 0, on GpSimd.

        Args:
            weight_sbuf: a stripe of W, [128, tiles of classes, features].
        """
        for tile in range(self.mask_sbuf.shape[1]):
            tile_sbuf = weight_sbuf[:, tile, :]
            nisa.tensor_tensor(
                dst=tile_sbuf,
                data1=tile_sbuf,
                data2=self.mask_sbuf[:, tile : tile + 1].broadcast(1, tile_sbuf.shape[1]),
                op=nl.multiply,
                engine=nisa.engine.gpsimd,
            )
