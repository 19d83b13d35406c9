# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What makes a tile of the gradient of the logits: an interface, of which every loss has its own.

A tile is computed in float32 and rounded once, to the type of the products. Some losses open several tiles before they
make the first of them, because Scalar loads another table of functions for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.experimental.loss.linear.backward.power_of_two import PowerOfTwo
from nkilib.experimental.loss.linear.shared.blocks import Span
from nkilib.experimental.loss.linear.shared.operands import ClassRow
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class TilePlace:
    """Which positions and classes a tile of logits is of.

    Attributes:
        column: of the positions, in tiles [128, tiles of positions].
        rows: positions, at most 128.
        classes: its classes, counted in the block of classes.
    """

    column: int
    rows: int
    classes: Span

    def of(self, column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """The numbers of its positions, [rows, 1]."""
        return column_sbuf[0 : self.rows, self.column : self.column + 1]

    def of_classes(self, row_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """The numbers of its classes, [rows, classes], of a row [128, classes of a block]."""
        return row_sbuf[0 : self.rows, self.classes.first : self.classes.end]

    def turn(self, tiles_sbuf: list[nl.NkiTensor], number: int) -> nl.NkiTensor:
        """The tile [rows, classes] that tile ``number`` takes of some that take turns."""
        return tiles_sbuf[number % len(tiles_sbuf)][0 : self.rows, 0 : self.classes.size]


@dataclass(frozen=True)
class LastProduct:
    """The last step of a tile, to be issued after the next tile's exponentials: then Scalar waits for none.

    Attributes:
        dst_sbuf: the tile, rounded.
        values_sbuf: float32.
        factor_sbuf: what they are multiplied with, float32 [rows, 1].
    """

    dst_sbuf: nl.NkiTensor
    values_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor

    def issue(self, on_gpsimd: bool) -> None:
        """Multiply and round, on Scalar, or on GpSimd, which is free and half as fast."""
        if not on_gpsimd:
            nisa.activation(dst=self.dst_sbuf, op=nl.copy, data=self.values_sbuf, scale=self.factor_sbuf)
            return
        factors_sbuf = self.factor_sbuf.broadcast(1, self.dst_sbuf.shape[1])
        nisa.tensor_tensor(
            dst=self.dst_sbuf,
            data1=self.values_sbuf,
            data2=factors_sbuf,
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )


class TileMaker(Protocol):
    """Makes one tile of the gradient of the logits after another."""

    @property
    def power(self) -> PowerOfTwo | None:
        """By which the gradient is larger than it should be; None for 1."""

    @property
    def rows(self) -> list[ClassRow]:
        """Numbers of the classes of a block that it needs beside the biases."""

    @property
    def opens_groups(self) -> bool:
        """Whether several tiles are opened before the first of them is made."""

    def begin(self, first_class: int) -> None:
        """The next block of classes starts with that class of the launch."""

    def advance(self, classes: int) -> None:
        """The next block of classes starts so many classes later."""

    def prepare(self, positions: Span, skipped: int, done: float, end: float) -> None:
        """Do what can be done before there are logits, from one share of a block of positions to another one.

        Args:
            positions: the block.
            skipped: classes between the last :meth:`begin` or :meth:`advance` and the block of classes.
            done, end: shares of the tiles of the block, from 0 to 1.
        """

    def open(self, number: int, scores: list[nl.NkiTensor], place: TilePlace) -> list[nl.NkiTensor]:
        """Begin tile ``number``: what :meth:`make_tile` needs of its scores.

        Args:
            scores: by operand pair, the logits, or the tangents of a cap, float32 [rows, classes]; in PSUM or in SBUF.
            place: of the tile.
        """

    def make_tile(
        self, number: int, dst_sbuf: nl.NkiTensor, opened: list[nl.NkiTensor], place: TilePlace
    ) -> LastProduct | None:
        """Write tile ``number``, but for what is returned.

        Args:
            dst_sbuf: [rows, classes], of the type of the products.
            opened: what :meth:`open` has returned; overwritten.
            place: of the tile.
        """


def multiply_tiles(dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, others_sbuf: nl.NkiTensor) -> None:
    """The product of two tiles of float32 in SBUF: Vector is modelled to take twice as long for ``tensor_tensor``."""
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=1.0, op1=nl.multiply, operand1=others_sbuf
    )


def multiply_on_gpsimd(dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, others_sbuf: nl.NkiTensor) -> None:
    """Likewise on GpSimd, which is half as fast."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=values_sbuf, data2=others_sbuf, op=nl.multiply, engine=nisa.engine.gpsimd)
