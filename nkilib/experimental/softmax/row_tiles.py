"""Tiles that pieces of rows take in turn, and the maximum of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkilib.experimental.softmax.row_plan import PARTITIONS
from nkilib.nki import nisa, nl


def buffers(count: int, size: int, dtype: nl.DType, buffer: nl.MemoryRegion = nl.sbuf) -> list[nl.NkiTensor]:
    """So many tiles [128, size]."""
    return [nl.ndarray((PARTITIONS, size), dtype=dtype, buffer=buffer) for _ in range(count)]


@dataclass
class Ring:
    """Tiles of scratch that are taken in turn.

    Attributes:
        tiles: [128, size] each.
        taken: how often one was taken.
    """

    tiles: list[nl.NkiTensor]
    taken: int = 0

    @classmethod
    def make(cls, count: int, size: int, dtype: nl.DType, buffer: nl.MemoryRegion = nl.sbuf) -> Ring:
        """So many tiles; none where a loop needs none."""
        return cls(buffers(count, size, dtype, buffer))

    def next(self, shape: tuple[int, ...]) -> nl.NkiTensor:
        """The one that was taken longest ago, as [partitions, ...]."""
        tile = self.tiles[self.taken % len(self.tiles)]
        self.taken += 1
        return tile[0 : shape[0], 0 : prod(shape[1:])].reshape(shape)


def negated_maximum(dst_sbuf: nl.NkiTensor, x_sbuf: nl.NkiTensor, halved_rows: int, halves: Ring) -> None:
    """-max of the rows of [partitions, rows, columns], into [partitions, rows, 1].

    Args:
        dst_sbuf: where to.
        x_sbuf: the rows.
        halved_rows: of so many rows of a partition GpSimd takes the larger one of each two elements first: Vector, which
            alone takes the maximum of a row, then goes over half as many. A maximum is exact, so no bit depends on it.
        halves: for them, of the type of the rows.
    """
    partitions, rows, columns = x_sbuf.shape
    if halved_rows:
        half = columns // 2
        halves_sbuf = halves.next((partitions, halved_rows, half))
        halved_sbuf = x_sbuf[:, 0:halved_rows]
        nisa.tensor_tensor(
            dst=halves_sbuf,
            data1=halved_sbuf[:, :, 0:half],
            data2=halved_sbuf[:, :, half:columns],
            op=nl.maximum,
            engine=nisa.engine.gpsimd,
        )
        _reduce(dst_sbuf[:, 0:halved_rows], halves_sbuf)
    if halved_rows < rows:
        _reduce(dst_sbuf[:, halved_rows:rows], x_sbuf[:, halved_rows:rows])


def _reduce(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor) -> None:
    nisa.tensor_reduce(dst=dst_sbuf, op=nl.maximum, data=data_sbuf, axis=2, negate=True, keepdims=True)
