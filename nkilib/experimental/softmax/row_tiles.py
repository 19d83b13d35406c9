# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles that pieces of rows use round-robin, and the maximum of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl


def buffers(count: int, size: int, dtype: nl.DType, buffer: nl.MemoryRegion = nl.sbuf) -> list[nl.NkiTensor]:
    """Allocate ``count`` tiles [128, size]."""
    return [nl.ndarray((PARTITIONS, size), dtype=dtype, buffer=buffer) for _ in range(count)]


@dataclass
class Ring:
    """A ring buffer of scratch tiles.

    Attributes:
        tiles: the tiles, [128, size] each.
        taken: the number of times that a tile was taken.
    """

    tiles: list[nl.NkiTensor]
    taken: int = 0

    @classmethod
    def make(cls, count: int, size: int, dtype: nl.DType, buffer: nl.MemoryRegion = nl.sbuf) -> Ring:
        """Allocate ``count`` tiles; 0 if a loop needs none."""
        return cls(buffers(count, size, dtype, buffer))

    def next(self, shape: tuple[int, ...]) -> nl.NkiTensor:
        """Return the tile that was taken longest ago, in the given shape [partitions, ...]."""
        tile = self.tiles[self.taken % len(self.tiles)]
        self.taken += 1
        return tile[0 : shape[0], 0 : prod(shape[1:])].reshape(shape)


def halved(x_sbuf: nl.NkiTensor, halves: Ring) -> nl.NkiTensor:
    """Compute the maximum of each pair of elements of the rows of [partitions, rows, columns], on GpSimd.

    Vector, the only engine that computes the maximum of a row, then reads half as many elements. A maximum is exact, so
    no bit depends on it.
    """
    partitions, rows, columns = x_sbuf.shape
    half = div_ceil(columns, 2)  # the middle one of an odd number is in both halves
    halves_sbuf = halves.next((partitions, rows, half))
    nisa.tensor_tensor(
        dst=halves_sbuf,
        data1=x_sbuf[:, :, 0:half],
        data2=x_sbuf[:, :, columns - half : columns],
        op=nl.maximum,
        engine=nisa.engine.gpsimd,
    )
    return halves_sbuf


def negated_maximum(dst_sbuf: nl.NkiTensor, x_sbuf: nl.NkiTensor, halves_sbuf: nl.NkiTensor | None) -> None:
    """Compute -max of the rows of [partitions, rows, columns], into [partitions, rows, 1].

    Args:
        dst_sbuf: the destination.
        x_sbuf: the rows.
        halves_sbuf: the result of :func:`halved` for the first of the rows; None if no row was halved.
    """
    of_halves = 0 if halves_sbuf is None else halves_sbuf.shape[1]
    if halves_sbuf is not None:
        _reduce(dst_sbuf[:, 0:of_halves], halves_sbuf)
    if of_halves < x_sbuf.shape[1]:
        _reduce(dst_sbuf[:, of_halves:], x_sbuf[:, of_halves:])


def _reduce(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor) -> None:
    nisa.tensor_reduce(dst=dst_sbuf, op=nl.maximum, data=data_sbuf, axis=2, negate=True, keepdims=True)
