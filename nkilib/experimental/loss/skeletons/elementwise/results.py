# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where the losses of a piece go, into a tile or into sums of runs of it, and those of a core: stored, or summed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.arithmetic import product, total
from nkilib.core.rows.rings import ring_of
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.elementwise.kind import Activation, Combination, Kind, Prepared
from nkilib.experimental.loss.skeletons.elementwise.stream import Launch, PlacedPiece
from nkilib.experimental.loss.skeletons.elementwise.tiling import SUM_TURNS, SUMS_OF_RUN
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


@dataclass(frozen=True)
class TileOfLosses:
    """Losses that are kept.

    Attributes:
        dst_sbuf: [rows, columns] of the piece, of any floating type.
    """

    dst_sbuf: nl.NkiTensor
    are_kept: ClassVar[bool] = True

    def activation(
        self, op: Operator, data_sbuf: nl.NkiTensor, scale: float = 1.0, bias_sbuf: nl.NkiTensor | None = None
    ) -> None:
        """As :class:`.kind.Losses` has it."""
        nisa.activation(dst=self.dst_sbuf, op=op, data=data_sbuf, scale=scale, bias=bias_sbuf)

    def activations(self, *each: Activation) -> None:
        """As :class:`.kind.Losses` has it."""
        terms_sbuf = [_activated(one) for one in each]
        first_sbuf, *others_sbuf, last_sbuf = terms_sbuf
        for other_sbuf in others_sbuf:
            total(first_sbuf, first_sbuf, other_sbuf)
        total(self.dst_sbuf, first_sbuf, last_sbuf)

    def activation_and_combination(self, activation: Activation, combination: Combination) -> None:
        """As :class:`.kind.Losses` has it."""
        total(self.dst_sbuf, _activated(activation), _written_over(combination))

    def two_combinations(self, first: Combination, second: Combination) -> None:
        """As :class:`.kind.Losses` has it."""
        total(self.dst_sbuf, _written_over(first), _written_over(second))

    def scalar_tensor_tensor(
        self, data_sbuf: nl.NkiTensor, op0: Operator, operand0: float, op1: Operator, operand1: nl.NkiTensor
    ) -> None:
        """As :class:`.kind.Losses` has it."""
        nisa.scalar_tensor_tensor(
            dst=self.dst_sbuf, data=data_sbuf, op0=op0, operand0=operand0, op1=op1, operand1=operand1
        )

    def product(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        """As :class:`.kind.Losses` has it."""
        product(self.dst_sbuf, left_sbuf, right_sbuf)


@dataclass(frozen=True)
class SumsOfLosses:
    """Losses that are summed up, run by run; they themselves are written over and over.

    Attributes:
        sums_sbuf: float32 [rows, SUMS_OF_RUN * runs] of zeros, whose columns take the sums of the runs.
        run_columns: of a run.
        discarded_sbuf: float32 [rows, run_columns] for the losses themselves.
        discarded_by_vector_sbuf: the same for what Vector adds while Scalar adds the rest.
    """

    sums_sbuf: nl.NkiTensor
    run_columns: int
    discarded_sbuf: nl.NkiTensor
    discarded_by_vector_sbuf: nl.NkiTensor
    are_kept: ClassVar[bool] = False

    def activation(
        self, op: Operator, data_sbuf: nl.NkiTensor, scale: float = 1.0, bias_sbuf: nl.NkiTensor | None = None
    ) -> None:
        """As :class:`.kind.Losses` has it."""
        self.activations(Activation(op, data_sbuf, scale, bias_sbuf=bias_sbuf))

    def activations(self, *each: Activation) -> None:
        """As :class:`.kind.Losses` has it: of a run, each is added to what the accumulator has of those before."""
        for run in self._runs(each[0].data_sbuf):
            for number, one in enumerate(each):
                nisa.activation(
                    dst=run.discarded_sbuf,
                    op=one.op,
                    data=run.of(one.data_sbuf),
                    scale=one.scale,
                    bias=one.bias_sbuf,
                    reduce_op=nl.add,
                    reduce_res=run.sum_sbuf,
                    reduce_cmd=nisa.reduce_cmd.reduce if number else nisa.reduce_cmd.reset_reduce,
                )

    def scalar_tensor_tensor(
        self, data_sbuf: nl.NkiTensor, op0: Operator, operand0: float, op1: Operator, operand1: nl.NkiTensor
    ) -> None:
        """As :class:`.kind.Losses` has it."""
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
        """As :class:`.kind.Losses` has it."""
        self.activations(activation)
        self._add_on_vector(combination)

    def two_combinations(self, first: Combination, second: Combination) -> None:
        """As :class:`.kind.Losses` has it."""
        self.scalar_tensor_tensor(first.data_sbuf, first.op0, first.operand0, first.op1, first.operand1)
        self._add_on_vector(second)

    def product(self, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
        """As :class:`.kind.Losses` has it."""
        self.scalar_tensor_tensor(left_sbuf, nl.multiply, 1.0, nl.multiply, right_sbuf)

    def _add_on_vector(self, each: Combination) -> None:
        """To the second sum of each run."""
        discarded_sbuf = self.discarded_by_vector_sbuf
        second = SumsOfLosses(self.sums_sbuf[:, 1:], self.run_columns, discarded_sbuf, discarded_sbuf)
        second.scalar_tensor_tensor(each.data_sbuf, each.op0, each.operand0, each.op1, each.operand1)

    def _runs(self, data_sbuf: nl.NkiTensor) -> Iterator[_Run]:
        columns = data_sbuf.shape[1]
        for number, start in enumerate(range(0, columns, self.run_columns)):
            end = min(start + self.run_columns, columns)
            column = SUMS_OF_RUN * number
            yield _Run(start, end, self.sums_sbuf[:, column : column + 1], self.discarded_sbuf[:, 0 : end - start])


def _activated(each: Activation) -> nl.NkiTensor:
    """The activation, written where it says."""
    nisa.activation(dst=each.dst_sbuf, op=each.op, data=each.data_sbuf, scale=each.scale, bias=each.bias_sbuf)
    return each.dst_sbuf


def _written_over(each: Combination) -> nl.NkiTensor:
    """The combination, written over its second tile."""
    nisa.scalar_tensor_tensor(
        dst=each.operand1,
        data=each.data_sbuf,
        op0=each.op0,
        operand0=each.operand0,
        op1=each.op1,
        operand1=each.operand1,
    )
    return each.operand1


@dataclass(frozen=True)
class _Run:
    """Columns of a piece that an accumulator adds up.

    Attributes:
        start, end: of the piece.
        sum_sbuf: [rows, 1].
        discarded_sbuf: [rows, end - start].
    """

    start: int
    end: int
    sum_sbuf: nl.NkiTensor
    discarded_sbuf: nl.NkiTensor

    def of(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """These columns of a tile."""
        return tile_sbuf[:, self.start : self.end]


def sink_of(launch: Launch, loss_hbm: nl.NkiTensor, factor: float | None, tiles: int) -> StoredLosses | SummedLosses:
    """Of a launch.

    Args:
        launch: tensors and tiling.
        loss_hbm: of the shape of the tensors; or [1], float32.
        factor: of the sum; None: the losses are stored.
        tiles: of all cores.
    """
    if factor is None:
        return StoredLosses.make(loss_hbm.reshape((launch.elements,)), launch)
    return SummedLosses.make(loss_hbm.reshape((1, 1)), factor, tiles, launch)


@dataclass(frozen=True)
class StoredLosses:
    """Losses that are stored.

    Attributes:
        loss_hbm: [elements].
        buffers_sbuf: tiles that the tiles of losses take in turn.
    """

    loss_hbm: nl.NkiTensor
    buffers_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, loss_hbm: nl.NkiTensor, launch: Launch) -> StoredLosses:
        """Of a launch."""
        return cls(loss_hbm, ring_of(launch.tiling.buffers, launch.tiling.columns, loss_hbm.dtype))

    def take(self, placed: PlacedPiece, kind: Kind, prepared: Prepared) -> None:
        """The losses of a piece; the last one of a tile stores them all."""
        tile = placed.tile
        losses_sbuf = self.buffers_sbuf[placed.visit % len(self.buffers_sbuf)][0 : tile.rows, 0 : tile.columns]
        kind.value(placed.piece, prepared, TileOfLosses(losses_sbuf[:, placed.start : placed.end]))
        if placed.is_last:
            nisa.dma_copy(dst=tile.of(self.loss_hbm), src=losses_sbuf)

    def finish(self) -> None:
        """Nothing is left."""

    def store(self) -> None:
        """All are stored."""


@dataclass
class SummedLosses:
    """Losses that are summed up: of runs of a tile, of the runs, and of all tiles of all cores.

    Attributes:
        loss_hbm: [1, 1], float32.
        factor: of the sum.
        sums: of the tiles.
        runs_sbuf: sums of runs, float32 [128, SUMS_OF_RUN * runs], which tiles take in turn.
        run_columns: of a run.
        discarded_sbuf: float32 [128, run_columns], what instructions write beside a sum; one for each sum of a run.
        open: a tile whose runs are summed and not added, and its visit: Vector would wait for the last run.
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
        """Of a launch."""
        run = launch.run_columns
        runs_sbuf = ring_of(SUM_TURNS, SUMS_OF_RUN * div_ceil(launch.tiling.columns, run), nl.float32)
        discarded_sbuf = ring_of(SUMS_OF_RUN, run, nl.float32)
        return cls(loss_hbm, factor, PartialSums.make(tiles), runs_sbuf, run, discarded_sbuf)

    def take(self, placed: PlacedPiece, kind: Kind, prepared: Prepared) -> None:
        """The losses of a piece."""
        runs_sbuf, rows = self._runs(placed), placed.tile.rows
        if placed.start == 0:
            nisa.memset(dst=runs_sbuf, value=0.0)
        sums_sbuf = runs_sbuf[:, SUMS_OF_RUN * placed.start // self.run_columns :]
        by_scalar_sbuf, by_vector_sbuf = (each[0:rows, :] for each in self.discarded_sbuf)
        kind.value(placed.piece, prepared, SumsOfLosses(sums_sbuf, self.run_columns, by_scalar_sbuf, by_vector_sbuf))
        if self.open is not None and self.open.visit != placed.visit:
            self.finish()
        if placed.is_last:
            if self.open is not None:
                self.finish()
            self.open = placed

    def finish(self) -> None:
        """Add the runs of the open tile."""
        if self.open is None:
            return
        tile = self.open.tile
        nisa.tensor_reduce(dst=self.sums.of_part(tile.number, tile.rows), op=nl.add, data=self._runs(self.open), axis=1)
        self.open = None

    def store(self) -> None:
        """The sum of all tiles times the factor; the first core stores it."""
        self.sums.store(self.loss_hbm, self.factor)

    def _runs(self, placed: PlacedPiece) -> nl.NkiTensor:
        runs = SUMS_OF_RUN * div_ceil(placed.tile.columns, self.run_columns)
        return self.runs_sbuf[placed.visit % len(self.runs_sbuf)][0 : placed.tile.rows, 0:runs]
