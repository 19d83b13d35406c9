# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Chunks that GpSimd folds until little of them is left for Vector, which takes the maximum of what is left.

Vector takes a maximum at one element a cycle. Where it has another pass over each chunk, as for an entropy, and GpSimd
little to do, GpSimd compares the halves of a chunk, then those of what is left, and so on. A maximum is exact in the
type of its elements, so that the order of the comparisons makes no difference, and a NaN stays one.
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
_TURNS = 3
# Shorter chunks are Vector's own: GpSimd would pause as often.
_COLUMNS_MIN = 1024


@dataclass(frozen=True)
class MaximumFolds:
    """The tiles that chunks are folded into.

    Attributes:
        halves_sbuf: of the type of the chunks, [rows, half a chunk], for what is folded further.
        folded_sbuf: [rows, an eighth of a chunk], which chunks take in turn.
    """

    halves_sbuf: nl.NkiTensor
    folded_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, plan: SbufPlan, sbuf: DividedSbuf) -> MaximumFolds | None:
        """For the chunks of a divided plan; None where they are short or leave no room."""
        half, folded = (div_ceil(sbuf.chunk_size, 2**times) for times in (1, _HALVINGS))
        taken = (half + _TURNS * folded) * dtype_bytes(sbuf.dtype)
        if sbuf.chunk_size < _COLUMNS_MIN or taken > plan.bytes_that_fit - sbuf.taken_bytes(plan):
            return None
        halves_sbuf = nl.ndarray((sbuf.rows, half), dtype=sbuf.dtype, buffer=nl.sbuf)
        shape = (sbuf.rows, folded)
        return cls(halves_sbuf, [nl.ndarray(shape, dtype=sbuf.dtype, buffer=nl.sbuf) for _ in range(_TURNS)])

    def folded(self, load: int, chunk_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Elements of chunk number ``load``, [rows, columns], among which those of the largest value are.

        The first chunk stays as it is: Vector has nothing else to do yet.
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
                data2=source_sbuf[:, columns - left : columns],  # of an odd number, one element twice
                op=nl.maximum,
                engine=nisa.engine.gpsimd,
            )
            source_sbuf, columns = dst_sbuf, left
        return source_sbuf
