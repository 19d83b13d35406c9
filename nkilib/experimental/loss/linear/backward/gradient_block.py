# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A block of G, the gradient of the logits, in SBUF, as it is and transposed, and the power of two that scales it.

:class:`GradientBlock` holds the block, from which dX, dW and db (the gradients of X, W and the bias) are computed.
:class:`PowerOfTwo` scales G into the range of float16, which has no number below 6e-8: a probability divided by the
number of positions may be smaller. The power is computed on the device. Multiplying by a power of two rounds nothing,
and neither does dividing by it in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.sbuf import Ring
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.block_schedule import cut
from nkilib.nki import nisa, nl

# The largest coefficient becomes 2^12 to 2^13: a gradient of a few times that stays below 65,504.
_LARGEST_EXPONENT = 12
# Smaller coefficients count as 2^-100, so that the power is a float32 number.
_LEAST = 2.0**-100
_MANTISSA_BITS = 23
_EXPONENT_MASK = 0x7F800000
_MAGNITUDE_MASK = 0x7FFFFFFF
# This number minus the bits of 2^a gives the bits of 2^-a.
_BITS_OF_ONE_TWICE = 2 * 127 << _MANTISSA_BITS


def _largest_of_rows(columns_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
    """Return a bound on the magnitudes in each partition, float32 [128, 1]: the largest magnitude of each tile, summed
    over the tiles, plus 2^-100, so that it is never 0.
    """
    total_sbuf = nl.ndarray((columns_sbuf[0].shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total_sbuf, value=_LEAST)
    for values_sbuf in columns_sbuf:
        bits_sbuf, part_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf), float32_like(total_sbuf)
        nisa.tensor_scalar(dst=bits_sbuf, data=values_sbuf.view(nl.int32), op0=nl.bitwise_and, operand0=_MAGNITUDE_MASK)
        nisa.tensor_reduce(dst=part_sbuf, op=nl.maximum, data=bits_sbuf.view(nl.float32), axis=1)
        nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=part_sbuf, op=nl.add)
    return total_sbuf


def _over_partitions(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the largest of the values [128, 1], the same on all partitions.

    A transpose makes a row of the values, and a product with ones copies the maximum of the row to all partitions.
    """
    rows = values_sbuf.shape[0]
    row_psum = nl.ndarray((1, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=row_psum, data=values_sbuf)
    largest_sbuf = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=largest_sbuf, op=nl.maximum, data=row_psum, axis=1)
    ones_sbuf = nl.ndarray((1, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0)
    copies_psum = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=copies_psum, stationary=ones_sbuf, moving=largest_sbuf)
    copies_sbuf = float32_like(values_sbuf)
    nisa.tensor_copy(dst=copies_sbuf, src=copies_psum)
    return copies_sbuf


@dataclass(frozen=True)
class PowerOfTwo:
    """A power of two and its inverse, float32 [128, 1], the same on all partitions.

    Attributes:
        factor_sbuf: the power.
        inverse_sbuf: 1 / the power.
    """

    factor_sbuf: nl.NkiTensor
    inverse_sbuf: nl.NkiTensor

    @classmethod
    def of_largest(cls, columns_sbuf: list[nl.NkiTensor]) -> PowerOfTwo:
        """Return the power of two that scales the largest magnitude of some tiles to at least 2^12 and below 2^13.

        Args:
            columns_sbuf: the tiles, float32 [128, columns], with finite values. If there are several, the magnitude of
                a partition is the sum over the tiles of the largest magnitude there.
        """
        largest_sbuf = _over_partitions(_largest_of_rows(columns_sbuf))
        bits_sbuf = nl.ndarray(largest_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=bits_sbuf, data=largest_sbuf.view(nl.int32), op0=nl.bitwise_and, operand0=_EXPONENT_MASK)
        # 2^floor(log2(largest)) times 2^-12 removes the power again.
        inverse_sbuf, factor_sbuf = float32_like(largest_sbuf), float32_like(largest_sbuf)
        nisa.tensor_scalar(
            dst=inverse_sbuf, data=bits_sbuf.view(nl.float32), op0=nl.multiply, operand0=2.0**-_LARGEST_EXPONENT
        )
        ones_sbuf = int32_column(largest_sbuf.shape[0], _BITS_OF_ONE_TWICE, 0)
        integer_op(factor_sbuf.view(nl.int32), ones_sbuf, inverse_sbuf.view(nl.int32), nl.subtract)
        return cls(factor_sbuf, inverse_sbuf)


@dataclass(frozen=True)
class GradientBlock:
    """A block of G in the dtype of the products.

    Attributes:
        plain_sbuf: G with positions on partitions, [128, tiles of positions, classes].
        transposed_sbuf: G with classes on partitions, [128, tiles of classes, positions]; None if neither dX nor db
            needs it.
    """

    plain_sbuf: nl.NkiTensor
    transposed_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, plan: BackwardPlan, dtype: nl.DType, with_transposed: bool) -> GradientBlock:
        """Allocate a block, uninitialized.

        Args:
            plan: the plan, which has the sizes of the block.
            dtype: the dtype of the products.
            with_transposed: whether ``transposed_sbuf`` is allocated.
        """
        positions, classes = plan.position_tiles * PARTITIONS, plan.class_tiles * PARTITIONS
        plain_sbuf = nl.ndarray((PARTITIONS, plan.position_tiles, classes), dtype=dtype, buffer=nl.sbuf)
        transposed_sbuf = None
        if with_transposed:
            transposed_sbuf = nl.ndarray((PARTITIONS, plan.class_tiles, positions), dtype=dtype, buffer=nl.sbuf)
        return cls(plain_sbuf, transposed_sbuf)

    @property
    def classes_first_sbuf(self) -> nl.NkiTensor:
        """The transposed block.

        Raises:
            AssertionError: if the block was made without it.
        """
        if self.transposed_sbuf is None:
            raise AssertionError("GradientBlock: dX and db need the transposed block; make it with_transposed=True")
        return self.transposed_sbuf

    def transpose(self, tile: int, rows: int, classes: int, banks: Ring) -> None:
        """Transpose one tile of positions from ``plain_sbuf`` into ``transposed_sbuf``, on Tensor.

        Without ``transposed_sbuf``, do nothing.

        Args:
            tile: the number of the tile of positions.
            rows: the number of positions of the tile.
            classes: the number of classes of the block.
            banks: the banks of PSUM that take the transposes; a bank takes as many tiles of 128 classes as it can hold.
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
