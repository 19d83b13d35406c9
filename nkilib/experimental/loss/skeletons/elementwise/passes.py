# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The passes of a core over its tiles: its losses, their gradients, or both.

A gradient is the derivative of a piece times the upstream gradient, rounded once. Losses and gradients come from one
pass over the tensors where the upstream gradient is known before the losses.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.losses.upstream import UPSTREAM, Upstream
from nkilib.core.rows.overlap import run_overlapped
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
    run_overlapped(stream, _Losses(kind, sink))
    sink.finish()
    sink.store()


@dataclass(frozen=True)
class _Losses:
    """The losses of a core. What is prepared of a piece is issued before the piece before it is finished.

    Attributes:
        kind: the loss.
        sink: where they go.
    """

    kind: Kind
    sink: StoredLosses | SummedLosses

    def begin(self, placed: PlacedPiece) -> Prepared:
        """What they begin with."""
        return self.kind.prepare(placed.piece)

    def finish(self, placed: PlacedPiece, begun: Prepared) -> None:
        """Hand them over."""
        self.sink.take(placed, self.kind, begun)


def backward_of_core(launch: Launch, kind: Kind, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor]) -> None:
    """Store the gradients by the tensors whose names ``gradients_hbm`` has."""
    stream = Stream.make(launch, upstream.with_tensors(launch.tensors_hbm, kind.needed(tuple(gradients_hbm))))
    run_overlapped(stream, Gradients.make(kind, upstream, gradients_hbm, launch))


@dataclass(frozen=True)
class Gradients:
    """The gradients of a core. Derivatives of a piece are issued before those of the piece before it are scaled.

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

    def begin(self, placed: PlacedPiece) -> dict[str, Derivative]:
        """Derivatives of the losses, by the name of the tensor."""
        return self.kind.derivative(placed.piece, tuple(self.gradients_hbm))

    def finish(self, placed: PlacedPiece, begun: dict[str, Derivative]) -> None:
        """Scale and store them."""
        for name in self.gradients_hbm:
            self._take(placed, name, begun[name])

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
    run_overlapped(stream, _Both(_Losses(kind, sink), gradients))
    sink.finish()
    sink.store()


@dataclass(frozen=True)
class _Both:
    """The losses of a core, and their gradients.

    Attributes:
        losses, gradients: the work on either.
    """

    losses: _Losses
    gradients: Gradients

    def begin(self, placed: PlacedPiece) -> tuple[Prepared, dict[str, Derivative]]:
        """What both begin with."""
        return self.losses.begin(placed), self.gradients.begin(placed)

    def finish(self, placed: PlacedPiece, begun: tuple[Prepared, dict[str, Derivative]]) -> None:
        """Hand over the losses, and the gradients."""
        prepared, derivatives = begun
        self.losses.finish(placed, prepared)
        self.gradients.finish(placed, derivatives)
