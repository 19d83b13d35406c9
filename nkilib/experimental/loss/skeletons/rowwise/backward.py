# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradients of a core: coefficients of a row, and its elements, rounded once.

The gradient of a row that all rows share: the sum over rows of what each has, the same bits on one core and on two.

Tiles of rows are added up element by element, those with even numbers and those with odd ones apart: two cores have one
of these sums each, one core has both. Then come the rows of a partition, by halves; the partitions, which Tensor turns
into columns for Vector to add up; and last the two sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic

from nkilib.core.losses.upstream import Upstream
from nkilib.core.rows.rings import ring_of
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowGroup, RowLaunch
from nkilib.experimental.loss.skeletons.rowwise.kind import Factors, RowKind
from nkilib.experimental.loss.skeletons.rowwise.stream import Chunk, PlacedPiece, RowStream, loaded_rows
from nkilib.nki import nisa, nl

# Sums of tiles, in which every second tile is: as many as a launch has cores at most.
SUMS: Final = 2
_PARTITIONS: Final = 128
# Float32 numbers of a partition of a bank of PSUM, and tiles that are turned into it.
_BANK_COLUMNS: Final = 512
_TURNED: Final = _BANK_COLUMNS // _PARTITIONS


@dataclass(frozen=True)
class SharedGradient:
    """Sums of the columns of a chunk; chunks of the same columns follow each other.

    Attributes:
        gradient_hbm: [1, D] of any floating type.
        columns: of a chunk at most.
        each: rows of a partition at most.
        sums_sbuf: of the tiles of this core, by the number of the tile: float32 [partitions, each * columns] each.
    """

    gradient_hbm: nl.NkiTensor
    columns: int
    each: int
    sums_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: RowLaunch, gradient_hbm: nl.NkiTensor) -> SharedGradient:
        """All zeros."""
        tiling, count = launch.tiling, SUMS // nl.num_programs()
        shape = (_PARTITIONS, tiling.width)
        sums_sbuf = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]
        found = cls(gradient_hbm, tiling.columns, tiling.each, sums_sbuf)
        found._restart()
        return found

    def of_piece(self, placed: PlacedPiece) -> nl.NkiTensor:
        """The sum that a piece is a part of, [partitions, elements]."""
        tile = placed.chunk.tile
        sum_sbuf = self.sums_sbuf[tile.number % len(self.sums_sbuf)]
        return sum_sbuf[0 : tile.partitions, placed.start : placed.end]

    def store_nothing(self) -> None:
        """Of a core without rows: its zeros."""
        columns = self.gradient_hbm.shape[1]
        for start in range(0, columns, self.columns):
            self.store(start, min(start + self.columns, columns))

    def store(self, start: int, end: int) -> None:
        """The sums of all cores of some columns; then zeros again."""
        columns = end - start
        parts = [self._of_partitions(each, columns) for each in self.sums_sbuf]
        own_sbuf, other_sbuf = parts if len(parts) == SUMS else (parts[0], _of_other_core(parts[0]))
        nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=other_sbuf, op=nl.add)
        if nl.program_id(0) == 0:
            _store_columns(self.gradient_hbm[0, start:end], own_sbuf)
        self._restart()

    def _restart(self) -> None:
        for each_sbuf in self.sums_sbuf:
            nisa.memset(dst=each_sbuf, value=0.0)

    def _of_partitions(self, sum_sbuf: nl.NkiTensor, columns: int) -> nl.NkiTensor:
        """The sum over partitions and their rows, [128, tiles of columns]: column ``c`` is in partition ``c % 128``."""
        rows = self.each
        while rows > 1:
            half = rows // 2
            first_sbuf = sum_sbuf[:, 0 : half * columns]
            second_sbuf = sum_sbuf[:, (rows - half) * columns : rows * columns]
            nisa.tensor_tensor(dst=first_sbuf, data1=first_sbuf, data2=second_sbuf, op=nl.add)
            rows -= half
        tiles = div_ceil(columns, _PARTITIONS)
        part_sbuf = nl.ndarray((_PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=part_sbuf, value=0.0)
        for first in range(0, tiles, _TURNED):
            self._add_partitions(part_sbuf, sum_sbuf[:, 0:columns], first, min(first + _TURNED, tiles))
        return part_sbuf

    def _add_partitions(self, part_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor, first: int, end: int) -> None:
        """Of some tiles of columns, of which the last one may have fewer."""
        turned_psum = nl.ndarray((_PARTITIONS, end - first, _PARTITIONS), dtype=nl.float32, buffer=nl.psum)
        for tile in range(first, end):
            columns_sbuf = sum_sbuf[:, tile * _PARTITIONS : min((tile + 1) * _PARTITIONS, sum_sbuf.shape[1])]
            width = columns_sbuf.shape[1]
            place_psum = turned_psum[0:width, tile - first]
            nisa.nc_transpose(dst=place_psum, data=columns_sbuf)
            nisa.tensor_reduce(dst=part_sbuf[0:width, tile : tile + 1], op=nl.add, data=place_psum, axis=1)


def _of_other_core(part_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    other = 1 - nl.program_id(0)
    received_sbuf = nl.ndarray(part_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.sendrecv(src=part_sbuf, dst=received_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    return received_sbuf


def _store_columns(columns_hbm: nl.NkiTensor, part_sbuf: nl.NkiTensor) -> None:
    """Numbers [128, tiles] as a vector [columns], a tile a line."""
    columns, tiles = columns_hbm.shape[0], part_sbuf.shape[1]
    turned_psum = nl.ndarray((tiles, _PARTITIONS), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_psum, data=part_sbuf)
    lines_sbuf = nl.ndarray((tiles, _PARTITIONS), dtype=columns_hbm.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=lines_sbuf, src=turned_psum)
    whole, rest = divmod(columns, _PARTITIONS)
    if whole > 0:
        lines_hbm = columns_hbm[0 : whole * _PARTITIONS].reshape((whole, _PARTITIONS))
        nisa.dma_copy(dst=lines_hbm, src=lines_sbuf[0:whole])
    if rest > 0:
        nisa.dma_copy(
            dst=columns_hbm[whole * _PARTITIONS : columns].reshape((1, rest)), src=lines_sbuf[whole:tiles, 0:rest]
        )


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
