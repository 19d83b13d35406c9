# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the weight, dW = G^T X: summed over positions in banks of PSUM, written once for a block of classes.

G is a block of the gradient of the logits, in SBUF as it is and transposed (:class:`GradientBlock`); dX and db are
computed from it too.

:class:`PowerOfTwo` brings a gradient into the range of float16, which has no number below 6e-8: a probability divided
by the number of positions is smaller. The power is found on the device. Multiplying with it rounds nothing, and neither
does removing it in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.sbuf import Ring
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.launch import Block, LinearOperands, Span, cut
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
    """Return the sum over the tiles of each partition's largest magnitude, plus 2^-100, float32 [128, 1]."""
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

    A transpose makes a row of the values, and a product with ones copies its maximum.
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
        """Return the power of two that brings the largest magnitude in some tiles to at least 2^12 and below 2^13.

        ``columns_sbuf`` are the tiles, [128, columns], whose magnitudes must be finite. The largest magnitudes that
        several tiles have in a partition are added up first, together with 2^-100.
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


@dataclass(frozen=True)
class WeightProduct:
    """A tile of dW, as a sum over tiles of positions in a bank of PSUM.

    Attributes:
        bank_psum: the sum, float32 [rows, columns].
        classes, features: the classes within the block, and the features within the stripe.
        has_classes_first: rows are classes and columns are features; else the reverse.
        row_tile: the number of the tile of rows within its group.
        first_column: the first column, counted within the group.
    """

    bank_psum: nl.NkiTensor
    classes: Span
    features: Span
    has_classes_first: bool
    row_tile: int
    first_column: int

    def add(self, gradient_sbuf: nl.NkiTensor, input_sbuf: nl.NkiTensor, is_first: bool) -> None:
        """Add the product of a tile of positions of G, [rows, classes of the block], and of X, [rows, stripe]."""
        of_classes = gradient_sbuf[:, self.classes.first : self.classes.end]
        of_features = input_sbuf[:, self.features.first : self.features.end]
        nisa.nc_matmul(
            dst=self.bank_psum,
            stationary=of_classes if self.has_classes_first else of_features,
            moving=of_features if self.has_classes_first else of_classes,
            accumulate=not is_first,
        )

    def of(self, group_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of this tile in ``group_sbuf``, a tile of the whole group."""
        rows, columns = self.bank_psum.shape
        return group_sbuf[0:rows, self.row_tile, self.first_column : self.first_column + columns]


@dataclass(frozen=True)
class WeightGroup:
    """Tiles of dW that are summed in the banks of PSUM at the same time and moved to or from HBM together.

    Fewer transfers cost less.

    Attributes:
        products: the tiles.
        place_hbm: the place of the tiles in dW, [rows, columns].
        sum_hbm: the float32 values that dW is added to, at this place; None if there are none.
        scratch_hbm: the float32 sums over the earlier blocks of positions, at this place; None if there is one block.
    """

    products: list[WeightProduct]
    place_hbm: nl.NkiTensor
    sum_hbm: nl.NkiTensor | None
    scratch_hbm: nl.NkiTensor | None


def _transfers(rows_hbm: nl.NkiTensor, tiles_sbuf: nl.NkiTensor) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    """Return pairs of views of a matrix in HBM and of the tile [128, tiles, columns] of its rows.

    One pair has the whole tiles, and one the remaining rows.
    """
    rows, columns = rows_hbm.shape
    tiles, rest = divmod(rows, PARTITIONS)
    transfers = []
    if tiles > 0:
        whole_hbm = rows_hbm.slice(0, 0, tiles * PARTITIONS).reshape_dim(0, (tiles, PARTITIONS)).permute((1, 0, 2))
        transfers.append((whole_hbm, tiles_sbuf[:, 0:tiles, 0:columns]))
    if rest > 0:
        transfers.append((rows_hbm.slice(0, tiles * PARTITIONS, rows), tiles_sbuf[0:rest, tiles, 0:columns]))
    return transfers


@dataclass(frozen=True)
class WeightGradient:
    """The gradient dW; each block of classes is written once.

    Attributes:
        gradient_hbm: dW, in the layout of W.
        has_classes_first: whether the layout is [V, D].
        sum_hbm: the float32 sum that dW is added to, in the layout of W; it may be ``gradient_hbm``. None if there is
            none.
        banks_psum: banks for sums, float32 [128, 512].
        results: buffers for a group on its way to HBM, in the dtype of dW.
        sums: float32 buffers for the values that a group is added to; empty if there are none.
        scratch_hbm: float32 sums over blocks of positions, in the layout of W, of a block of classes; None for one
            block of positions.
        classes_of_tile: the classes of a product whose result is [features, classes].
        group_tiles: the number of tiles of 128 rows that the buffers of a group have.
        power: the power of two that the gradient of the logits is scaled by; None for 1.
    """

    gradient_hbm: nl.NkiTensor
    has_classes_first: bool
    sum_hbm: nl.NkiTensor | None
    banks_psum: list[nl.NkiTensor]
    results: Ring
    sums: Ring
    scratch_hbm: nl.NkiTensor | None
    classes_of_tile: int
    group_tiles: int
    power: PowerOfTwo | None

    @classmethod
    def make(
        cls,
        launch: LinearOperands,
        plan: BackwardPlan,
        gradient_hbm: nl.NkiTensor,
        sum_hbm: nl.NkiTensor | None,
        banks_psum: list[nl.NkiTensor],
        power: PowerOfTwo | None,
    ) -> WeightGradient:
        """Allocate the memory of a plan."""
        scratch_hbm = None
        if plan.position_blocks > 1:
            block = (plan.class_tiles * PARTITIONS, launch.num_features)
            if not launch.has_classes_first:
                block = (launch.num_features, plan.class_tiles * PARTITIONS)
            scratch_hbm = nl.ndarray(block, dtype=nl.float32, buffer=nl.private_hbm, name="grad_weight_sums_hbm")
        shape = (PARTITIONS, *plan.weight_group)
        return cls(
            gradient_hbm,
            launch.has_classes_first,
            sum_hbm,
            banks_psum,
            Ring.of_sbuf(plan.buffers.weight_results, shape, gradient_hbm.dtype),
            Ring.of_sbuf(plan.weight_sums, shape, nl.float32),
            scratch_hbm,
            plan.classes_of_tile,
            plan.weight_group[0],
            power,
        )

    def restart(self) -> None:
        """Begin a block: restart the ring buffers."""
        self.results.restart()
        self.sums.restart()

    def groups(self, block: Block, stripe: Span) -> list[WeightGroup]:
        """Return the tiles of a block and a stripe, in groups that fit the banks."""
        if self.has_classes_first:
            groups = []
            for group in cut(block.size, len(self.banks_psum) * PARTITIONS):
                tiles = [Span(group.first + span.first, span.size) for span in cut(group.size, PARTITIONS)]
                groups.append(self._group(block, group, stripe, tiles, [Span(0, stripe.size)]))
            return groups
        classes = cut(block.size, self.classes_of_tile)
        # A block of few classes leaves banks for more tiles than a group of the largest block has.
        most = min(len(self.banks_psum) // len(classes), self.group_tiles)
        groups = []
        for group in cut(stripe.size, most * PARTITIONS):
            tiles = [Span(group.first + span.first, span.size) for span in cut(group.size, PARTITIONS)]
            rows = Span(stripe.first + group.first, group.size)
            groups.append(self._group(block, rows, Span(0, block.size), tiles, classes))
        return groups

    def _group(
        self, block: Block, rows: Span, columns: Span, row_tiles: list[Span], column_tiles: list[Span]
    ) -> WeightGroup:
        """Return the group of some rows and columns, whose tiles are counted within the block and the stripe."""
        products: list[WeightProduct] = []
        for number, row_tile in enumerate(row_tiles):
            for column_tile in column_tiles:
                bank_psum = self.banks_psum[len(products)][0 : row_tile.size, 0 : column_tile.size]
                classes, features = row_tile, column_tile
                if not self.has_classes_first:
                    classes, features = features, classes
                products.append(
                    WeightProduct(bank_psum, classes, features, self.has_classes_first, number, column_tile.first)
                )
        place = slice(rows.first, rows.end), slice(columns.first, columns.end)
        dimension = 0 if self.has_classes_first else 1
        return WeightGroup(
            products,
            block.of(self.gradient_hbm, dimension)[place],
            None if self.sum_hbm is None else block.of(self.sum_hbm, dimension)[place],
            None if self.scratch_hbm is None else self.scratch_hbm[place],
        )

    def load_earlier(self, group: WeightGroup, is_first: bool, is_last: bool) -> list[nl.NkiTensor]:
        """Load the float32 values that a group's sums over the last block of positions are added to.

        They are the sums over the earlier blocks of positions, and the caller's sum. Before the last block there are
        none. The loads are to be requested when the sums begin.
        """
        if not is_last:
            return []
        earlier_hbm = [None if is_first else group.scratch_hbm, group.sum_hbm]
        return [self._loaded(rows_hbm) for rows_hbm in earlier_hbm if rows_hbm is not None]

    def finish(self, group: WeightGroup, loaded_sbuf: list[nl.NkiTensor], is_first: bool, is_last: bool) -> None:
        """Store the sums of a group over a block of positions.

        Before the last block of positions, they are kept in the scratch memory. Those of the last block, added to the
        loaded values, are rounded once and stored in dW. ``is_first`` and ``is_last`` say whether the block is the
        first or last.
        """
        if not is_last and group.scratch_hbm is not None:
            self._keep(group, group.scratch_hbm, is_first)
            return
        result_sbuf = self.results.next_tile()
        for product in group.products:
            earlier_sbuf = [product.of(tile_sbuf) for tile_sbuf in loaded_sbuf]
            self._sum(product.of(result_sbuf), product.bank_psum, earlier_sbuf)
        for place_hbm, tile_sbuf in _transfers(group.place_hbm, result_sbuf):
            nisa.dma_copy(dst=place_hbm, src=tile_sbuf)

    def _keep(self, group: WeightGroup, scratch_hbm: nl.NkiTensor, is_first: bool) -> None:
        """Store the sums of a group in the scratch memory, or add them to the sums there."""
        wide_sbuf = self.sums.next_tile()
        for product in group.products:
            self._sum(product.of(wide_sbuf), product.bank_psum, [])
        for place_hbm, tile_sbuf in _transfers(scratch_hbm, wide_sbuf):
            if is_first:
                nisa.dma_copy(dst=place_hbm, src=tile_sbuf)
            else:
                nisa.dma_compute(dst=place_hbm, srcs=[place_hbm, tile_sbuf], reduce_op=nl.add)

    def _loaded(self, rows_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Load float32 rows of a group."""
        wide_sbuf = self.sums.next_tile()
        for place_hbm, tile_sbuf in _transfers(rows_hbm, wide_sbuf):
            nisa.dma_copy(dst=tile_sbuf, src=place_hbm)
        return wide_sbuf

    def _sum(self, dst_sbuf: nl.NkiTensor, sum_psum: nl.NkiTensor, earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Write a sum of products divided by the power of two, plus the earlier values, which are overwritten."""
        inverse: float | nl.NkiTensor = 1.0
        if self.power is not None:
            inverse = self.power.inverse_sbuf[0 : dst_sbuf.shape[0], :]
        if not earlier_sbuf:
            if self.power is None:
                nisa.tensor_copy(dst=dst_sbuf, src=sum_psum)
            else:
                nisa.tensor_scalar(dst=dst_sbuf, data=sum_psum, op0=nl.multiply, operand0=inverse)
            return
        first_sbuf, *others_sbuf = earlier_sbuf
        nisa.scalar_tensor_tensor(
            dst=first_sbuf if others_sbuf else dst_sbuf,
            data=sum_psum,
            op0=nl.multiply,
            operand0=inverse,
            op1=nl.add,
            operand1=first_sbuf,
        )
        for other_sbuf in others_sbuf:
            nisa.tensor_tensor(dst=dst_sbuf, data1=first_sbuf, data2=other_sbuf, op=nl.add)
