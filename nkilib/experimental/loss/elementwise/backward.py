"""The gradients of a core: derivatives of a piece, times the upstream gradient, rounded once."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.elementwise.flat import FlatTile, flat_tiles, tiles_of_core
from nkilib.experimental.loss.elementwise.kind import Derivative, Kind
from nkilib.experimental.loss.elementwise.launch import Launch
from nkilib.experimental.loss.elementwise.stream import FlatStream, PlacedPiece, ring_of
from nkilib.nki import nisa, nl

# The number of a gradient of each loss among the streamed tensors: after those of any kind.
_UPSTREAM = 3


@dataclass(frozen=True)
class Upstream:
    """Gradients of the losses.

    Attributes:
        grad_hbm: float32 [1], of their sum; or one for each loss.
        factor: of the sum; None: one for each loss.
    """

    grad_hbm: nl.NkiTensor
    factor: float | None

    def loaded(self) -> nl.NkiTensor | None:
        """The gradient of each loss, float32 [128, 1]; None where they differ. No value is looked at by the host."""
        if self.factor is None:
            return None
        partitions = nl.tile_size.pmax
        scale_sbuf = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=scale_sbuf, src=self.grad_hbm.reshape((1, 1)).broadcast(0, partitions))
        nisa.tensor_scalar(dst=scale_sbuf, data=scale_sbuf, op0=nl.multiply, operand0=self.factor)
        return scale_sbuf


def backward_of_core(launch: Launch, kind: Kind, upstream: Upstream, gradients_hbm: dict[int, nl.NkiTensor]) -> None:
    """Store the gradients by the tensors whose numbers ``gradients_hbm`` has."""
    tiles = flat_tiles(launch.elements, launch.tiling.columns)
    own = tiles_of_core(tiles, nl.num_programs(), nl.program_id(0))
    if not own:
        return
    flats_hbm = launch.flats(kind.needed(tuple(gradients_hbm)))
    if upstream.factor is None:
        flats_hbm[_UPSTREAM] = upstream.grad_hbm.reshape((launch.elements,))
    stream = FlatStream.make(flats_hbm, own, launch.tiling.columns, launch.tiling.buffers, kind.scratch_tiles)
    flat_gradients = {number: each.reshape((launch.elements,)) for number, each in gradients_hbm.items()}
    _Gradients.make(kind, upstream, flat_gradients, launch).run(stream, own)


@dataclass(frozen=True)
class _Gradients:
    """What all pieces have in common.

    Attributes:
        kind: the loss.
        scale_sbuf: gradient of each loss; None where they are streamed.
        gradients_hbm: [elements] by number of the tensor.
        buffers_sbuf: by the same, tiles that the tiles of gradients take in turn.
    """

    kind: Kind
    scale_sbuf: nl.NkiTensor | None
    gradients_hbm: dict[int, nl.NkiTensor]
    buffers_sbuf: dict[int, list[nl.NkiTensor]]

    @classmethod
    def make(cls, kind: Kind, upstream: Upstream, gradients_hbm: dict[int, nl.NkiTensor], launch: Launch) -> _Gradients:
        """Of a launch."""
        tiling = launch.tiling
        buffers = {
            number: ring_of(tiling.buffers, tiling.columns, each.dtype) for number, each in gradients_hbm.items()
        }
        return cls(kind, upstream.loaded(), gradients_hbm, buffers)

    def run(self, stream: FlatStream, own: list[FlatTile]) -> None:
        """All of the core."""
        for visit in range(len(own)):
            for placed in stream.pieces(visit):
                for number in self.gradients_hbm:
                    self._take(placed, number)

    def _take(self, placed: PlacedPiece, number: int) -> None:
        """The gradient of a piece by a tensor; the last piece of a tile stores them all."""
        tile, ring = placed.tile, self.buffers_sbuf[number]
        gradient_sbuf = ring[placed.visit % len(ring)][0 : tile.rows, 0 : tile.columns]
        derivative = self.kind.derivative(placed.piece, number)
        self._scale(gradient_sbuf[:, placed.start : placed.end], derivative, placed)
        if placed.is_last:
            nisa.dma_copy(dst=tile.of(self.gradients_hbm[number]), src=gradient_sbuf)

    def _scale(self, dst_sbuf: nl.NkiTensor, derivative: Derivative, placed: PlacedPiece) -> None:
        if self.scale_sbuf is None:
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf,
                data=derivative.tile_sbuf,
                op0=nl.multiply,
                operand0=derivative.factor,
                op1=nl.multiply,
                operand1=placed.piece.tensors[_UPSTREAM],
            )
            return
        nisa.tensor_scalar(
            dst=dst_sbuf,
            data=derivative.tile_sbuf,
            op0=nl.multiply,
            operand0=self.scale_sbuf[0 : placed.tile.rows, :],
            op1=nl.multiply,
            operand1=derivative.factor,
        )
