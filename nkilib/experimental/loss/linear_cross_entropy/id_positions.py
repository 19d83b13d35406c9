"""Several numbers for each position, [positions, ids] in HBM, as tiles [128, tiles, ids]: those of target ids."""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.rows.tiles import cast
from nkilib.nki import nisa, nl

_PARTITIONS = 128


class _Part(NamedTuple):
    """Positions whose numbers are one transfer.

    Attributes:
        rows_hbm: [partitions, tiles, ids].
        first, end: number of the first tile, and of the one after the last.
    """

    rows_hbm: nl.NkiTensor
    first: int
    end: int


def load_ids(matrix_hbm: nl.NkiTensor, fill: float, columns: int | None = None) -> nl.NkiTensor:
    """The numbers of all positions, float32 ``[128, tiles, columns]``; ``[p, t]`` are those of position ``128 t + p``.

    Args:
        matrix_hbm: [positions, ids], of 4 bytes each; a number that float32 cannot hold is rounded.
        fill: stands beyond the last position and the last id.
        columns: at least as many as ids; None: as many.
    """
    positions, ids = matrix_hbm.shape
    columns = ids if columns is None else columns
    tiles = -(-positions // _PARTITIONS)
    loaded_sbuf = nl.ndarray((_PARTITIONS, tiles, columns), dtype=matrix_hbm.dtype, buffer=nl.sbuf)
    if columns > ids:
        nisa.memset(dst=loaded_sbuf, value=fill)
    elif positions % _PARTITIONS > 0:
        nisa.memset(dst=loaded_sbuf[:, tiles - 1 : tiles], value=fill)
    for part in _parts(matrix_hbm):
        rows = part.rows_hbm.shape[0]
        nisa.dma_copy(dst=loaded_sbuf[0:rows, part.first : part.end, 0:ids], src=part.rows_hbm)
    return cast(loaded_sbuf, nl.float32)


def store_ids(matrix_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
    """The reverse of :func:`load_ids`, from float32 [128, tiles, ids] to a matrix of float32."""
    for part in _parts(matrix_hbm):
        rows = part.rows_hbm.shape[0]
        nisa.dma_copy(dst=part.rows_hbm, src=values_sbuf[0:rows, part.first : part.end])


def one_or_several(matrix_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """A matrix [positions, ids] as it is, or as a vector [positions] where there is one id."""
    return matrix_hbm.select(1, 0) if matrix_hbm.shape[1] == 1 else matrix_hbm


def _parts(matrix_hbm: nl.NkiTensor) -> list[_Part]:
    """Whole tiles of positions, and the rest: views."""
    positions = matrix_hbm.shape[0]
    tiles, rest = divmod(positions, _PARTITIONS)
    found: list[_Part] = []
    if tiles > 0:
        whole_hbm = matrix_hbm.slice(0, 0, tiles * _PARTITIONS).reshape_dim(0, (tiles, _PARTITIONS))
        found.append(_Part(whole_hbm.permute((1, 0, 2)), 0, tiles))
    if rest > 0:
        rest_hbm = matrix_hbm.slice(0, tiles * _PARTITIONS, positions)
        found.append(_Part(rest_hbm.expand_dim(1), tiles, tiles + 1))
    return found
