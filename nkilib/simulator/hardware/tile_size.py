# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.tile_size``: the sizes that bound a tile on the generation that the running kernel targets."""

from __future__ import annotations

from ..terms.objects import NKIObject
from .current import current_generation
from .limits import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS

_FLOAT32_BYTES = 4


class TileSize(NKIObject):
    """The hardware tile sizes (``nki/api/nki.language.tile_size.rst``).

    Attributes:
        pmax: the number of partitions of a tile.
        psum_fmax, psum_bank_fmax: float32 elements of a PSUM bank in a partition (the first name is deprecated).
        psum_bank_fmax_bytes: bytes of a PSUM bank in a partition.
        gemm_stationary_fmax, gemm_moving_fmax: the largest free size of the matmul operands.
        bn_stats_fmax: the largest free size of ``bn_stats``.
        psum_min_align, sbuf_min_align: the alignment, in bytes, of an address in the free dimension.
    """

    pmax = PARTITIONS
    psum_bank_fmax_bytes = PSUM_BANK_BYTES
    psum_bank_fmax = PSUM_BANK_BYTES // _FLOAT32_BYTES
    psum_fmax = psum_bank_fmax
    gemm_stationary_fmax = PARTITIONS
    gemm_moving_fmax = psum_bank_fmax
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_num_banks(self) -> int:
        """The number of PSUM banks of a partition."""
        return PSUM_BANKS

    @property
    def sbuf_size_bytes(self) -> int:
        """The physical bytes of SBUF, all partitions together."""
        return PARTITIONS * current_generation().sbuf_partition_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """The usable bytes of SBUF in a partition."""
        return current_generation().sbuf_usable_bytes

    @property
    def sbuf_fmax(self) -> int:
        """The usable float32 elements of SBUF in a partition."""
        return self.sbuf_fmax_bytes // _FLOAT32_BYTES

    @property
    def total_available_sbuf_size(self) -> int:
        """The usable bytes of SBUF in a partition (deprecated name of :attr:`sbuf_fmax_bytes`)."""
        return self.sbuf_fmax_bytes
