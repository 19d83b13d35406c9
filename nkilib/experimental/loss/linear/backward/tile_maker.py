# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface between a loss and the shared backward: the operands, and the computation of tiles of G.

G is the gradient of the logits. A *tile* has at most 128 positions and some classes; a *block* has some tiles of
positions and some classes.

A loss hands a :class:`BackwardProblem` to the backward: its operands and its :class:`TileMaker`. A tile of G is
computed in float32 and rounded once, to the dtype of the products; :class:`TilePlace` holds its positions and classes,
and :class:`LastProduct` is its last step, which may be issued later. Some losses open several tiles before they compute
the first of them, because opening a tile needs another table of functions on Scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nkilib.core import arithmetic
from nkilib.experimental.loss.linear.backward.gradient_block import PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.streams import OperandPair
from nkilib.experimental.loss.linear.block_schedule import Span
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.experimental.loss.linear.operands import ClassRow
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class TilePlace:
    """The positions and classes of a tile of logits.

    Attributes:
        column: the index of the tile's positions among all tiles of 128 positions of the launch. Tensors with one
            scalar per position, [128, tiles of positions], have the tile's positions in this column.
        rows: the number of positions, at most 128.
        classes: the range of classes, counted from the first class of the block.
    """

    column: int
    rows: int
    classes: Span

    def of(self, column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the scalars of the tile's positions, [rows, 1], from a tensor [128, tiles of positions]."""
        return column_sbuf[0 : self.rows, self.column : self.column + 1]

    def of_classes(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values of the tile's classes, [rows, classes], from a tensor [128, classes of a block]."""
        return row_sbuf[0 : self.rows, self.classes.first : self.classes.end]

    def slot(self, tiles_sbuf: list[nl.NkiTensor], number: int) -> nl.NkiTensor:
        """Return the buffer slot [rows, classes] of tile ``number``; the tiles use the slots round-robin."""
        return tiles_sbuf[number % len(tiles_sbuf)][0 : self.rows, 0 : self.classes.size]


@dataclass(frozen=True)
class LastProduct:
    """The last step of a tile of G: a product and its rounding.

    The caller issues this step after the exponentials of the next tile, so that Scalar does not wait.

    Attributes:
        dst_sbuf: the result, the rounded tile.
        values_sbuf: the values that are multiplied, float32.
        factor_sbuf: the factor of each position, float32 [rows, 1]; None for 1.
        sums_sbuf: float32 sums of the tile's shape, to which the product is added before it is rounded; None if there
            are none.
        begins_sums: whether the product is stored as the sums instead of being added.
        adds_on_vector: whether Vector adds to the sums, and not GpSimd; only with a factor.
    """

    dst_sbuf: nl.NkiTensor
    values_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor | None
    sums_sbuf: nl.NkiTensor | None = None
    begins_sums: bool = False
    adds_on_vector: bool = False

    def issue(self, on_gpsimd: bool) -> None:
        """Issue the product, the rounding and the addition to the sums.

        If GpSimd adds to the sums, Scalar multiplies and GpSimd rounds; but Scalar rounds if there is no factor and
        ``on_gpsimd`` is False. If GpSimd does not add, the engine that multiplies also rounds.

        Args:
            on_gpsimd: whether GpSimd is idle. Then it multiplies, unless it adds; it is half as fast as Scalar.
        """
        if self.sums_sbuf is not None and not self.adds_on_vector:
            self._multiply(self.values_sbuf)
            if self.factor_sbuf is None and not on_gpsimd:
                nisa.activation(dst=self.dst_sbuf, op=nl.copy, data=self.values_sbuf)
            else:
                nisa.tensor_copy(dst=self.dst_sbuf, src=self.values_sbuf, engine=nisa.engine.gpsimd)
            self._add_on_gpsimd(self.sums_sbuf)
            return
        if not on_gpsimd:
            self._multiply(self.dst_sbuf)
        elif self.factor_sbuf is not None:
            factors_sbuf = self.factor_sbuf.broadcast(1, self.dst_sbuf.shape[1])
            arithmetic.multiply_on_gpsimd(self.dst_sbuf, self.values_sbuf, factors_sbuf)
        if self.sums_sbuf is not None and self.factor_sbuf is not None:
            self._add_on_vector(self.sums_sbuf, self.factor_sbuf)

    def _multiply(self, dst_sbuf: nl.NkiTensor) -> None:
        if self.factor_sbuf is not None:
            nisa.activation(dst=dst_sbuf, op=nl.copy, data=self.values_sbuf, scale=self.factor_sbuf)

    def _add_on_gpsimd(self, sums_sbuf: nl.NkiTensor) -> None:
        engine = nisa.engine.gpsimd
        if self.begins_sums:
            nisa.tensor_copy(dst=sums_sbuf, src=self.values_sbuf, engine=engine)
        else:
            nisa.tensor_tensor(dst=sums_sbuf, data1=sums_sbuf, data2=self.values_sbuf, op=nl.add, engine=engine)

    def _add_on_vector(self, sums_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
        # Scalar stores the first product as the sums, because its copies of transposes come later.
        if self.begins_sums:
            self._multiply(sums_sbuf)
            return
        nisa.scalar_tensor_tensor(
            dst=sums_sbuf,
            data=self.values_sbuf,
            op0=nl.multiply,
            operand0=factor_sbuf,
            op1=nl.add,
            operand1=sums_sbuf,
        )


class TileMaker(Protocol):
    """The computation of the tiles of G, one after another; each loss implements this interface."""

    @property
    def power(self) -> PowerOfTwo | None:
        """The power of two that G is multiplied by; None for 1."""

    @property
    def rows(self) -> list[ClassRow]:
        """The vectors of one value per class, besides the biases; the backward loads their values for each block of
        classes.
        """

    @property
    def opens_groups(self) -> bool:
        """Whether :meth:`open` is called for several tiles before the first of them is computed."""

    def begin(self, first_class: int) -> None:
        """Set the first class of the next block, counted from the first class of W."""

    def advance(self, classes: int) -> None:
        """Move the first class of the next block by ``classes``."""

    def prepare(self, positions: Span, skipped: int, done: float, end: float) -> None:
        """Do a part of the work on a block of positions that can be done before its logits are known.

        Args:
            positions: the block of positions.
            skipped: the number of classes from the class that :meth:`begin` or :meth:`advance` has set to the first
                class of the block of classes.
            done, end: the fraction of the block's tiles that is prepared before the call, and after it, from 0 to 1.
        """

    def open(self, number: int, scores: list[nl.NkiTensor], place: TilePlace) -> list[nl.NkiTensor]:
        """Begin tile ``number``, and return the values computed from its scores that :meth:`make_tile` needs.

        Args:
            number: the running number of the tile, which selects its buffer slots.
            scores: for each operand pair the logits, or under a cap ``tanh(logit / cap)``, float32 [rows, classes]; in
                PSUM or in SBUF.
            place: the positions and classes of the tile.
        """

    def make_tile(
        self, number: int, dst_sbuf: nl.NkiTensor, opened: list[nl.NkiTensor], place: TilePlace
    ) -> LastProduct | None:
        """Compute tile ``number`` of G, and return its last product, which the caller issues later, or None.

        Args:
            number: the running number of the tile.
            dst_sbuf: the result, [rows, classes], in the dtype of the products, or the tile's slot of
                ``float32_tiles``.
            opened: the result of :meth:`open`; overwritten.
            place: the positions and classes of the tile.
        """

    @property
    def float32_tiles(self) -> list[nl.NkiTensor]:
        """The buffer slots in which :meth:`make_tile` computes tiles: :data:`GRADIENT_SLOTS` tiles, float32 [128,
        classes of a tile].

        A slot may also hold the result.
        """

    @property
    def may_hold_scores(self) -> bool:
        """Whether logits plus bias of a tile may be stored in the slot of ``float32_tiles`` in which :meth:`make_tile`
        computes the tile.

        This saves buffers.
        """


class BackwardProblem(NamedTuple):
    """The input of the shared backward, given by a loss.

    Attributes:
        pairs: the operand pairs that logits are computed from: one or two. The gradients are those of the first pair.
        make_tiles: a function that takes the plan and returns the tile maker of G.
    """

    pairs: list[OperandPair]
    make_tiles: Callable[[BackwardPlan], TileMaker]

    @property
    def operands(self) -> LinearOperands:
        """The operands X and W whose gradients are computed."""
        return self.pairs[0].operands
