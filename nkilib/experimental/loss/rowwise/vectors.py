"""Numbers of the rows of a group, in HBM and on chip.

Where a partition of a tile has one row, the numbers of a tile are a line in HBM and a column on chip: Tensor turns the
lines of all tiles of a group at once, and a transfer has lines of 512 bytes instead of single numbers.
"""

from __future__ import annotations

from nkilib.experimental.loss.rowwise.geometry import RowGroup
from nkilib.nki import nisa, nl


def loaded_rows(vector_hbm: nl.NkiTensor, group: RowGroup) -> nl.NkiTensor:
    """Those of a vector [N] of a floating type, as float32 [partitions, rows]."""
    values_sbuf = nl.ndarray((group.partitions, group.rows), dtype=nl.float32, buffer=nl.sbuf)
    if group.tiles[0].each == 1:
        lines_sbuf = _load((len(group.tiles), group.partitions), group.lines_of(vector_hbm))
        nisa.tensor_copy(dst=values_sbuf, src=_turned(lines_sbuf))
        return values_sbuf
    for place, tile in enumerate(group.tiles):
        start, end = group.columns(place)
        part_sbuf = _load((tile.partitions, tile.each), tile.of_vector(vector_hbm))
        nisa.tensor_copy(dst=values_sbuf[:, start:end], src=part_sbuf)
    return values_sbuf


def store_rows(vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor, group: RowGroup) -> None:
    """Float32 numbers [partitions, rows] as those of a vector [N] of any floating type."""
    if group.tiles[0].each == 1:
        lines_sbuf = _cast(_turned(values_sbuf), vector_hbm.dtype)
        nisa.dma_copy(dst=group.lines_of(vector_hbm), src=lines_sbuf)
        return
    cast_sbuf = _cast(values_sbuf, vector_hbm.dtype)
    for place, tile in enumerate(group.tiles):
        start, end = group.columns(place)
        nisa.dma_copy(dst=tile.of_vector(vector_hbm), src=cast_sbuf[:, start:end])


def _load(shape: tuple[int, int], src_hbm: nl.NkiTensor) -> nl.NkiTensor:
    loaded_sbuf = nl.ndarray(shape, dtype=src_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded_sbuf, src=src_hbm)
    return loaded_sbuf if src_hbm.dtype == nl.float32 else _cast(loaded_sbuf, nl.float32)


def _cast(values: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """A copy in SBUF."""
    cast_sbuf = nl.ndarray(values.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=cast_sbuf, src=values)
    return cast_sbuf


def _turned(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Float32, its rows as columns, in PSUM."""
    rows, columns = values_sbuf.shape
    turned_psum = nl.ndarray((columns, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_psum, data=values_sbuf)
    return turned_psum
