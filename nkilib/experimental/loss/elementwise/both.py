"""Losses and gradients of a core in one pass over the tensors, where the upstream gradient is known before them."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.losses.upstream import Upstream
from nkilib.experimental.loss.elementwise.backward import Gradients
from nkilib.experimental.loss.elementwise.kind import Derivative, Kind, Prepared
from nkilib.experimental.loss.elementwise.launch import Launch
from nkilib.experimental.loss.elementwise.sinks import StoredLosses, SummedLosses, sink_of
from nkilib.experimental.loss.elementwise.stream import PlacedPiece, Stream
from nkilib.nki import nl


def both_of_core(
    launch: Launch, kind: Kind, loss_hbm: nl.NkiTensor, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor]
) -> None:
    """Store the losses, or their sum, and the gradients by the tensors whose names ``gradients_hbm`` has."""
    stream = Stream.make(launch, upstream.with_tensors(launch.tensors_hbm, tuple(launch.tensors_hbm)))
    sink = sink_of(launch, loss_hbm, upstream.factor, stream.num_tiles)
    gradients = Gradients.make(kind, upstream, gradients_hbm, launch)
    ready: _Begun | None = None
    for visit in range(len(stream.tiles)):
        for placed in stream.pieces(visit):
            prepared = kind.prepare(placed.piece)
            begun = _Begun(placed, prepared, kind.derivative(placed.piece, tuple(gradients_hbm)))
            if ready is not None:
                ready.finish(kind, sink, gradients)
            ready = begun
    if ready is not None:
        ready.finish(kind, sink, gradients)
    sink.finish()
    sink.store()


@dataclass(frozen=True)
class _Begun:
    """A piece whose losses and gradients are begun.

    Attributes:
        placed: the piece.
        prepared: what its losses begin with.
        derivatives: of its losses, by the name of the tensor.
    """

    placed: PlacedPiece
    prepared: Prepared
    derivatives: dict[str, Derivative]

    def finish(self, kind: Kind, sink: StoredLosses | SummedLosses, gradients: Gradients) -> None:
        """Hand over the losses, and the gradients."""
        sink.take(self.placed, kind, self.prepared)
        gradients.take_all(self.placed, self.derivatives)
