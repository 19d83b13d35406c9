# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rounding of operands whose type differs from that of the products.

``dma_copy`` casts data that it copies, through float32, and ``dma_transpose`` casts nothing
(nki/api/nki/isa/__init__.py). So an operand that is transposed comes on chip in its own type, in small tiles that are
used round-robin, and GpSimd, which has little else to do, casts it into its place. No copy of W is in HBM.

The backward loads X for each block of classes, as it is and transposed. There a copy of X in HBM, which is rounded
once, saves more than it costs. A bias is no operand of a product: it is added in float32, and never rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from nkilib.core.cores import synchronise
from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.experimental.loss.linear.shared.sizes import STAGED_ELEMENTS, STAGES
from nkilib.nki import nisa, nl

Operands = TypeVar("Operands", bound=LinearOperands)


@dataclass(frozen=True)
class Staging:
    """The tiles that DMA transposes an operand into, and that GpSimd casts it from.

    Attributes:
        memory: the ring buffer of tiles, float32 [128, elements]; an operand of 16 bits uses views of the tiles.
    """

    memory: Ring

    @classmethod
    def make(cls, staging_bytes: int) -> Staging | None:
        """Allocate tiles of ``staging_bytes`` bytes per partition in total; None for 0."""
        if staging_bytes == 0:
            return None
        columns = staging_bytes // STAGES // FLOAT32_BYTES
        return cls(Ring.of_sbuf(STAGES, (PARTITIONS, columns), nl.float32))

    def transpose(self, dst_sbuf: nl.NkiTensor, src_hbm: nl.NkiTensor) -> None:
        """Transpose and cast: ``dst[p, k, r]`` becomes ``src[r, k, p]``, rounded to the type of ``dst``.

        Args:
            dst_sbuf: the destination, [partitions, tiles, rows], of at most 1,024 rows: a transfer has as many tiles as
                a staged one has room for.
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
    """Return the operands with X in the type of the products; for an X of another type the cores share a copy in HBM.

    Each core rounds half of the copy. ``prefix`` distinguishes the copies of several models.
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
