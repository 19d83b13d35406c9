# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of the rows of a core, stored or summed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.overlap import run_overlapped
from nkilib.core.rows.rings import ring_of
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.definition import Factors, RowLossDefinition
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowGroup, RowLaunch
from nkilib.experimental.loss.skeletons.rowwise.host.tiling import RUN_SLOTS
from nkilib.experimental.loss.skeletons.rowwise.piece import runs_of
from nkilib.experimental.loss.skeletons.rowwise.stream import PlacedPiece, RowStream, loaded_rows, store_rows
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class RowOutputs:
    """The result tensors of the forward.

    Attributes:
        loss_hbm: the losses, [N] of any floating type; or their sum, [1], float32.
        factor: the factor by which the sum is multiplied; None means that the losses are stored, not summed.
        coefficients_hbm: the K coefficients of each row, float32 [K, N]; None means that they are not
            requested.
    """

    loss_hbm: nl.NkiTensor
    factor: float | None
    coefficients_hbm: nl.NkiTensor | None


def forward_of_core(launch: RowLaunch, definition: RowLossDefinition[Factors], outputs: RowOutputs) -> None:
    """Compute the losses of this core's rows and store them or their sum, and store the coefficients if requested."""
    groups = launch.groups()
    sums = None if outputs.factor is None else PartialSums.make(len(launch.tiles()))
    if groups:
        _Forward.make(launch, definition, outputs, sums, groups).run(groups)
    if sums is not None and outputs.factor is not None:
        sums.store(outputs.loss_hbm, outputs.factor)


@dataclass
class _Forward(Generic[Factors]):
    """The loop of the forward over the chunks of a core, and its state.

    Attributes:
        launch, definition, outputs, sums: the launch, its loss definition, its results, and the sums of losses.
        runs_sbuf: for each statistic, ring buffers [128, runs of a row] for the values of runs of long rows.
        statistics_sbuf: by the start of a group, its statistics, [partitions, rows] each.
        runs: the number of runs processed so far in the current tile.
        open: the last piece of a tile of long rows whose runs are not combined yet, because Vector would wait
            for them.
    """

    launch: RowLaunch
    definition: RowLossDefinition[Factors]
    outputs: RowOutputs
    sums: PartialSums | None
    runs_sbuf: list[list[nl.NkiTensor]]
    statistics_sbuf: dict[int, list[nl.NkiTensor]] = field(default_factory=dict)
    runs: int = 0
    open: PlacedPiece | None = None

    @classmethod
    def make(
        cls,
        launch: RowLaunch,
        definition: RowLossDefinition[Factors],
        outputs: RowOutputs,
        sums: PartialSums | None,
        groups: list[RowGroup],
    ) -> _Forward[Factors]:
        """Allocate the buffers of a launch."""
        tiling = launch.tiling
        chunks, left = divmod(launch.columns, tiling.columns)
        runs = chunks * _runs_of_chunk(tiling.columns, tiling.piece_width) + _runs_of_chunk(left, tiling.piece_width)
        rings = [ring_of(RUN_SLOTS, runs, nl.float32) for _ in definition.statistics]
        return cls(launch, definition, outputs, sums, rings)

    def run(self, groups: list[RowGroup]) -> None:
        """Process all chunks. The first steps of a piece are issued before the previous piece is finished."""
        stream = RowStream.make(
            self.launch, dict(enumerate(self.launch.matrices_hbm)), groups, self.definition.forward_tiles
        )
        run_overlapped(stream, self)
        self._close()

    def begin(self, placed: PlacedPiece) -> Prepared:
        """Issue the first steps of a piece's statistics."""
        return self.definition.prepare(placed.piece)

    def finish(self, placed: PlacedPiece, begun: Prepared) -> None:
        """Compute the statistics of a piece.

        If its rows end, their runs are combined after the next piece.
        """
        self.definition.accumulate(replace(placed.piece, numbers_sbuf=self._numbers(placed)), begun)
        self._close()
        if placed.ends_row:
            self.open = placed
            self.runs = 0

    def _numbers(self, placed: PlacedPiece) -> list[nl.NkiTensor]:
        """Return, for each statistic, the tile into which its values for a piece are written."""
        piece, group = placed.piece, placed.chunk.group
        statistics_sbuf = self._statistics(group)
        if not piece.is_long:
            return [piece.of_rows(statistic_sbuf) for statistic_sbuf in statistics_sbuf]
        start, self.runs = self.runs, self.runs + runs_of(piece.shape[1])
        return [ring[:, start : self.runs] for ring in self._runs(placed)]

    def _runs(self, placed: PlacedPiece) -> list[nl.NkiTensor]:
        """Return, for each statistic, the values of all runs of the tile that a piece belongs to."""
        group = placed.chunk.group
        slot = (group.start + placed.chunk.place) % RUN_SLOTS
        return [ring[slot][0 : group.partitions, :] for ring in self.runs_sbuf]

    def _statistics(self, group: RowGroup) -> list[nl.NkiTensor]:
        if group.start not in self.statistics_sbuf:
            shape = (group.partitions, group.rows)
            self.statistics_sbuf[group.start] = [
                nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in self.definition.statistics
            ]
        return self.statistics_sbuf[group.start]

    def _close(self) -> None:
        """Combine the runs of the tile of :attr:`open` into statistics; after the last tile of a group, compute its
        results.
        """
        if self.open is None:
            return
        placed, self.open = self.open, None
        group = placed.chunk.group
        if placed.piece.is_long:
            self._put_together(placed)
        if placed.chunk.place == len(group.tiles) - 1:
            self._finish(group)

    def _put_together(self, placed: PlacedPiece) -> None:
        group, row = placed.chunk.group, placed.piece.row
        runs = self._runs(placed)
        results = [statistic_sbuf[:, row : row + 1] for statistic_sbuf in self._statistics(group)]
        for number, statistic in enumerate(self.definition.statistics):
            statistic.of_runs(results[number], runs[: number + 1], results[:number])

    def _finish(self, group: RowGroup) -> None:
        """Compute the losses and coefficients of a group, and store them; losses that are summed go to ``sums``."""
        vectors = [loaded_rows(vector_hbm, group) for vector_hbm in self.launch.vectors_hbm]
        results = self.definition.results(self.statistics_sbuf.pop(group.start), vectors)
        if self.outputs.coefficients_hbm is not None:
            for number, coefficient_sbuf in enumerate(results.coefficients_sbuf):
                store_rows(self.outputs.coefficients_hbm[number, :], coefficient_sbuf, group)
        if self.sums is None:
            store_rows(self.outputs.loss_hbm, results.losses_sbuf, group)
            return
        shape = (group.partitions, len(group.tiles), group.tiles[0].each)
        first, last = group.tiles[0].number, group.tiles[-1].number
        parts_sbuf = self.sums.sums_sbuf[0 : group.partitions, first : last + 1 : group.cores]
        nisa.tensor_reduce(dst=parts_sbuf, op=nl.add, data=results.losses_sbuf.reshape(shape), axis=2)


def _runs_of_chunk(columns: int, piece_width: int) -> int:
    pieces, left = divmod(columns, piece_width)
    return pieces * runs_of(piece_width) + runs_of(left)
