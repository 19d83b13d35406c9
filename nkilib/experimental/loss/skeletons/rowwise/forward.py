# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of a core, stored or summed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.overlap import run_overlapped
from nkilib.core.rows.rings import ring_of
from nkilib.experimental.loss.skeletons.elementwise.kind import Prepared
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowGroup, RowLaunch
from nkilib.experimental.loss.skeletons.rowwise.host.tiling import RUN_TURNS
from nkilib.experimental.loss.skeletons.rowwise.kind import Factors, RowKind
from nkilib.experimental.loss.skeletons.rowwise.piece import runs_of
from nkilib.experimental.loss.skeletons.rowwise.stream import PlacedPiece, RowStream, loaded_rows, store_rows
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class RowOutputs:
    """Where results go.

    Attributes:
        loss_hbm: [N] of any floating type; or [1], float32, of the sum.
        factor: of the sum; None: the losses are stored.
        coefficients_hbm: float32 [K, N]; None: they are not asked for.
    """

    loss_hbm: nl.NkiTensor
    factor: float | None
    coefficients_hbm: nl.NkiTensor | None


def forward_of_core(launch: RowLaunch, kind: RowKind[Factors], outputs: RowOutputs) -> None:
    """Store the losses, or their sum, and coefficients."""
    groups = launch.groups()
    sums = None if outputs.factor is None else PartialSums.make(len(launch.tiles()))
    if groups:
        _Forward.make(launch, kind, outputs, sums, groups).run(groups)
    if sums is not None and outputs.factor is not None:
        sums.store(outputs.loss_hbm, outputs.factor)


@dataclass
class _Forward(Generic[Factors]):
    """The loop of a core.

    Attributes:
        launch, kind, outputs, sums: of the launch.
        runs_sbuf: by statistic, tiles [128, runs of a row] that long rows take in turn.
        statistics_sbuf: of the group that is summed up, [partitions, rows] each.
        runs: of the tile that is summed up, so far.
        open: the last piece of a tile of long rows whose runs are not put together: Vector would wait for them.
    """

    launch: RowLaunch
    kind: RowKind[Factors]
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
        kind: RowKind[Factors],
        outputs: RowOutputs,
        sums: PartialSums | None,
        groups: list[RowGroup],
    ) -> _Forward[Factors]:
        """Of a launch."""
        tiling = launch.tiling
        chunks, left = divmod(launch.columns, tiling.columns)
        runs = chunks * _runs_of_chunk(tiling.columns, tiling.piece_width) + _runs_of_chunk(left, tiling.piece_width)
        rings = [ring_of(RUN_TURNS, runs, nl.float32) for _ in kind.statistics]
        return cls(launch, kind, outputs, sums, rings)

    def run(self, groups: list[RowGroup]) -> None:
        """All chunks. What is prepared of a piece is issued before the piece before it is finished."""
        stream = RowStream.make(self.launch, dict(enumerate(self.launch.matrices_hbm)), groups, self.kind.forward_tiles)
        run_overlapped(stream, self)
        self._close()

    def begin(self, placed: PlacedPiece) -> Prepared:
        """What the statistics of a piece begin with."""
        return self.kind.prepare(placed.piece)

    def finish(self, placed: PlacedPiece, begun: Prepared) -> None:
        """The statistics of a piece; where its rows end, they are put together after the next piece."""
        self.kind.accumulate(replace(placed.piece, numbers_sbuf=self._numbers(placed)), begun)
        self._close()
        if placed.ends_row:
            self.open = placed
            self.runs = 0

    def _numbers(self, placed: PlacedPiece) -> list[nl.NkiTensor]:
        """Where the statistics of a piece go."""
        piece, group = placed.piece, placed.chunk.group
        statistics_sbuf = self._statistics(group)
        if not piece.is_long:
            return [piece.of_rows(each) for each in statistics_sbuf]
        start, self.runs = self.runs, self.runs + runs_of(piece.shape[1])
        return [ring[:, start : self.runs] for ring in self._runs(placed)]

    def _runs(self, placed: PlacedPiece) -> list[nl.NkiTensor]:
        """Those of the tile of a piece, by statistic."""
        group = placed.chunk.group
        turn = (group.start + placed.chunk.place) % RUN_TURNS
        return [ring[turn][0 : group.partitions, :] for ring in self.runs_sbuf]

    def _statistics(self, group: RowGroup) -> list[nl.NkiTensor]:
        if group.start not in self.statistics_sbuf:
            shape = (group.partitions, group.rows)
            self.statistics_sbuf[group.start] = [
                nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in self.kind.statistics
            ]
        return self.statistics_sbuf[group.start]

    def _close(self) -> None:
        """Put the statistics of the open tile together; with the last tile of a group, its results."""
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
        made = [each[:, row : row + 1] for each in self._statistics(group)]
        for number, statistic in enumerate(self.kind.statistics):
            statistic.of_runs(made[number], runs[: number + 1], made[:number])

    def _finish(self, group: RowGroup) -> None:
        """Losses and coefficients of a group."""
        vectors = [loaded_rows(each, group) for each in self.launch.vectors_hbm]
        results = self.kind.results(self.statistics_sbuf.pop(group.start), vectors)
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
