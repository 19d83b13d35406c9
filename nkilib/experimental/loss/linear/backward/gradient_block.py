# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A block of the gradient of the logits, in SBUF as it is and transposed; dX, dW and db are computed from it."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import cut
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class GradientBlock:
    """A block of the gradient of the logits, in the type of the products.

    Attributes:
        plain_sbuf: positions on partitions, [128, tiles of positions, classes].
        transposed_sbuf: classes on partitions, [128, tiles of classes, positions]; None if nothing needs it.
    """

    plain_sbuf: nl.NkiTensor
    transposed_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, plan: BackwardPlan, dtype: nl.DType, with_transposed: bool) -> GradientBlock:
        """Allocate a block; nothing is written yet."""
        positions, classes = plan.position_tiles * PARTITIONS, plan.class_tiles * PARTITIONS
        plain_sbuf = nl.ndarray((PARTITIONS, plan.position_tiles, classes), dtype=dtype, buffer=nl.sbuf)
        transposed_sbuf = None
        if with_transposed:
            transposed_sbuf = nl.ndarray((PARTITIONS, plan.class_tiles, positions), dtype=dtype, buffer=nl.sbuf)
        return cls(plain_sbuf, transposed_sbuf)

    @property
    def classes_first_sbuf(self) -> nl.NkiTensor:
        """The transposed block, for callers that have requested it."""
        if self.transposed_sbuf is None:
            raise AssertionError("GradientBlock: dX and db need the transposed block; make it with_transposed=True")
        return self.transposed_sbuf

    def transpose(self, tile: int, rows: int, classes: int, banks: Ring) -> None:
        """Transpose a tile of positions, by Tensor through banks of PSUM.

        A bank takes as many tiles of classes as it holds.
        """
        if self.transposed_sbuf is None:
            return
        dtype = self.plain_sbuf.dtype
        first = tile * PARTITIONS
        most = nl.tile_size.psum_bank_fmax_bytes // (4 if dtype == nl.float32 else 2) // PARTITIONS
        class_tiles = cut(classes, PARTITIONS)
        for start in range(0, len(class_tiles), most):
            part = class_tiles[start : start + most]
            bank_psum = banks.next_tile().view(dtype)
            for place, span in enumerate(part):
                nisa.nc_transpose(
                    dst=bank_psum[0 : span.size, place * PARTITIONS : place * PARTITIONS + rows],
                    data=self.plain_sbuf[0:rows, tile, span.first : span.end],
                    engine=nisa.engine.tensor,
                )
            whole = sum(span.size == PARTITIONS for span in part)
            if whole > 0:
                copied_psum = bank_psum[:, 0 : whole * PARTITIONS].reshape_dim(1, (whole, PARTITIONS))
                nisa.tensor_copy(
                    dst=self.transposed_sbuf[:, start : start + whole, first : first + rows],
                    src=copied_psum[:, :, 0:rows],
                )
            if whole < len(part):
                last, at = part[-1].size, whole * PARTITIONS
                nisa.tensor_copy(
                    dst=self.transposed_sbuf[0:last, start + whole, first : first + rows],
                    src=bank_psum[0:last, at : at + rows],
                )
