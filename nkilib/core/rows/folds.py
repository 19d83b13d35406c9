# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Maxima of chunks that GpSimd folds until few elements are left, whose maximum Vector takes.

Vector takes a maximum at one element a cycle. Where Vector has another pass over each chunk, as for an entropy, and
GpSimd has little to do, GpSimd compares the two halves of a chunk, then the halves of the result, and so on. A maximum
is exact in the type of its elements, so the order of the comparisons makes no difference, and a NaN stays a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sbuf import DividedSbuf, SbufPlan, dtype_bytes
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

# Halvings of a chunk. GpSimd is modelled to take two cycles for an element of a result: as much time as the other
# passes of Vector take, in bfloat16.
_HALVINGS = 3
# Folded chunks that wait for Vector.
_RING_TILES = 3
# Shorter chunks are left to Vector: GpSimd would have as many pauses.
_COLUMNS_MIN = 1024


@dataclass(frozen=True)
class MaximumFolds:
    """The tiles that chunks are folded into.

    Attributes:
        halves_sbuf: the result of every fold except the last, in the type of the chunks, [rows, half a chunk].
        folded_sbuf: the results of the last fold, [rows, an eighth of a chunk]; a ring buffer over the chunks.
    """

    halves_sbuf: nl.NkiTensor
    folded_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, plan: SbufPlan, sbuf: DividedSbuf) -> MaximumFolds | None:
        """Allocate the tiles for the chunks of a divided plan; None if the chunks are short or leave no room."""
        half, folded = (div_ceil(sbuf.chunk_size, 2**times) for times in (1, _HALVINGS))
        needed_bytes = (half + _RING_TILES * folded) * dtype_bytes(sbuf.dtype)
        if sbuf.chunk_size < _COLUMNS_MIN or needed_bytes > plan.bytes_that_fit - sbuf.taken_bytes(plan):
            return None
        halves_sbuf = nl.ndarray((sbuf.rows, half), dtype=sbuf.dtype, buffer=nl.sbuf)
        shape = (sbuf.rows, folded)
        return cls(halves_sbuf, [nl.ndarray(shape, dtype=sbuf.dtype, buffer=nl.sbuf) for _ in range(_RING_TILES)])

    def folded(self, load: int, chunk_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Fold chunk number ``load`` and return the result, [rows, columns], which holds the largest value of each row.

        The first chunk stays as it is, because Vector has nothing else to do yet.
        """
        rows, columns = chunk_sbuf.shape
        if load == 0 or columns < _COLUMNS_MIN:
            return chunk_sbuf
        source_sbuf = chunk_sbuf
        for halving in range(1, _HALVINGS + 1):
            left = div_ceil(columns, 2)
            tile_sbuf = self.halves_sbuf
            if halving == _HALVINGS:
                tile_sbuf = self.folded_sbuf[load % len(self.folded_sbuf)]
            dst_sbuf = tile_sbuf[0:rows, 0:left]
            nisa.tensor_tensor(
                dst=dst_sbuf,
                data1=source_sbuf[:, 0:left],
                data2=source_sbuf[:, columns - left : columns],  # for an odd number, one element twice
                op=nl.maximum,
                engine=nisa.engine.gpsimd,
            )
            source_sbuf, columns = dst_sbuf, left
        return source_sbuf
