# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operands of another type than that of the products: how they are rounded to it.

``dma_copy`` casts what it copies, through float32, and ``dma_transpose`` casts nothing (nki/api/nki/isa/__init__.py).
So what is transposed comes on chip in its own type, in small tiles that take turns, and GpSimd, which has little else
to do, casts it into its place. No copy of W stands in HBM.

The backward loads X for each block of classes, as it is and transposed. There a copy of X in HBM, which is rounded
once, saves more than it costs. So does one of the bias, which is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from nkilib.core.cores import meet
from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.experimental.loss.linear.shared.sizes import STAGED_ELEMENTS, STAGES
from nkilib.nki import nisa, nl

Operands = TypeVar("Operands", bound=LinearOperands)


@dataclass(frozen=True)
class Staging:
    """Tiles between a transpose by DMA and a cast.

    Attributes:
        memory: of the tiles, float32 [128, elements]; an operand of 16 bits takes its tiles as views.
    """

    memory: Ring

    @classmethod
    def make(cls, staging_bytes: int) -> Staging | None:
        """In so many bytes of a partition; None for 0."""
        if staging_bytes == 0:
            return None
        columns = staging_bytes // STAGES // FLOAT32_BYTES
        return cls(Ring.of_sbuf(STAGES, (PARTITIONS, columns), nl.float32))

    def transpose(self, dst_sbuf: nl.NkiTensor, src_hbm: nl.NkiTensor) -> None:
        """``dst[p, k, r]`` becomes ``src[r, k, p]``, rounded to the type of ``dst``.

        Args:
            dst_sbuf: [partitions, tiles, rows], of at most 1,024 rows: a transfer has as many tiles as a staged one
                has room for.
            src_hbm: [rows, tiles, partitions].
        """
        partitions, tiles, rows = dst_sbuf.shape
        most = STAGED_ELEMENTS // rows
        for first in range(0, tiles, most):
            end = min(first + most, tiles)
            staged_sbuf = self.memory.next_tile().view(src_hbm.dtype)[0:partitions, 0 : (end - first) * rows]
            staged_sbuf = staged_sbuf.reshape_dim(1, (end - first, rows))
            nisa.dma_transpose(dst=staged_sbuf, src=src_hbm.slice(1, first, end))
            nisa.tensor_copy(dst=dst_sbuf[:, first:end, :], src=staged_sbuf, engine=nisa.engine.gpsimd)


def with_rounded_bias(launch: Operands, prefix: str = "") -> Operands:
    """With a bias of the type of the products; where it has another one, each core makes itself a copy in HBM.

    Without a ``compute_dtype`` the bias stays as it is. ``prefix`` tells the copies of several models apart.
    """
    bias_hbm = launch.bias_hbm
    if launch.compute_dtype is None or bias_hbm is None or bias_hbm.dtype == launch.dtype:
        return launch
    rounded_hbm = nl.ndarray(
        tuple(bias_hbm.shape), dtype=launch.dtype, buffer=nl.private_hbm, name=f"rounded_{prefix}bias_hbm"
    )
    nisa.dma_copy(dst=rounded_hbm, src=bias_hbm)
    return replace(launch, bias_hbm=rounded_hbm)


def with_rounded_input(launch: Operands, prefix: str = "") -> Operands:
    """With X in the type of the products; where it has another one, the cores share a copy in HBM, half each.

    ``prefix`` tells the copies of several models apart.
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
    meet(rounded_hbm)
    return replace(launch, input_hbm=rounded_hbm)
