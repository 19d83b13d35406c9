# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of logits, of at most 128 positions and 512 classes: the product over the features, the bias and the cap.

D features; X and W are the operands, X^T and W^T have features on partitions. *Scores* are the logits, or under a cap
``tanh(logit / cap)`` (called tangents). z is the logit after cap and temperature.

:class:`LogitTiles` computes tiles of scores. A tile of the product fills a bank of PSUM. Without bias and cap nothing
else is computed: code that needs the logits reads the bank. A bias is added on the way into SBUF. Under a cap, the
tangent stands for the logit, as in :mod:`nkilib.experimental.loss.cross_entropy.softcap`: the scale that turns a score
into z then contains the cap.

A single launch of loss and gradients keeps the float32 logits of a block of positions in HBM (:class:`LogitsInHbm`), so
the gradients equal those from recomputed logits. Under a cap it keeps the tangents, which the gradient needs too.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents
from nkilib.experimental.loss.linear.block_schedule import Block, Span
from nkilib.nki import nisa, nl

# float32 numbers of a bank of PSUM: the most columns of one product.
CLASSES_OF_TILE = 512


def multiply(
    dst_psum: nl.NkiTensor,
    stationary_sbuf: nl.NkiTensor,
    moving_sbuf: nl.NkiTensor,
    contracted: int,
    is_first: bool = True,
) -> None:
    """Compute ``dst[n, v]``, the sum over i of ``stationary[i, n] * moving[i, v]``, in float32.

    Args:
        dst_psum: the result, float32 [n, v], n at most 128, v at most ``CLASSES_OF_TILE``.
        stationary_sbuf, moving_sbuf: the operands, [128, tiles, n] and [128, tiles, v] with ceil(contracted / 128)
            tiles; index i is on partition i % 128 of tile i // 128.
        contracted: the number of indices i.
        is_first: True stores the sum; False adds it to the values in ``dst_psum``.
    """
    for tile in range(div_ceil(contracted, PARTITIONS)):
        depth = min(PARTITIONS, contracted - tile * PARTITIONS)
        nisa.nc_matmul(
            dst=dst_psum,
            stationary=stationary_sbuf[0:depth, tile, :],
            moving=moving_sbuf[0:depth, tile, :],
            accumulate=tile > 0 or not is_first,
        )


def _slot(tiles: list[nl.NkiTensor], number: int, positions: int, classes: int) -> nl.NkiTensor:
    return tiles[number % len(tiles)][0:positions, 0:classes]


@dataclass(frozen=True)
class LogitTiles:
    """The computation of one tile of scores after another, in buffers that are used round-robin.

    Attributes:
        num_features: D.
        softcap: the cap of the logits; None for none.
        products_psum: banks for the products, float32 [128, most classes of a tile].
        biased_sbuf: buffer slots for the logits with bias, in the same shape; empty without a bias.
        tangents_sbuf: buffer slots for the tangents, in the same shape; empty without a cap.
        masked_score: the score that a masked class gets under a cap; its bias must then be twice this value. None if
            its score is its tangent, -1.
    """

    num_features: int
    softcap: float | None
    products_psum: list[nl.NkiTensor]
    biased_sbuf: list[nl.NkiTensor]
    tangents_sbuf: list[nl.NkiTensor]
    masked_score: float | None = None

    @classmethod
    def make(
        cls, num_features: int, softcap: float | None, has_bias: bool, banks: int, slots: int, classes: int
    ) -> LogitTiles:
        """Allocate ``banks`` banks, and ``slots`` buffer slots in SBUF, for tiles of at most ``classes`` classes."""

        shape = (PARTITIONS, classes)

        def ring(count: int) -> list[nl.NkiTensor]:
            return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]

        return cls(
            num_features,
            softcap,
            products_psum=[nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum) for _ in range(banks)],
            biased_sbuf=ring(slots if has_bias else 0),
            tangents_sbuf=ring(0 if softcap is None else slots),
        )

    @property
    def scale(self) -> float:
        """The factor that turns scores into logits, before the temperature: the cap, or 1 without a cap."""
        return 1.0 if self.softcap is None else self.softcap

    def product(self, number: int, positions_sbuf: nl.NkiTensor, classes_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return X W^T for tile ``number``, without bias and cap, in PSUM; for the arguments see :meth:`scores`."""
        product_psum = _slot(self.products_psum, number, positions_sbuf.shape[2], classes_sbuf.shape[2])
        multiply(product_psum, positions_sbuf, classes_sbuf, self.num_features)
        return product_psum

    def scores(
        self,
        number: int,
        positions_sbuf: nl.NkiTensor,
        classes_sbuf: nl.NkiTensor,
        bias_sbuf: nl.NkiTensor | None,
    ) -> nl.NkiTensor:
        """Return tile ``number`` of the scores, float32 [positions, classes], in PSUM or in SBUF.

        The result is valid until its buffer slot is used again.

        Args:
            number: the number of the tile, which selects the buffer slots.
            positions_sbuf: X^T, [128, ceil(D / 128), positions].
            classes_sbuf: W^T, [128, ceil(D / 128), classes].
            bias_sbuf: the bias, float32 [128, classes], the same on all partitions; None for no bias. A bias of -inf
                masks a class; under a cap its score is -1, where the gradient through the cap is 0.
        """
        return self.scores_of_product(number, self.product(number, positions_sbuf, classes_sbuf), bias_sbuf)

    def scores_of_product(
        self, number: int, product_psum: nl.NkiTensor, bias_sbuf: nl.NkiTensor | None
    ) -> nl.NkiTensor:
        """Return the scores of a product that is already computed, float32 [positions, classes]; see :meth:`scores`."""
        positions, classes = product_psum.shape
        logits = product_psum
        if bias_sbuf is not None:
            logits = _slot(self.biased_sbuf, number, positions, classes)
            nisa.tensor_tensor(dst=logits, data1=product_psum, data2=bias_sbuf[0:positions, :], op=nl.add)
        if self.softcap is None:
            return logits
        tangents_sbuf = _slot(self.tangents_sbuf, number, positions, classes)
        hyperbolic_tangents(tangents_sbuf, logits, self.softcap)
        if bias_sbuf is not None and self.masked_score is not None:
            # Any other logit minus the masked score is more than 1.
            nisa.scalar_tensor_tensor(
                dst=tangents_sbuf,
                data=logits,
                op0=nl.subtract,
                operand0=self.masked_score,
                op1=nl.minimum,
                operand1=tangents_sbuf,
            )
        return tangents_sbuf


@dataclass(frozen=True)
class LogitsInHbm:
    """The scratch memory in HBM in which one core keeps its logits, or tangents.

    Attributes:
        first_class: the first class of the core.
        scratch_hbm: the logits, float32 [positions, classes of the core].
    """

    first_class: int
    scratch_hbm: nl.NkiTensor

    @classmethod
    def make(cls, positions: int, share: Span) -> LogitsInHbm:
        """Allocate memory for ``positions`` positions and the classes ``share`` of a core; nothing is stored yet."""
        shape = (positions, share.size)
        scratch_hbm = nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm, name="kept_logits_hbm")
        return cls(share.first, scratch_hbm)

    def store(self, tiles_sbuf: nl.NkiTensor, start: int, classes: Block) -> None:
        """Store the logits of tiles ``start``, ``start + 1``, ... of 128 positions.

        All whole tiles are one store, because in a device loop over the classes, stores wait for each other.

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
        return Block(classes.first - self.first_class, classes.size).of(self.scratch_hbm, 1)
