"""How the operands of the products come from HBM: matrices in tiles of 128 partitions, and a number for each position.

Tensor contracts over partitions. So the product over the features D wants X and W with the features on partitions,
``[128, ceil(D / 128), rows]``, and the products of the backward want them with the rows there. One of the two is how
the matrix lies in HBM, a ``dma_copy``; the other one a ``dma_transpose``, which moves elements of 2 and of 4 bytes and
casts none (nki/guides/architecture/trainium2_arch.rst, DMA Transpose).
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

PARTITIONS = 128


@dataclass(frozen=True)
class Matrix:
    """A matrix in HBM, or a view of some of it, which may lie there transposed.

    Attributes:
        stored_hbm: ``[rows, columns]``, or ``[columns, rows]`` if it is transposed. A view may start where a loop of
            the device says.
        is_transposed: the layout.
    """

    stored_hbm: nl.NkiTensor
    is_transposed: bool = False

    @property
    def rows(self) -> int:
        """How many."""
        return self.stored_hbm.shape[1 if self.is_transposed else 0]

    @property
    def columns(self) -> int:
        """How many."""
        return self.stored_hbm.shape[0 if self.is_transposed else 1]

    @property
    def dtype(self) -> nl.DType:
        """Of the elements."""
        return self.stored_hbm.dtype

    def rows_of(self, start: int, count: int) -> Matrix:
        """Rows ``start`` to ``start + count``."""
        return self._part(1 if self.is_transposed else 0, start, count)

    def columns_of(self, start: int, count: int) -> Matrix:
        """Columns ``start`` to ``start + count``."""
        return self._part(0 if self.is_transposed else 1, start, count)

    def load(self, dst_sbuf: nl.NkiTensor) -> None:
        """Rows on partitions: ``dst[p, j, c]`` becomes element ``[128 * j + p, c]``.

        Args:
            dst_sbuf: [128, at least ceil(rows / 128), at least columns], of the type of the matrix. What lies beyond
                the matrix is not written.
        """
        _load(dst_sbuf, self.stored_hbm, self.is_transposed)

    def load_transposed(self, dst_sbuf: nl.NkiTensor) -> None:
        """Columns on partitions: ``dst[p, k, r]`` becomes element ``[r, 128 * k + p]``.

        Args:
            dst_sbuf: [128, at least ceil(columns / 128), at least rows], likewise.
        """
        _load(dst_sbuf, self.stored_hbm, not self.is_transposed)

    def _part(self, dimension: int, start: int, count: int) -> Matrix:
        return Matrix(self.stored_hbm.slice(dimension, start, start + count), self.is_transposed)


def _load(dst_sbuf: nl.NkiTensor, stored_hbm: nl.NkiTensor, by_transpose: bool) -> None:
    """The dimension that goes on partitions is cut into whole tiles of 128, one transfer, and a rest, another one."""
    dimension = 1 if by_transpose else 0
    size, free = stored_hbm.shape[dimension], stored_hbm.shape[1 - dimension]
    tiles, rest = divmod(size, PARTITIONS)
    if tiles > 0:
        whole_hbm = stored_hbm.slice(dimension, 0, tiles * PARTITIONS).reshape_dim(dimension, (tiles, PARTITIONS))
        whole_sbuf = dst_sbuf[:, 0:tiles, 0:free]
        if by_transpose:
            nisa.dma_transpose(dst=whole_sbuf, src=whole_hbm)
        else:
            nisa.dma_copy(dst=whole_sbuf, src=whole_hbm.permute((1, 0, 2)))
    if rest > 0:
        rest_hbm = stored_hbm.slice(dimension, tiles * PARTITIONS, size)
        rest_sbuf = dst_sbuf[0:rest, tiles, 0:free]
        if by_transpose:
            nisa.dma_transpose(dst=rest_sbuf, src=rest_hbm)
        else:
            nisa.dma_copy(dst=rest_sbuf, src=rest_hbm)


def load_broadcast(dst_sbuf: nl.NkiTensor, vector_hbm: nl.NkiTensor) -> None:
    """A number for each class, the same on all partitions: ``dst[p, c]`` becomes element ``c``.

    Args:
        dst_sbuf: [partitions, classes], float32 or the type of the vector.
        vector_hbm: [classes].
    """
    nisa.dma_copy(dst=dst_sbuf, src=vector_hbm.expand_dim(0).broadcast(0, dst_sbuf.shape[0]))


def load_positions(vector_hbm: nl.NkiTensor, fill: float) -> nl.NkiTensor:
    """A number for each position, float32 ``[128, tiles]``: element ``[p, t]`` is that of position ``128 * t + p``.

    A DMA engine takes as long for one element as for a row of a hundred. So a tile of positions is loaded as one row,
    and Tensor transposes the rows, which moves bits.

    Args:
        vector_hbm: [positions], of any type of at most 4 bytes; a number that float32 cannot hold is rounded.
        fill: stands beyond the last position.
    """
    positions = vector_hbm.shape[0]
    tiles = div_ceil(positions, PARTITIONS)
    values_sbuf = nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf)
    for start in range(0, tiles, PARTITIONS):
        count = min(PARTITIONS, tiles - start)
        last = min((start + count) * PARTITIONS, positions)
        rows_sbuf = _loaded_rows(vector_hbm.slice(0, start * PARTITIONS, last), count, fill)
        _transpose(values_sbuf[:, start : start + count], rows_sbuf)
    return values_sbuf


def store_positions(vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> list[nisa.NkiInstruction]:
    """The reverse of :func:`load_positions`.

    Args:
        vector_hbm: [positions], of any type; a float32 value is cast to an integer type before it is stored.
        values_sbuf: float32 [128, tiles], written everywhere.

    Returns:
        The stores.
    """
    positions = vector_hbm.shape[0]
    tiles = values_sbuf.shape[1]
    stores: list[nisa.NkiInstruction] = []
    for start in range(0, tiles, PARTITIONS):
        count = min(PARTITIONS, tiles - start)
        rows_sbuf = nl.ndarray((count, PARTITIONS), dtype=vector_hbm.dtype, buffer=nl.sbuf)
        _transpose(rows_sbuf, values_sbuf[:, start : start + count])
        last = min((start + count) * PARTITIONS, positions)
        stores += _transfer_rows(vector_hbm.slice(0, start * PARTITIONS, last), rows_sbuf, is_load=False)
    return stores


def _loaded_rows(vector_hbm: nl.NkiTensor, tiles: int, fill: float) -> nl.NkiTensor:
    """float32 [tiles, 128], row by row the vector, filled up."""
    rows_sbuf = nl.ndarray((tiles, PARTITIONS), dtype=vector_hbm.dtype, buffer=nl.sbuf)
    if vector_hbm.shape[0] % PARTITIONS:
        nisa.memset(dst=rows_sbuf, value=fill)
    _transfer_rows(vector_hbm, rows_sbuf, is_load=True)
    if vector_hbm.dtype == nl.float32:
        return rows_sbuf
    float32_sbuf = nl.ndarray(rows_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=float32_sbuf, src=rows_sbuf)
    return float32_sbuf


def _transfer_rows(vector_hbm: nl.NkiTensor, rows_sbuf: nl.NkiTensor, is_load: bool) -> list[nisa.NkiInstruction]:
    """Between a vector and its rows of 128, of which the last one may be shorter."""
    size = vector_hbm.shape[0]
    tiles, rest = divmod(size, PARTITIONS)
    parts: list[tuple[nl.NkiTensor, nl.NkiTensor]] = []
    if tiles > 0:
        whole_hbm = vector_hbm.slice(0, 0, tiles * PARTITIONS).reshape_dim(0, (tiles, PARTITIONS))
        parts.append((whole_hbm, rows_sbuf[0:tiles, :]))
    if rest > 0:
        rest_hbm = vector_hbm.slice(0, tiles * PARTITIONS, size).expand_dim(0)
        parts.append((rest_hbm, rows_sbuf[tiles : tiles + 1, 0:rest]))
    return [
        nisa.dma_copy(dst=part_sbuf if is_load else part_hbm, src=part_hbm if is_load else part_sbuf)
        for part_hbm, part_sbuf in parts
    ]


def _transpose(dst_sbuf: nl.NkiTensor, float32_sbuf: nl.NkiTensor) -> None:
    """By Tensor, through PSUM, with a cast on the way out."""
    transposed_psum = nl.ndarray(dst_sbuf.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=float32_sbuf)
    nisa.tensor_copy(dst=dst_sbuf, src=transposed_psum)
