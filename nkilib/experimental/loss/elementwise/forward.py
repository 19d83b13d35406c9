"""The losses of a core."""

from __future__ import annotations

from nkilib.experimental.loss.elementwise.kind import Kind, Prepared
from nkilib.experimental.loss.elementwise.launch import Launch
from nkilib.experimental.loss.elementwise.sinks import StoredLosses, SummedLosses, sink_of
from nkilib.experimental.loss.elementwise.stream import PlacedPiece, Stream
from nkilib.nki import nl


def forward_of_core(launch: Launch, kind: Kind, loss_hbm: nl.NkiTensor, factor: float | None) -> None:
    """Store the losses, or their sum.

    Args:
        launch, loss_hbm, factor: as for :func:`.sinks.sink_of`.
        kind: the loss.
    """
    stream = Stream.make(launch, launch.tensors_hbm)
    sink = sink_of(launch, loss_hbm, factor, stream.num_tiles)
    _run(stream, kind, sink)
    sink.store()


def _run(stream: Stream, kind: Kind, sink: StoredLosses | SummedLosses) -> None:
    """What is prepared of a piece is issued before the piece before it is finished."""
    ready: tuple[PlacedPiece, Prepared] | None = None
    for visit in range(len(stream.tiles)):
        for placed in stream.pieces(visit):
            prepared = kind.prepare(placed.piece)
            if ready is not None:
                sink.take(ready[0], kind, ready[1])
            ready = placed, prepared
    if ready is not None:
        sink.take(ready[0], kind, ready[1])
    sink.finish()
