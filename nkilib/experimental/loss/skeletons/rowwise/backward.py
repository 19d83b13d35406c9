# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradients of a core (:func:`backward_of_core`), from the elements of rows and the coefficients of each row.

A loss definition computes the gradients of a piece (the part of a tile of rows that is processed at a time) as sums of
terms, each a tile times a factor per row (:class:`Term`, :func:`combine`), rounded once. N is the number of rows, D the
number of columns.

A tensor [1, D] that all rows share has a gradient [1, D], the sum over all rows (:class:`SharedGradient`). The sum is
bitwise identical on one core and on two, because its order is fixed:

1. The contributions of all even-numbered tiles are added element by element, and separately those of all odd-numbered
   tiles. With two cores, each core has one of the two sums.
2. In each of the two sums, the rows of a partition are added by halves, then the partitions.
3. The two sums are added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.loss_arguments import Upstream
from nkilib.core.rows.sbuf import ring_of
from nkilib.experimental.loss.skeletons.rowwise.definition import Factors, RowLossDefinition
from nkilib.experimental.loss.skeletons.rowwise.stream import (
    Chunk,
    Piece,
    PlacedPiece,
    RowGroup,
    RowLaunch,
    RowStream,
    loaded_rows,
)
from nkilib.nki import nisa, nl

# The sums of tiles, each of every second tile: as many as a launch has cores at most.
SUMS: Final = 2
# Float32 numbers per partition of a PSUM bank, and the tiles that are transposed into it.
_BANK_COLUMNS: Final = 512
_TRANSPOSED_TILES: Final = _BANK_COLUMNS // PARTITIONS


@dataclass(frozen=True)
class Term:
    """A term ``(tile + offset) * factor`` of the gradient of a piece, with one factor per row.

    Attributes:
        tile_sbuf: a tile of the piece's size, [partitions, elements], of any floating type.
        factor_sbuf: the factors of all rows of the group, float32 [partitions, rows of the group].
        offset: the number that is added to each element of the tile.
    """

    tile_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor
    offset: float = 0.0


def multiply(piece: Piece, dst_sbuf: nl.NkiTensor, term: Term) -> None:
    """Compute a term, ``(tile + offset) * factor``, on Vector, and write it to ``dst_sbuf``."""
    if piece.is_long:
        nisa.tensor_scalar(
            dst=dst_sbuf,
            data=term.tile_sbuf,
            op0=nl.add,
            operand0=term.offset,
            op1=nl.multiply,
            operand1=piece.of_rows(term.factor_sbuf),
        )
        return
    nisa.scalar_tensor_tensor(
        dst=piece.by_row(dst_sbuf),
        data=piece.by_row(term.tile_sbuf),
        op0=nl.add,
        operand0=term.offset,
        op1=nl.multiply,
        operand1=piece.of_elements(term.factor_sbuf),
    )


def _add(piece: Piece, dst_sbuf: nl.NkiTensor, term: Term, partial_sbuf: nl.NkiTensor) -> None:
    """Write ``partial_sbuf`` plus a term to ``dst_sbuf``; for long rows, the term's offset is left out."""
    if piece.is_long:
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=term.tile_sbuf,
            op0=nl.multiply,
            operand0=piece.of_rows(term.factor_sbuf),
            op1=nl.add,
            operand1=partial_sbuf,
        )
        return
    product_sbuf = piece.float32()
    multiply(piece, product_sbuf, term)
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=product_sbuf, op0=nl.add, operand0=0.0, op1=nl.add, operand1=partial_sbuf
    )


def combine(piece: Piece, dst_sbuf: nl.NkiTensor, terms: list[Term], bias_sbuf: nl.NkiTensor | None = None) -> None:
    """Write the sum of terms to ``dst_sbuf``, rounded once to its type.

    For long rows, Scalar computes the first term and Vector the others; for short rows, Vector computes all terms.

    Args:
        piece: the piece; if there are several terms, one of its float32 scratch tiles is used, and for short rows one
            more for each term after the first.
        dst_sbuf: the result, [partitions, elements], of any floating type.
        terms: the terms, at least one.
        bias_sbuf: the sum of ``offset * factor`` of all terms, which long rows take in place of the offsets, float32
            [partitions, rows of the group]; None if all offsets are 0.
    """
    partial_sbuf = dst_sbuf if len(terms) == 1 else piece.float32()
    if not piece.is_long:
        multiply(piece, partial_sbuf, terms[0])
    else:
        keywords = {} if bias_sbuf is None else {"bias": piece.of_rows(bias_sbuf)}
        nisa.activation(
            dst=partial_sbuf,
            op=nl.copy,
            data=terms[0].tile_sbuf,
            scale=piece.of_rows(terms[0].factor_sbuf),
            **keywords,
        )
    for number, term in enumerate(terms[1:]):
        to_sbuf = dst_sbuf if number == len(terms) - 2 else partial_sbuf
        _add(piece, to_sbuf, term, partial_sbuf)


def add_to_sum(piece: Piece, sum_sbuf: nl.NkiTensor, term: Term) -> None:
    """Add tile * factor of a term to ``sum_sbuf``, on Vector; the tile is float32 and may be overwritten."""
    if not piece.is_long:
        multiply(piece, term.tile_sbuf, term)
    nisa.scalar_tensor_tensor(
        dst=sum_sbuf,
        data=term.tile_sbuf,
        op0=nl.multiply,
        operand0=piece.of_rows(term.factor_sbuf) if piece.is_long else 1.0,
        op1=nl.add,
        operand1=sum_sbuf,
    )


def _received_from_other_core(part_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    other = 1 - nl.program_id(0)
    received_sbuf = nl.ndarray(part_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.sendrecv(src=part_sbuf, dst=received_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    return received_sbuf


def _store_columns(columns_hbm: nl.NkiTensor, part_sbuf: nl.NkiTensor) -> None:
    """Store column sums in the vector ``columns_hbm`` [columns]; column c is ``part_sbuf[c % 128, c // 128]``."""
    columns, tiles = columns_hbm.shape[0], part_sbuf.shape[1]
    transposed_psum = nl.ndarray((tiles, PARTITIONS), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=part_sbuf)
    lines_sbuf = nl.ndarray((tiles, PARTITIONS), dtype=columns_hbm.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=lines_sbuf, src=transposed_psum)
    whole, remainder = divmod(columns, PARTITIONS)
    if whole > 0:
        lines_hbm = columns_hbm[0 : whole * PARTITIONS].reshape((whole, PARTITIONS))
        nisa.dma_copy(dst=lines_hbm, src=lines_sbuf[0:whole])
    if remainder > 0:
        nisa.dma_copy(
            dst=columns_hbm[whole * PARTITIONS : columns].reshape((1, remainder)),
            src=lines_sbuf[whole:tiles, 0:remainder],
        )


@dataclass(frozen=True)
class SharedGradient:
    """The gradient of a tensor [1, D] that all rows share, and the sums for the range of columns in progress.

    All chunks of a range of columns must be processed before the next range.

    Attributes:
        gradient_hbm: the gradient, [1, D] of any floating type.
        columns: the maximum number of columns of a chunk.
        each: the maximum number of rows in a partition of a tile.
        sums_sbuf: tiles float32 [128, each * columns]: on one core the sums of even and of odd tiles; on two cores one
            tile, the sum of this core's tiles.
    """

    gradient_hbm: nl.NkiTensor
    columns: int
    each: int
    sums_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: RowLaunch, gradient_hbm: nl.NkiTensor) -> SharedGradient:
        """Allocate the tiles of the sums, and set them to 0."""
        tiling, count = launch.tiling, SUMS // nl.num_programs()
        shape = (PARTITIONS, tiling.width)
        sums_sbuf = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]
        gradient = cls(gradient_hbm, tiling.columns, tiling.each, sums_sbuf)
        gradient._restart()
        return gradient

    def of_piece(self, placed: PlacedPiece) -> nl.NkiTensor:
        """Return the view of ``sums_sbuf`` to which the gradient of a piece is added, [partitions, elements]."""
        tile = placed.chunk.tile
        sum_sbuf = self.sums_sbuf[tile.number % len(self.sums_sbuf)]
        return sum_sbuf[0 : tile.partitions, placed.start : placed.end]

    def store_nothing(self) -> None:
        """Call :meth:`store` for all columns, on a core that has no rows: the other core waits for the exchange."""
        columns = self.gradient_hbm.shape[1]
        for start in range(0, columns, self.columns):
            self.store(start, min(start + self.columns, columns))

    def store(self, start: int, end: int) -> None:
        """Add up the sums of all cores for columns [start, end), store the gradient (on core 0), and reset the sums."""
        columns = end - start
        parts = [self._of_partitions(sum_sbuf, columns) for sum_sbuf in self.sums_sbuf]
        own_sbuf, other_sbuf = parts if len(parts) == SUMS else (parts[0], _received_from_other_core(parts[0]))
        nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=other_sbuf, op=nl.add)
        if nl.program_id(0) == 0:
            _store_columns(self.gradient_hbm[0, start:end], own_sbuf)
        self._restart()

    def _restart(self) -> None:
        for sum_sbuf in self.sums_sbuf:
            nisa.memset(dst=sum_sbuf, value=0.0)

    def _of_partitions(self, sum_sbuf: nl.NkiTensor, columns: int) -> nl.NkiTensor:
        """Return the total of each column over all partitions and their rows, [128, ceil(columns / 128)].

        Column c is at [c % 128, c // 128]. ``sum_sbuf`` is overwritten.
        """
        rows = self.each
        while rows > 1:
            half = rows // 2
            first_sbuf = sum_sbuf[:, 0 : half * columns]
            second_sbuf = sum_sbuf[:, (rows - half) * columns : rows * columns]
            nisa.tensor_tensor(dst=first_sbuf, data1=first_sbuf, data2=second_sbuf, op=nl.add)
            rows -= half
        tiles = div_ceil(columns, PARTITIONS)
        part_sbuf = nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=part_sbuf, value=0.0)
        for first in range(0, tiles, _TRANSPOSED_TILES):
            self._add_partitions(part_sbuf, sum_sbuf[:, 0:columns], first, min(first + _TRANSPOSED_TILES, tiles))
        return part_sbuf

    def _add_partitions(self, part_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor, first: int, end: int) -> None:
        """Write the sums over all partitions, for columns [128 first, 128 end), to [first, end) of ``part_sbuf``."""
        transposed_psum = nl.ndarray((PARTITIONS, end - first, PARTITIONS), dtype=nl.float32, buffer=nl.psum)
        for tile in range(first, end):
            columns_sbuf = sum_sbuf[:, tile * PARTITIONS : min((tile + 1) * PARTITIONS, sum_sbuf.shape[1])]
            width = columns_sbuf.shape[1]
            place_psum = transposed_psum[0:width, tile - first]
            nisa.nc_transpose(dst=place_psum, data=columns_sbuf)
            nisa.tensor_reduce(dst=part_sbuf[0:width, tile : tile + 1], op=nl.add, data=place_psum, axis=1)


@dataclass(frozen=True)
class _RowUpstream:
    """The upstream gradient of each row's loss.

    Attributes:
        upstream: the upstream gradient that the kernel received.
        scale_sbuf: the upstream gradient that all losses share, float32 [128, 1]; None if each loss has its own.
    """

    upstream: Upstream
    scale_sbuf: nl.NkiTensor | None

    def of(self, group: RowGroup) -> nl.NkiTensor:
        """Return the upstream gradients of the rows of a group, float32 [partitions, rows]."""
        if self.scale_sbuf is None:
            return loaded_rows(self.upstream.grad_hbm, group)
        gradients_sbuf = nl.ndarray((group.partitions, group.rows), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=gradients_sbuf, src=self.scale_sbuf[0 : group.partitions, :].broadcast(1, group.rows))
        return gradients_sbuf


@dataclass(frozen=True)
class _Backward(Generic[Factors]):
    """The loop of the backward over the chunks of a core.

    Attributes:
        definition: the loss definition.
        coefficients_hbm: the coefficients from the forward, each float32 [N].
        gradients_hbm: the gradients to store, by the number of the tensor.
        upstream: the upstream gradient of each row's loss.
        buffers_sbuf: buffer slots for chunks of gradients [N, D], by the number of the tensor.
        shared: the gradients of tensors that all rows share, by the number of the tensor.
        left: the functions in :attr:`.Piece.later` of the previous piece.
    """

    definition: RowLossDefinition[Factors]
    upstream: _RowUpstream
    coefficients_hbm: list[nl.NkiTensor]
    gradients_hbm: dict[int, nl.NkiTensor]
    buffers_sbuf: dict[int, list[nl.NkiTensor]]
    shared: dict[int, SharedGradient]
    left: list[Callable[[], None]] = field(default_factory=list)

    def run(self, stream: RowStream) -> None:
        """Compute and store the gradients of all chunks of this core."""
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
        """Call the functions in :attr:`left`, and replace them by ``actions``."""
        for action in self.left:
            action()
        self.left[:] = actions

    def _store_shared(self, chunk: Chunk) -> None:
        """Store the shared gradients of the columns of ``chunk``, the last chunk of these columns."""
        self._do_later([])
        for gradient in self.shared.values():
            gradient.store(chunk.start, chunk.end)

    def _factors(self, group: RowGroup) -> Factors:
        coefficients = [loaded_rows(vector_hbm, group) for vector_hbm in self.coefficients_hbm]
        return self.definition.factors(self.upstream.of(group), coefficients)

    def _take(self, placed: PlacedPiece, factors: Factors) -> None:
        """Compute the gradients of a piece; after the last piece of a chunk, store the chunk's gradients."""
        chunk = placed.chunk
        chunks_sbuf = {
            number: ring[placed.visit % len(ring)][0 : chunk.tile.partitions, 0 : chunk.width]
            for number, ring in self.buffers_sbuf.items()
        }
        pieces_sbuf = {number: chunk_sbuf[:, placed.start : placed.end] for number, chunk_sbuf in chunks_sbuf.items()}
        pieces_sbuf |= {number: gradient.of_piece(placed) for number, gradient in self.shared.items()}
        self.definition.gradients(placed.piece, factors, pieces_sbuf)
        self._do_later(placed.piece.later)
        if placed.ends_chunk:
            for number, chunk_sbuf in chunks_sbuf.items():
                nisa.dma_copy(
                    dst=chunk.tile.part_of(self.gradients_hbm[number], chunk.start, chunk.end), src=chunk_sbuf
                )


def backward_of_core(
    launch: RowLaunch,
    definition: RowLossDefinition[Factors],
    upstream: Upstream,
    coefficients_hbm: list[nl.NkiTensor],
    gradients_hbm: dict[int, nl.NkiTensor],
) -> None:
    """Compute and store the gradients of this core's rows.

    Args:
        launch: the tensors and the tiling of the launch.
        definition: the loss definition.
        upstream: the upstream gradients of the losses.
        coefficients_hbm: the coefficients that the forward stored, each float32 [N].
        gradients_hbm: the gradients to compute, by the number of the tensor: [N, D], or [1, D] for a tensor that all
            rows share.
    """
    groups, rows = launch.groups(), launch.rows
    shared = {
        number: SharedGradient.make(launch, gradient_hbm)
        for number, gradient_hbm in gradients_hbm.items()
        if gradient_hbm.shape[0] < rows
    }
    if not groups:
        for gradient in shared.values():
            gradient.store_nothing()
        return
    needed = {number: launch.matrices_hbm[number] for number in definition.needed(tuple(gradients_hbm))}
    stream = RowStream.make(launch, needed, groups, definition.backward_tiles, is_by_columns=bool(shared))
    buffers, width = launch.tiling.buffers, launch.tiling.width
    rings = {
        number: ring_of(buffers, width, gradient_hbm.dtype)
        for number, gradient_hbm in gradients_hbm.items()
        if number not in shared
    }
    _Backward(
        definition,
        _RowUpstream(upstream, None if upstream.is_of_each else upstream.scale(1.0)),
        coefficients_hbm,
        gradients_hbm,
        rings,
        shared,
    ).run(stream)
