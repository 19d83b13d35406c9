"""The passes of a core over its tiles: its losses, their gradients, or both.

A gradient is the derivative of a piece times the upstream gradient, rounded once. Losses and gradients come from one
pass over the tensors where the upstream gradient is known before the losses.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.losses.upstream import UPSTREAM, Upstream
from nkilib.core.rows.rings import ring_of
from nkilib.experimental.loss.skeletons.elementwise.kind import Derivative, Kind, Prepared
from nkilib.experimental.loss.skeletons.elementwise.results import StoredLosses, SummedLosses, sink_of
from nkilib.experimental.loss.skeletons.elementwise.stream import Launch, PlacedPiece, Stream
from nkilib.nki import nisa, nl


def forward_of_core(launch: Launch, kind: Kind, loss_hbm: nl.NkiTensor, factor: float | None) -> None:
    """Store the losses, or their sum.

    Args:
        launch, loss_hbm, factor: as for :func:`.results.sink_of`.
        kind: the loss.
    """
    stream = Stream.make(launch, launch.tensors_hbm)
    sink = sink_of(launch, loss_hbm, factor, stream.num_tiles)
    _run_losses(stream, kind, sink)
    sink.store()


def _run_losses(stream: Stream, kind: Kind, sink: StoredLosses | SummedLosses) -> None:
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


def backward_of_core(launch: Launch, kind: Kind, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor]) -> None:
    """Store the gradients by the tensors whose names ``gradients_hbm`` has."""
    stream = Stream.make(launch, upstream.with_tensors(launch.tensors_hbm, kind.needed(tuple(gradients_hbm))))
    Gradients.make(kind, upstream, gradients_hbm, launch).run(stream)


@dataclass(frozen=True)
class Gradients:
    """What all pieces have in common.

    Attributes:
        kind: the loss.
        upstream: gradients of the losses.
        scales_sbuf: that of all losses times a number, by the number.
        gradients_hbm: [elements] by name of the tensor.
        buffers_sbuf: by the same, tiles that the tiles of gradients take in turn.
    """

    kind: Kind
    upstream: Upstream
    scales_sbuf: dict[float, nl.NkiTensor]
    gradients_hbm: dict[str, nl.NkiTensor]
    buffers_sbuf: dict[str, list[nl.NkiTensor]]

    @classmethod
    def make(cls, kind: Kind, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor], launch: Launch) -> Gradients:
        """Of a launch."""
        tiling = launch.tiling
        buffers = {name: ring_of(tiling.buffers, tiling.columns, each.dtype) for name, each in gradients_hbm.items()}
        flats = {name: each.reshape((launch.elements,)) for name, each in gradients_hbm.items()}
        return cls(kind, upstream, {}, flats, buffers)

    def run(self, stream: Stream) -> None:
        """All of the core. Derivatives of a piece are issued before those of the piece before it are scaled."""
        ready: tuple[PlacedPiece, dict[str, Derivative]] | None = None
        for visit in range(len(stream.tiles)):
            for placed in stream.pieces(visit):
                derivatives = self.kind.derivative(placed.piece, tuple(self.gradients_hbm))
                if ready is not None:
                    self.take_all(*ready)
                ready = placed, derivatives
        if ready is not None:
            self.take_all(*ready)

    def take_all(self, placed: PlacedPiece, derivatives: dict[str, Derivative]) -> None:
        for name in self.gradients_hbm:
            self._take(placed, name, derivatives[name])

    def _take(self, placed: PlacedPiece, name: str, derivative: Derivative) -> None:
        """The gradient of a piece by a tensor; the last piece of a tile stores them all."""
        tile, ring = placed.tile, self.buffers_sbuf[name]
        gradient_sbuf = ring[placed.visit % len(ring)][0 : tile.rows, 0 : tile.columns]
        self._scale(gradient_sbuf[:, placed.start : placed.end], derivative, placed)
        if placed.is_last:
            nisa.dma_copy(dst=tile.of(self.gradients_hbm[name]), src=gradient_sbuf)

    def _scale(self, dst_sbuf: nl.NkiTensor, derivative: Derivative, placed: PlacedPiece) -> None:
        derivative_sbuf = derivative.product_sbuf()
        if self.upstream.is_of_each:
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf,
                data=derivative_sbuf,
                op0=nl.multiply,
                operand0=derivative.factor,
                op1=nl.multiply,
                operand1=placed.piece[UPSTREAM],
            )
            return
        scale_sbuf = self._scale_of(derivative.factor)[0 : placed.tile.rows, :]
        if derivative.on_scalar:
            nisa.activation(dst=dst_sbuf, op=nl.copy, data=derivative_sbuf, scale=scale_sbuf)
        else:
            nisa.tensor_scalar(dst=dst_sbuf, data=derivative_sbuf, op0=nl.multiply, operand0=scale_sbuf)

    def _scale_of(self, factor: float) -> nl.NkiTensor:
        if factor not in self.scales_sbuf:
            self.scales_sbuf[factor] = self.upstream.scale(factor)
        return self.scales_sbuf[factor]


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
