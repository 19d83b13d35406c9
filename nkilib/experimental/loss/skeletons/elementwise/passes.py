# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The passes of a core over its tiles, which compute the losses, their gradients, or both.

A gradient is the derivative of a piece times the upstream gradient, rounded once. Losses and gradients are computed in
one pass over the tensors if the upstream gradient is known before the losses.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.losses.upstream import UPSTREAM, Upstream
from nkilib.core.rows.overlap import run_overlapped
from nkilib.core.rows.rings import ring_of
from nkilib.experimental.loss.skeletons.elementwise.definition import Derivative, LossDefinition, Prepared
from nkilib.experimental.loss.skeletons.elementwise.results import StoredLosses, SummedLosses, destination_of
from nkilib.experimental.loss.skeletons.elementwise.stream import Launch, PlacedPiece, Stream
from nkilib.nki import nisa, nl


def forward_of_core(launch: Launch, definition: LossDefinition, loss_hbm: nl.NkiTensor, factor: float | None) -> None:
    """Compute the losses of this core, and store them or their sum.

    Args:
        launch, loss_hbm, factor: see :func:`.results.destination_of`.
        definition: the loss definition.
    """
    stream = Stream.make(launch, launch.tensors_hbm)
    destination = destination_of(launch, loss_hbm, factor, stream.num_tiles)
    run_overlapped(stream, _Losses(definition, destination))
    destination.finish()
    destination.store()


@dataclass(frozen=True)
class _Losses:
    """The pass that computes the losses of a core. The first steps of a piece are issued before the previous one
    is finished.

    Attributes:
        definition: the loss definition.
        destination: the destination of the losses.
    """

    definition: LossDefinition
    destination: StoredLosses | SummedLosses

    def begin(self, placed: PlacedPiece) -> Prepared:
        """Issue the first steps of a piece's losses."""
        return self.definition.prepare(placed.piece)

    def finish(self, placed: PlacedPiece, begun: Prepared) -> None:
        """Compute the losses of a piece and pass them to their destination."""
        self.destination.take(placed, self.definition, begun)


def backward_of_core(
    launch: Launch, definition: LossDefinition, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor]
) -> None:
    """Compute this core's part of the gradients with respect to the tensors named in ``gradients_hbm``, and store
    it there.
    """
    stream = Stream.make(launch, upstream.with_tensors(launch.tensors_hbm, definition.needed(tuple(gradients_hbm))))
    run_overlapped(stream, Gradients.make(definition, upstream, gradients_hbm, launch))


@dataclass(frozen=True)
class Gradients:
    """The pass that computes the gradients of a core. The derivatives of a piece are issued before those of the
    previous piece are multiplied by their upstream gradients.

    Attributes:
        definition: the loss definition.
        upstream: the upstream gradients of the losses.
        scales_sbuf: by the factor of a derivative, the product of this factor and the upstream gradient that
            all losses share.
        gradients_hbm: the gradients, [elements], by the name of the tensor.
        buffers_sbuf: ring buffers for the tiles of gradients, by the name of the tensor.
    """

    definition: LossDefinition
    upstream: Upstream
    scales_sbuf: dict[float, nl.NkiTensor]
    gradients_hbm: dict[str, nl.NkiTensor]
    buffers_sbuf: dict[str, list[nl.NkiTensor]]

    @classmethod
    def make(
        cls, definition: LossDefinition, upstream: Upstream, gradients_hbm: dict[str, nl.NkiTensor], launch: Launch
    ) -> Gradients:
        """Allocate the buffers of a launch."""
        tiling = launch.tiling
        buffers = {
            name: ring_of(tiling.buffers, tiling.columns, gradient_hbm.dtype)
            for name, gradient_hbm in gradients_hbm.items()
        }
        flats = {name: gradient_hbm.reshape((launch.elements,)) for name, gradient_hbm in gradients_hbm.items()}
        return cls(definition, upstream, {}, flats, buffers)

    def begin(self, placed: PlacedPiece) -> dict[str, Derivative]:
        """Issue the derivatives of the losses and return them by the name of the tensor."""
        return self.definition.derivative(placed.piece, tuple(self.gradients_hbm))

    def finish(self, placed: PlacedPiece, begun: dict[str, Derivative]) -> None:
        """Multiply the derivatives of a piece by the upstream gradient, and store the gradients."""
        for name in self.gradients_hbm:
            self._take(placed, name, begun[name])

    def _take(self, placed: PlacedPiece, name: str, derivative: Derivative) -> None:
        """Compute the gradient of a piece for the named tensor; the last piece of a tile stores the whole tile."""
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


def forward_backward_of_core(
    launch: Launch,
    definition: LossDefinition,
    loss_hbm: nl.NkiTensor,
    upstream: Upstream,
    gradients_hbm: dict[str, nl.NkiTensor],
) -> None:
    """Compute and store the losses of this core, or their sum, and its part of the gradients named in
    ``gradients_hbm``.
    """
    stream = Stream.make(launch, upstream.with_tensors(launch.tensors_hbm, tuple(launch.tensors_hbm)))
    destination = destination_of(launch, loss_hbm, upstream.factor, stream.num_tiles)
    gradients = Gradients.make(definition, upstream, gradients_hbm, launch)
    run_overlapped(stream, _ForwardBackward(_Losses(definition, destination), gradients))
    destination.finish()
    destination.store()


@dataclass(frozen=True)
class _ForwardBackward:
    """The pass that computes both the losses of a core and their gradients.

    Attributes:
        losses, gradients: the two passes that are combined.
    """

    losses: _Losses
    gradients: Gradients

    def begin(self, placed: PlacedPiece) -> tuple[Prepared, dict[str, Derivative]]:
        """Issue the first steps of losses and gradients."""
        return self.losses.begin(placed), self.gradients.begin(placed)

    def finish(self, placed: PlacedPiece, begun: tuple[Prepared, dict[str, Derivative]]) -> None:
        """Finish the losses and the gradients of a piece."""
        prepared, derivatives = begun
        self.losses.finish(placed, prepared)
        self.gradients.finish(placed, derivatives)
