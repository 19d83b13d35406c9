"""Where the losses of a core go, piece by piece: they are stored, or summed."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.rings import ring_of
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.kind import Kind, Prepared
from nkilib.experimental.loss.elementwise.launch import Launch
from nkilib.experimental.loss.elementwise.results import SumsOfLosses, TileOfLosses
from nkilib.experimental.loss.elementwise.sizes import SUM_TURNS, SUMS_OF_RUN
from nkilib.experimental.loss.elementwise.stream import PlacedPiece
from nkilib.nki import nisa, nl


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
