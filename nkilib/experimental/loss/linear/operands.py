# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loads of operands from HBM, and stores of results: matrices in tiles of 128 partitions, and vectors.

N positions, D features, V classes; X [N, D] is the input, W the weight. A vector with one value per position is on chip
as [128, tiles of 128 positions].

- Matrices: :class:`Matrix` loads X or W as it is or transposed, :func:`load_input` X^T of a block of positions.
  :class:`Staging` and :func:`with_rounded_input` round operands of another dtype.
- Per-position values: :func:`load_positions`, :func:`store_positions` and :class:`StoredPositions`.
- Per-class values of a block, a bias or a class weight, the same on all partitions: :func:`load_broadcast` and
  :class:`ClassRow`. A bias is added in float32 and never rounded to the dtype of the products.

Tensor contracts over partitions. So the product over the features D needs X and W with features on partitions, ``[128,
ceil(D / 128), rows]``, and the products of the backward need them with rows on partitions. One of the two is the layout
in HBM, which ``dma_copy`` loads. The other one needs ``dma_transpose``, which moves elements of 2 and of 4 bytes and
does not cast (nki/guides/architecture/trainium2_arch.rst, DMA Transpose).

A matrix of another dtype than the products is rounded to their dtype while it is loaded. ``dma_copy`` casts by itself,
through float32 (nki/api/nki/isa/__init__.py). A matrix that is transposed comes on chip in its own dtype, in small
tiles that are used round-robin (:class:`Staging`), and GpSimd, which has little else to do, casts it from there. So
there is no copy of W in HBM. The backward loads X for each block of classes, as it is and transposed: there a copy of X
in HBM, which is rounded once, saves more than it costs (:func:`with_rounded_input`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from nkilib.core.cores import synchronise
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.rows.sbuf import Ring
from nkilib.core.rows.tiles import cast
from nkilib.experimental.loss.linear.block_schedule import (
    Block,
)
from nkilib.experimental.loss.linear.launch import STAGED_ELEMENTS, STAGES, LinearOperands
from nkilib.nki import nisa, nl

Operands = TypeVar("Operands", bound=LinearOperands)


@dataclass(frozen=True)
class Staging:
    """The staging tiles into which DMA transposes an operand, and from which GpSimd casts it.

    Attributes:
        memory: the ring buffer of tiles, float32 [128, elements]; an operand of 16 bits uses views of the tiles.
    """

    memory: Ring

    @classmethod
    def make(cls, staging_bytes: int) -> Staging | None:
        """Allocate staging tiles of ``staging_bytes`` bytes per partition in total; return None for 0."""
        if staging_bytes == 0:
            return None
        columns = staging_bytes // STAGES // FLOAT32_BYTES
        return cls(Ring.of_sbuf(STAGES, (PARTITIONS, columns), nl.float32))

    def transpose(self, dst_sbuf: nl.NkiTensor, src_hbm: nl.NkiTensor) -> None:
        """Transpose and cast: ``dst[p, k, r]`` becomes ``src[r, k, p]``, rounded to the dtype of ``dst``.

        Args:
            dst_sbuf: the destination, [partitions, tiles, rows], of at most 1,024 rows.
            src_hbm: the source, [rows, tiles, partitions].
        """
        partitions, tiles, rows = dst_sbuf.shape
        most = STAGED_ELEMENTS // rows
        for first in range(0, tiles, most):
            end = min(first + most, tiles)
            staged_sbuf = self.memory.next_tile().view(src_hbm.dtype)[0:partitions, 0 : (end - first) * rows]
            staged_sbuf = staged_sbuf.reshape_dim(1, (end - first, rows))
            nisa.dma_transpose(dst=staged_sbuf, src=src_hbm.slice(1, first, end))
            nisa.tensor_copy(dst=dst_sbuf[:, first:end, :], src=staged_sbuf, engine=nisa.engine.gpsimd)


def with_rounded_input(launch: Operands, prefix: str = "") -> Operands:
    """Return the operands with X in the dtype of the products: X itself, or a rounded copy in HBM that the cores share.

    The cores write equal parts of the copy.

    Args:
        launch: the operands.
        prefix: a prefix of the name of the copy, which distinguishes the copies of several models.
    """
    if launch.input_hbm.dtype == launch.dtype:
        return launch
    rounded_hbm = nl.ndarray(
        tuple(launch.input_hbm.shape), dtype=launch.dtype, buffer=nl.shared_hbm, name=f"rounded_{prefix}input_hbm"
    )
    cores = nl.num_programs()
    half = div_ceil(launch.num_positions, cores)
    first = nl.program_id(0) * half
    end = min(first + half, launch.num_positions)
    if first < end:
        nisa.dma_copy(dst=rounded_hbm[first:end], src=launch.input_hbm[first:end])
    synchronise(rounded_hbm)
    return replace(launch, input_hbm=rounded_hbm)


@dataclass(frozen=True)
class Matrix:
    """A matrix in HBM, or a view of a part of it; it may be stored transposed.

    Attributes:
        stored_hbm: the tensor, ``[rows, columns]``, or ``[columns, rows]`` if it is transposed. A view may start at a
            variable of a device loop.
        is_transposed: whether the matrix is stored transposed.
        staging: the staging tiles, needed if the matrix is transposed into tiles of another dtype; None for none.
    """

    stored_hbm: nl.NkiTensor
    is_transposed: bool = False
    staging: Staging | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stored_hbm.shape[1 if self.is_transposed else 0]

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.stored_hbm.shape[0 if self.is_transposed else 1]

    @property
    def dtype(self) -> nl.DType:
        """The dtype of the elements."""
        return self.stored_hbm.dtype

    def rows_of(self, start: int, count: int) -> Matrix:
        """Return rows ``start`` to ``start + count``."""
        return self._part(1 if self.is_transposed else 0, start, count)

    def columns_of(self, start: int, count: int) -> Matrix:
        """Return columns ``start`` to ``start + count``."""
        return self._part(0 if self.is_transposed else 1, start, count)

    def load(self, dst_sbuf: nl.NkiTensor) -> None:
        """Load the matrix with rows on partitions: ``dst[p, j, c]`` becomes element ``[128 * j + p, c]``.

        Args:
            dst_sbuf: the destination, [128, at least ceil(rows / 128), at least columns], of the dtype of the matrix or
                of another one that it is rounded to. Elements beyond the matrix are not written.
        """
        self._load(dst_sbuf, self.is_transposed)

    def load_transposed(self, dst_sbuf: nl.NkiTensor) -> None:
        """Load the matrix with columns on partitions: ``dst[p, k, r]`` becomes element ``[r, 128 * k + p]``.

        Args:
            dst_sbuf: the destination, [128, at least ceil(columns / 128), at least rows]; see :meth:`load`.
        """
        self._load(dst_sbuf, not self.is_transposed)

    def _part(self, dimension: int, start: int, count: int) -> Matrix:
        return Matrix(self.stored_hbm.slice(dimension, start, start + count), self.is_transposed, self.staging)

    def _load(self, dst_sbuf: nl.NkiTensor, by_transpose: bool) -> None:
        """Load the matrix in two transfers, split along the dimension that goes on partitions: whole tiles of 128, and
        the rest.

        ``by_transpose`` says whether DMA has to transpose, because the matrix is stored with the other dimension first.
        """
        dimension = 1 if by_transpose else 0
        size, free = self.stored_hbm.shape[dimension], self.stored_hbm.shape[1 - dimension]
        tiles, rest = divmod(size, PARTITIONS)
        if tiles > 0:
            whole_hbm = self.stored_hbm.slice(dimension, 0, tiles * PARTITIONS)
            whole_hbm = whole_hbm.reshape_dim(dimension, (tiles, PARTITIONS))
            whole_sbuf = dst_sbuf[:, 0:tiles, 0:free]
            if by_transpose:
                self._transpose(whole_sbuf, whole_hbm)
            else:
                nisa.dma_copy(dst=whole_sbuf, src=whole_hbm.permute((1, 0, 2)))
        if rest > 0:
            rest_hbm = self.stored_hbm.slice(dimension, tiles * PARTITIONS, size)
            if by_transpose:
                rest_sbuf = dst_sbuf[0:rest, tiles : tiles + 1, 0:free]
                self._transpose(rest_sbuf, rest_hbm.expand_dim(1))
            else:
                nisa.dma_copy(dst=dst_sbuf[0:rest, tiles, 0:free], src=rest_hbm)

    def _transpose(self, dst_sbuf: nl.NkiTensor, src_hbm: nl.NkiTensor) -> None:
        if dst_sbuf.dtype == src_hbm.dtype:
            nisa.dma_transpose(dst=dst_sbuf, src=src_hbm)
            return
        if self.staging is None:
            raise AssertionError(
                f"Matrix: a transpose of {src_hbm.dtype} into {dst_sbuf.dtype} must have a staging; give one"
            )
        self.staging.transpose(dst_sbuf, src_hbm)


def load_input(
    tiles_sbuf: Sequence[nl.NkiTensor], input_hbm: nl.NkiTensor, block: Block, staging: Staging | None
) -> None:
    """Load X^T of a block of positions into tiles [128, ceil(D / 128), 128], one tile for every 128 positions.

    Columns after the last position are set to 0, so that their logits are finite.

    Args:
        tiles_sbuf: the tiles.
        input_hbm: X, [N, D].
        block: the positions.
        staging: the staging tiles if X has another dtype than the tiles; else None.
    """
    for number, tile_sbuf in enumerate(tiles_sbuf):
        count = min(PARTITIONS, block.size - number * PARTITIONS)
        if count < PARTITIONS:
            nisa.memset(dst=tile_sbuf, value=0.0)
        of_tile = Matrix(block.part(number * PARTITIONS, count).of(input_hbm), staging=staging)
        of_tile.load_transposed(tile_sbuf)


def load_broadcast(dst_sbuf: nl.NkiTensor, vector_hbm: nl.NkiTensor) -> None:
    """Load a value for each class, the same on all partitions: ``dst[p, c]`` becomes element ``c``.

    Args:
        dst_sbuf: the destination, [partitions, classes], float32 or the dtype of the vector.
        vector_hbm: the vector, [classes].
    """
    nisa.dma_copy(dst=dst_sbuf, src=vector_hbm.expand_dim(0).broadcast(0, dst_sbuf.shape[0]))


class _Rows(NamedTuple):
    """A view of some positions of a vector in HBM as rows, one row for each tile of positions.

    Attributes:
        rows_hbm: the rows, [tiles, positions of a tile].
        start, end: the number of the first tile, and of the tile after the last.
    """

    rows_hbm: nl.NkiTensor
    start: int
    end: int


def _rows_of_positions(vector_hbm: nl.NkiTensor) -> list[_Rows]:
    """Return the positions of a vector as up to two views: the whole tiles as rows of 128, and a shorter last tile."""
    positions = vector_hbm.shape[0]
    tiles, rest = divmod(positions, PARTITIONS)
    views: list[_Rows] = []
    if tiles > 0:
        whole_hbm = vector_hbm.slice(0, 0, tiles * PARTITIONS).reshape_dim(0, (tiles, PARTITIONS))
        views.append(_Rows(whole_hbm, 0, tiles))
    if rest > 0:
        rest_hbm = vector_hbm.slice(0, tiles * PARTITIONS, positions).expand_dim(0)
        views.append(_Rows(rest_hbm, tiles, tiles + 1))
    return views


def load_positions(vector_hbm: nl.NkiTensor, fill: float) -> nl.NkiTensor:
    """Load a value for each position, as float32 ``[128, tiles]``; ``[p, t]`` is the value of position ``128 * t + p``.

    DMA loads rows of 128 positions and transposes them. If it loaded values one by one, a DMA engine would take as long
    for each value as for a row.

    Args:
        vector_hbm: the vector, [positions], of 2 or 4 bytes each; a value that float32 cannot hold is rounded.
        fill: the value beyond the last position.
    """
    positions = vector_hbm.shape[0]
    tiles, rest = divmod(positions, PARTITIONS)
    loaded_sbuf = nl.ndarray((PARTITIONS, tiles + (rest > 0)), dtype=vector_hbm.dtype, buffer=nl.sbuf)
    if rest > 0:
        nisa.memset(dst=loaded_sbuf[:, tiles : tiles + 1], value=fill)
    for rows_hbm, start, end in _rows_of_positions(vector_hbm):
        nisa.dma_transpose(dst=loaded_sbuf[0 : rows_hbm.shape[1], start:end], src=rows_hbm)
    return cast(loaded_sbuf, nl.float32)


@dataclass(frozen=True)
class AllPositions:
    """A loader of per-position values, for all positions of a launch at once.

    Attributes:
        fill: the value beyond the last position.
    """

    fill: float = 0.0

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Return the values of a vector [N] as float32 [128, tiles].

        ``dtype`` is ignored; other loaders of the same interface use it.
        """
        return load_positions(vector_hbm, self.fill)


def _transpose(dst_sbuf: nl.NkiTensor, float32_sbuf: nl.NkiTensor) -> None:
    # The copy out of PSUM casts to the dtype of ``dst_sbuf``.
    transposed_psum = nl.ndarray(dst_sbuf.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=float32_sbuf)
    nisa.tensor_copy(dst=dst_sbuf, src=transposed_psum)


def store_positions(vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> list[nisa.NkiInstruction]:
    """Store a value for each position, the reverse of :func:`load_positions`.

    Tensor transposes the tiles, because DMA transposes into SBUF only.

    Args:
        vector_hbm: the destination, [positions], of any dtype; a float32 value is cast to an integer dtype before it is
            stored.
        values_sbuf: the values, float32 [128, tiles], written everywhere.

    Returns:
        The instructions that store.
    """
    stores: list[nisa.NkiInstruction] = []
    for rows_hbm, start, end in _rows_of_positions(vector_hbm):
        for first in range(start, end, PARTITIONS):
            last = min(first + PARTITIONS, end)
            rows_sbuf = nl.ndarray((last - first, PARTITIONS), dtype=vector_hbm.dtype, buffer=nl.sbuf)
            _transpose(rows_sbuf, values_sbuf[:, first:last])
            part_hbm = rows_hbm[first - start : last - start, :]
            stores.append(nisa.dma_copy(dst=part_hbm, src=rows_sbuf[:, 0 : rows_hbm.shape[1]]))
    return stores


@dataclass(frozen=True)
class StoredPositions:
    """The destination of the results of a block of positions.

    Attributes:
        block: the positions.
    """

    block: Block

    @property
    def start(self) -> int:
        """The number of the first tile: always 0, because the view that :meth:`stored` writes begins with these
        positions.
        """
        return 0

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store values at the positions of the block, and return the last instruction that stores.

        Args:
            vector_hbm: the destination, [N].
            values_sbuf: the values, float32 [128, tiles].
        """
        return store_positions(self.block.of(vector_hbm), values_sbuf)[-1]


@dataclass(frozen=True)
class ClassRow:
    """One value for each class of a block, such as its biases.

    Attributes:
        vector_hbm: the values of all classes, [V].
        row_sbuf: the values of a block, float32 [128, classes of a block], the same on all partitions.
        lowest: the value that lower values are raised to; None if they stay as they are.
    """

    vector_hbm: nl.NkiTensor
    row_sbuf: nl.NkiTensor
    lowest: float | None = None

    @classmethod
    def make(cls, vector_hbm: nl.NkiTensor, classes: int, lowest: float | None = None) -> ClassRow:
        """Allocate the row for blocks of at most ``classes`` classes; nothing is loaded yet."""
        row_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
        return cls(vector_hbm, row_sbuf, lowest)

    def load(self, classes: Block, at: int) -> None:
        """Load the values of some classes into the row, from its column ``at`` on."""
        load_broadcast(self.row_sbuf[:, at : at + classes.size], classes.of(self.vector_hbm))

    def raise_lowest(self, at: int, count: int) -> None:
        """Raise the values that are below ``lowest`` to it, in ``count`` columns from column ``at`` on."""
        if self.lowest is not None:
            part_sbuf = self.row_sbuf[:, at : at + count]
            nisa.tensor_scalar(dst=part_sbuf, data=part_sbuf, op0=nl.maximum, operand0=self.lowest)
