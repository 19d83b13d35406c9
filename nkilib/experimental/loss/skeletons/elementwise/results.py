# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The destinations of the losses of an elementwise loss, stored or summed, and the product of a loss with a weight.

A *piece* is the part of a tile that is processed at a time; a *run* is a range of columns of a piece, over which an
accumulator adds up the losses before it is read. There are two destinations for the losses of a core, between which
:func:`destination_of` chooses:

- :class:`StoredLosses` stores each loss; the losses of a piece go to a :class:`TileOfLosses`;
- :class:`SummedLosses` stores the sum; the losses of a piece go to :class:`SumsOfLosses`.

:class:`Weighted` is the definition of a loss times a weight for each element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nkilib.core.arithmetic import product, total
from nkilib.core.cores import PartialSums
from nkilib.core.hardware import div_ceil
from nkilib.core.rows.sbuf import ring_of
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    WEIGHT,
    Activation,
    Combination,
    Derivative,
    LossDefinition,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.stream import Launch, PlacedPiece
from nkilib.experimental.loss.skeletons.elementwise.tiling import SUM_SLOTS, SUMS_OF_RUN
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


def _activated(activation: Activation) -> nl.NkiTensor:
    """Issue the activation, and return the tile with the result."""
    nisa.activation(
        dst=activation.dst_sbuf,
        op=activation.op,
        data=activation.data_sbuf,
        scale=activation.scale,
        bias=activation.bias_sbuf,
    )
    return activation.dst_sbuf


def _written_over(combination: Combination) -> nl.NkiTensor:
    """Issue the combination, which overwrites its ``operand1``, and return this tile."""
    nisa.scalar_tensor_tensor(
        dst=combination.operand1,
        data=combination.data_sbuf,
        op0=combination.op0,
        operand0=combination.operand0,
        op1=combination.op1,
        operand1=combination.operand1,
    )
    return combination.operand1


@dataclass(frozen=True)
class TileOfLosses:
    """The destination (:class:`.definition.Losses`) that writes the losses of a piece to a tile.

    Attributes:
        dst_sbuf: the tile, [rows, columns], of any floating type.
    """

    dst_sbuf: nl.NkiTensor
    are_kept: ClassVar[bool] = True

    def activation(
        self, op: Operator, data_sbuf: nl.NkiTensor, scale: float = 1.0, bias_sbuf: nl.NkiTensor | None = None
    ) -> None:
        nisa.activation(dst=self.dst_sbuf, op=op, data=data_sbuf, scale=scale, bias=bias_sbuf)

    def activations(self, *activations: Activation) -> None:
        terms_sbuf = [_activated(activation) for activation in activations]
        first_sbuf, *others_sbuf, last_sbuf = terms_sbuf
        for other_sbuf in others_sbuf:
            total(first_sbuf, first_sbuf, other_sbuf)
        total(self.dst_sbuf, first_sbuf, last_sbuf)

    def activation_and_combination(self, activation: Activation, combination: Combination) -> None:
        total(self.dst_sbuf, _activated(activation), _written_over(combination))

    def two_combinations(self, first: Combination, second: Combination) -> None:
        total(self.dst_sbuf, _written_over(first), _written_over(second))

    def scalar_tensor_tensor(
        self, data_sbuf: nl.NkiTensor, op0: Operator, operand0: float, op1: Operator, operand1: nl.NkiTensor
    ) -> None:
        nisa.scalar_tensor_tensor(
            dst=self.dst_sbuf, data=data_sbuf, op0=op0, operand0=operand0, op1=op1, operand1=operand1
        )

    def product(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        product(self.dst_sbuf, left_sbuf, right_sbuf)


@dataclass(frozen=True)
class _Run:
    """A run of a piece.

    Attributes:
        start, end: the range [start, end) of columns in the piece.
        sum_sbuf: the sum of the run, float32 [rows, 1].
        discarded_sbuf: a tile that takes the losses themselves, which nothing reads, [rows, end - start].
    """

    start: int
    end: int
    sum_sbuf: nl.NkiTensor
    discarded_sbuf: nl.NkiTensor

    def of(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        return tile_sbuf[:, self.start : self.end]


@dataclass(frozen=True)
class SumsOfLosses:
    """The destination (:class:`.definition.Losses`) that adds up the losses of a piece, run by run.

    Attributes:
        sums_sbuf: two sums for each run (``SUMS_OF_RUN``), side by side, float32 [rows, 2 * runs]: where a loss is the
            sum of two terms, each term has a sum of its own.
        run_columns: the number of columns of a run.
        discarded_sbuf: a tile that takes the losses themselves, which nothing reads, float32 [rows, run_columns].
        discarded_by_vector_sbuf: a tile like ``discarded_sbuf`` for the terms of the second sums.
    """

    sums_sbuf: nl.NkiTensor
    run_columns: int
    discarded_sbuf: nl.NkiTensor
    discarded_by_vector_sbuf: nl.NkiTensor
    are_kept: ClassVar[bool] = False

    def activation(
        self, op: Operator, data_sbuf: nl.NkiTensor, scale: float = 1.0, bias_sbuf: nl.NkiTensor | None = None
    ) -> None:
        self.activations(Activation(op, data_sbuf, scale, bias_sbuf=bias_sbuf))

    def activations(self, *activations: Activation) -> None:
        for run in self._runs(activations[0].data_sbuf):
            for number, activation in enumerate(activations):
                nisa.activation(
                    dst=run.discarded_sbuf,
                    op=activation.op,
                    data=run.of(activation.data_sbuf),
                    scale=activation.scale,
                    bias=activation.bias_sbuf,
                    reduce_op=nl.add,
                    reduce_res=run.sum_sbuf,
                    reduce_cmd=nisa.reduce_cmd.reduce if number else nisa.reduce_cmd.reset_reduce,
                )

    def scalar_tensor_tensor(
        self, data_sbuf: nl.NkiTensor, op0: Operator, operand0: float, op1: Operator, operand1: nl.NkiTensor
    ) -> None:
        for run in self._runs(data_sbuf):
            nisa.scalar_tensor_tensor(
                dst=run.discarded_sbuf,
                data=run.of(data_sbuf),
                op0=op0,
                operand0=operand0,
                op1=op1,
                operand1=run.of(operand1),
                reduce_op=nl.add,
                reduce_res=run.sum_sbuf,
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def activation_and_combination(self, activation: Activation, combination: Combination) -> None:
        self.activations(activation)
        self._add_on_vector(combination)

    def two_combinations(self, first: Combination, second: Combination) -> None:
        self.scalar_tensor_tensor(first.data_sbuf, first.op0, first.operand0, first.op1, first.operand1)
        self._add_on_vector(second)

    def product(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        self.scalar_tensor_tensor(left_sbuf, nl.multiply, 1.0, nl.multiply, right_sbuf)

    def _add_on_vector(self, combination: Combination) -> None:
        """Add up the results of a combination over each run, in the run's second sum, on Vector."""
        discarded_sbuf = self.discarded_by_vector_sbuf
        second = SumsOfLosses(self.sums_sbuf[:, 1:], self.run_columns, discarded_sbuf, discarded_sbuf)
        second.scalar_tensor_tensor(
            combination.data_sbuf, combination.op0, combination.operand0, combination.op1, combination.operand1
        )

    def _runs(self, data_sbuf: nl.NkiTensor) -> Iterator[_Run]:
        columns = data_sbuf.shape[1]
        for number, start in enumerate(range(0, columns, self.run_columns)):
            end = min(start + self.run_columns, columns)
            column = SUMS_OF_RUN * number
            yield _Run(start, end, self.sums_sbuf[:, column : column + 1], self.discarded_sbuf[:, 0 : end - start])


@dataclass(frozen=True)
class StoredLosses:
    """The destination that stores the losses of a core.

    Attributes:
        loss_hbm: the losses, [elements].
        buffers_sbuf: buffer slots [128, columns of a tile] for tiles of losses.
    """

    loss_hbm: nl.NkiTensor
    buffers_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, loss_hbm: nl.NkiTensor, launch: Launch) -> StoredLosses:
        """Allocate the buffers."""
        return cls(loss_hbm, ring_of(launch.tiling.buffers, launch.tiling.columns, loss_hbm.dtype))

    def take(self, placed: PlacedPiece, definition: LossDefinition, prepared: Prepared) -> None:
        """Compute the losses of a piece; after the last piece of a tile, store the tile."""
        tile = placed.tile
        losses_sbuf = self.buffers_sbuf[placed.visit % len(self.buffers_sbuf)][0 : tile.rows, 0 : tile.columns]
        definition.value(placed.piece, prepared, TileOfLosses(losses_sbuf[:, placed.start : placed.end]))
        if placed.is_last:
            nisa.dma_copy(dst=tile.of(self.loss_hbm), src=losses_sbuf)

    def finish(self) -> None:
        """Do nothing: no work is left after :meth:`take`."""

    def store(self) -> None:
        """Do nothing: :meth:`take` has stored all losses."""


@dataclass
class SummedLosses:
    """The destination that sums the losses: over each run, then over the runs of a tile, then over all tiles of all
    cores.

    Attributes:
        loss_hbm: the tensor for the sum, float32 [1, 1].
        factor: the factor by which the sum is multiplied.
        sums: the sums of the tiles.
        runs_sbuf: buffer slots, one per tile, for the sums of runs: float32 [128, 2 * runs of a tile].
        run_columns: the number of columns of a run.
        discarded_sbuf: two float32 tiles [128, run_columns] for losses that nothing reads (:class:`SumsOfLosses`).
        open: the last piece of the latest tile, while the tile's runs are not added up yet; else None.
    """

    loss_hbm: nl.NkiTensor
    factor: float
    sums: PartialSums
    runs_sbuf: list[nl.NkiTensor]
    run_columns: int
    discarded_sbuf: list[nl.NkiTensor]
    open: PlacedPiece | None = None

    @classmethod
    def make(cls, loss_hbm: nl.NkiTensor, factor: float, tiles: int, launch: Launch) -> SummedLosses:
        """Allocate the buffers.

        Args:
            loss_hbm, factor: the attributes of the class.
            tiles: the number of tiles of all cores.
            launch: the launch.
        """
        run = launch.run_columns
        runs_sbuf = ring_of(SUM_SLOTS, SUMS_OF_RUN * div_ceil(launch.tiling.columns, run), nl.float32)
        discarded_sbuf = ring_of(SUMS_OF_RUN, run, nl.float32)
        return cls(loss_hbm, factor, PartialSums.make(tiles), runs_sbuf, run, discarded_sbuf)

    def take(self, placed: PlacedPiece, definition: LossDefinition, prepared: Prepared) -> None:
        """Compute the losses of a piece and sum them over its runs; then add up the runs of the previous tile, if it is
        still :attr:`open`.
        """
        runs_sbuf, rows = self._runs(placed), placed.tile.rows
        if placed.start == 0:
            nisa.memset(dst=runs_sbuf, value=0.0)
        sums_sbuf = runs_sbuf[:, SUMS_OF_RUN * placed.start // self.run_columns :]
        by_scalar_sbuf, by_vector_sbuf = (tile_sbuf[0:rows, :] for tile_sbuf in self.discarded_sbuf)
        definition.value(
            placed.piece, prepared, SumsOfLosses(sums_sbuf, self.run_columns, by_scalar_sbuf, by_vector_sbuf)
        )
        if self.open is not None and self.open.visit != placed.visit:
            self.finish()
        if placed.is_last:
            if self.open is not None:
                self.finish()
            self.open = placed

    def finish(self) -> None:
        """Add up the runs of the tile that is :attr:`open`, if there is one, into the sum of this tile."""
        if self.open is None:
            return
        tile = self.open.tile
        nisa.tensor_reduce(dst=self.sums.of_part(tile.number, tile.rows), op=nl.add, data=self._runs(self.open), axis=1)
        self.open = None

    def store(self) -> None:
        """Store the sum of all tiles of all cores, times the factor; the first core stores it."""
        self.sums.store(self.loss_hbm, self.factor)

    def _runs(self, placed: PlacedPiece) -> nl.NkiTensor:
        runs = SUMS_OF_RUN * div_ceil(placed.tile.columns, self.run_columns)
        return self.runs_sbuf[placed.visit % len(self.runs_sbuf)][0 : placed.tile.rows, 0:runs]


def destination_of(
    launch: Launch, loss_hbm: nl.NkiTensor, factor: float | None, tiles: int
) -> StoredLosses | SummedLosses:
    """Return the destination of the losses of a launch.

    Args:
        launch: the tensors and the tiling of the launch.
        loss_hbm: the tensor for the losses, of the shape of the launch; or for their sum or mean, float32 [1].
        factor: the factor by which the sum is multiplied; None if each loss is stored.
        tiles: the number of tiles of all cores.
    """
    if factor is None:
        return StoredLosses.make(loss_hbm.reshape((launch.elements,)), launch)
    return SummedLosses.make(loss_hbm.reshape((1, 1)), factor, tiles, launch)


@dataclass(frozen=True)
class Weighted:
    """The definition of a loss times the tensor ``"weight"``.

    Attributes:
        definition: the loss definition without a weight.
        has_gradient: whether the gradient of the weight is requested.
    """

    definition: LossDefinition
    has_gradient: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors of the loss, followed by ``"weight"``."""
        return (*self.definition.tensors, WEIGHT)

    @property
    def scratch_tiles(self) -> int:
        """The maximum number of float32 scratch tiles that a piece takes.

        These are the tiles of :attr:`definition`, and two for weighted derivatives (the forward needs only one more,
        for losses without the weight). If the gradient of the weight is requested, the backward also computes the
        losses, which takes the tiles of :attr:`definition` once more, and one tile for the result.
        """
        return 2 * self.definition.scratch_tiles + 3 if self.has_gradient else self.definition.scratch_tiles + 2

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that :meth:`derivative` with these ``wanted`` names reads."""
        others = tuple(name for name in wanted if name != WEIGHT)
        names = self.definition.needed(others) if others else ()
        if WEIGHT in wanted:
            names += tuple(name for name in self.definition.tensors if name not in names)
        return (*names, WEIGHT) if others else names

    def prepare(self, piece: Piece) -> Prepared:
        """Issue the first steps of the loss without the weight."""
        return self.definition.prepare(piece)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses times the weight."""
        unweighted_sbuf = piece.float32()
        self.definition.value(piece, prepared, TileOfLosses(unweighted_sbuf))
        losses.product(unweighted_sbuf, piece[WEIGHT])

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return each derivative times the weight, and the losses as the derivative with respect to the weight."""
        others = tuple(name for name in wanted if name != WEIGHT)
        derivatives = {}
        if others:
            for name, derivative in self.definition.derivative(piece, others).items():
                weighted_sbuf = piece.float32()
                product(weighted_sbuf, derivative.product_sbuf(), piece[WEIGHT])
                derivatives[name] = Derivative(weighted_sbuf, derivative.factor, on_scalar=True)
        if WEIGHT in wanted:
            loss_sbuf = piece.float32()
            self.definition.value(piece, self.definition.prepare(piece), TileOfLosses(loss_sbuf))
            derivatives[WEIGHT] = Derivative(loss_sbuf)
        return derivatives


def weighted(definition: LossDefinition, weight_hbm: nl.NkiTensor | None, has_gradient: bool = False) -> LossDefinition:
    """Return ``definition`` if ``weight_hbm`` is None, else the definition of the loss times the weight.

    Args:
        definition: the loss definition without a weight.
        weight_hbm: the weight, or None.
        has_gradient: whether the gradient of the weight is requested.
    """
    return definition if weight_hbm is None else Weighted(definition, has_gradient)
