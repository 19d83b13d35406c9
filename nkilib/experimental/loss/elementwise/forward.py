"""The losses of a core."""

from __future__ import annotations

from nkilib.experimental.loss.elementwise.flat import FlatTile, flat_tiles, tiles_of_core
from nkilib.experimental.loss.elementwise.kind import Kind, Prepared
from nkilib.experimental.loss.elementwise.launch import Launch
from nkilib.experimental.loss.elementwise.sinks import StoredLosses, SummedLosses, sink_of
from nkilib.experimental.loss.elementwise.stream import FlatStream, PlacedPiece
from nkilib.nki import nl


def forward_of_core(launch: Launch, kind: Kind, loss_hbm: nl.NkiTensor, factor: float | None) -> None:
    """Store the losses, or their sum.

    Args:
        launch, loss_hbm, factor: as for :func:`.sinks.sink_of`.
        kind: the loss.
    """
    tiles = flat_tiles(launch.elements, launch.tiling.columns)
    own = tiles_of_core(tiles, nl.num_programs(), nl.program_id(0))
    sink = sink_of(launch, loss_hbm, factor, len(tiles))
    if own:
        _run(launch, kind, own, sink)
    sink.store()


def _run(launch: Launch, kind: Kind, own: list[FlatTile], sink: StoredLosses | SummedLosses) -> None:
    """What is prepared of a piece is issued before the piece before it is finished."""
    stream = FlatStream.make(launch.flats(), own, launch.tiling.columns, launch.tiling.buffers, launch.scratch_tiles)
    ready: tuple[PlacedPiece, Prepared] | None = None
    for visit in range(len(own)):
        for placed in stream.pieces(visit):
            prepared = kind.prepare(placed.piece)
            if ready is not None:
                sink.take(ready[0], kind, ready[1])
            ready = placed, prepared
    if ready is not None:
        sink.take(ready[0], kind, ready[1])
    sink.finish()
