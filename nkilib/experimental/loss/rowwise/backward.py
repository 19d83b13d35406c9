"""The gradients of a core: coefficients of a row, and its elements, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from nkilib.core.losses.upstream import Upstream
from nkilib.core.rows.rings import ring_of
from nkilib.experimental.loss.rowwise.geometry import RowGroup
from nkilib.experimental.loss.rowwise.kind import Factors, RowKind
from nkilib.experimental.loss.rowwise.launch import RowLaunch
from nkilib.experimental.loss.rowwise.shared_gradient import SharedGradient
from nkilib.experimental.loss.rowwise.stream import Chunk, PlacedPiece, RowStream
from nkilib.experimental.loss.rowwise.vectors import loaded_rows
from nkilib.nki import nisa, nl


def backward_of_core(
    launch: RowLaunch,
    kind: RowKind[Factors],
    upstream: Upstream,
    coefficients_hbm: list[nl.NkiTensor],
    gradients_hbm: dict[int, nl.NkiTensor],
) -> None:
    """Store the gradients by the tensors whose numbers ``gradients_hbm`` has.

    Args:
        launch: tensors and tiling.
        kind: the loss.
        upstream: gradients of the losses.
        coefficients_hbm: float32 [N] each, which the forward stored.
        gradients_hbm: [N, D] each; [1, D] of a tensor that all rows share.
    """
    groups, rows = launch.groups(), launch.rows
    shared = {
        number: SharedGradient.make(launch, each) for number, each in gradients_hbm.items() if each.shape[0] < rows
    }
    if not groups:
        for gradient in shared.values():
            gradient.store_nothing()
        return
    needed = {number: launch.matrices_hbm[number] for number in kind.needed(tuple(gradients_hbm))}
    stream = RowStream.make(launch, needed, groups, kind.backward_tiles, is_by_columns=bool(shared))
    buffers, width = launch.tiling.buffers, launch.tiling.width
    rings = {
        number: ring_of(buffers, width, each.dtype) for number, each in gradients_hbm.items() if number not in shared
    }
    _Backward(
        kind,
        _RowUpstream(upstream, None if upstream.is_of_each else upstream.scale(1.0)),
        coefficients_hbm,
        gradients_hbm,
        rings,
        shared,
    ).run(stream)


@dataclass(frozen=True)
class _RowUpstream:
    """Gradients of the losses of rows.

    Attributes:
        upstream: as the kernel got it.
        scale_sbuf: gradient of each loss, float32 [128, 1]; None where they differ.
    """

    upstream: Upstream
    scale_sbuf: nl.NkiTensor | None

    def of(self, group: RowGroup) -> nl.NkiTensor:
        """Those of a group, float32 [partitions, rows]."""
        if self.scale_sbuf is None:
            return loaded_rows(self.upstream.grad_hbm, group)
        every_sbuf = nl.ndarray((group.partitions, group.rows), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=every_sbuf, src=self.scale_sbuf[0 : group.partitions, :].broadcast(1, group.rows))
        return every_sbuf


@dataclass(frozen=True)
class _Backward(Generic[Factors]):
    """What all pieces have in common.

    Attributes:
        kind, coefficients_hbm, gradients_hbm: of the launch.
        upstream: of its rows.
        buffers_sbuf: by number of the tensor, tiles that the chunks of gradients take in turn.
        shared: by number of the tensor, gradients of those that all rows share.
        left: what is to be issued after the next piece has begun.
    """

    kind: RowKind[Factors]
    upstream: _RowUpstream
    coefficients_hbm: list[nl.NkiTensor]
    gradients_hbm: dict[int, nl.NkiTensor]
    buffers_sbuf: dict[int, list[nl.NkiTensor]]
    shared: dict[int, SharedGradient]
    left: list[Callable[[], None]] = field(default_factory=list)

    def run(self, stream: RowStream) -> None:
        """All chunks."""
        factors: dict[int, Factors] = {}
        for visit, chunk in enumerate(stream.chunks):
            pieces = stream.pieces(visit)
            if chunk.group.start not in factors:
                factors = {chunk.group.start: self._factors(chunk.group)}
            for placed in pieces:
                self._take(placed, factors[chunk.group.start])
            following = stream.chunks[visit + 1] if visit + 1 < len(stream.chunks) else None
            if self.shared and (following is None or following.start != chunk.start):
                self._store_shared(chunk)

    def _do_later(self, actions: list[Callable[[], None]]) -> None:
        """What is left of the piece before; these of this one come after the next one."""
        for action in self.left:
            action()
        self.left[:] = actions

    def _store_shared(self, chunk: Chunk) -> None:
        """After the last chunk of its columns."""
        self._do_later([])
        for gradient in self.shared.values():
            gradient.store(chunk.start, chunk.end)

    def _factors(self, group: RowGroup) -> Factors:
        coefficients = [loaded_rows(each, group) for each in self.coefficients_hbm]
        return self.kind.factors(self.upstream.of(group), coefficients)

    def _take(self, placed: PlacedPiece, factors: Factors) -> None:
        """The gradients of a piece; the last piece of a chunk stores them all."""
        chunk = placed.chunk
        chunks_sbuf = {
            number: ring[placed.visit % len(ring)][0 : chunk.tile.partitions, 0 : chunk.width]
            for number, ring in self.buffers_sbuf.items()
        }
        pieces_sbuf = {number: each[:, placed.start : placed.end] for number, each in chunks_sbuf.items()}
        pieces_sbuf |= {number: gradient.of_piece(placed) for number, gradient in self.shared.items()}
        self.kind.gradients(placed.piece, factors, pieces_sbuf)
        self._do_later(placed.piece.later)
        if placed.ends_chunk:
            for number, each in chunks_sbuf.items():
                nisa.dma_copy(dst=chunk.tile.part_of(self.gradients_hbm[number], chunk.start, chunk.end), src=each)
