# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the weight, dW = G^T X, summed over positions in PSUM and stored once.

N positions, D features, V classes; X [N, D] is the input, G the gradient of the logits (from :mod:`.gradient_block`),
and dW is [V, D] or [D, V], as the weight W. A *stripe* is a range of features. :class:`WeightGradient` makes groups
(:class:`WeightGroup`) of tiles of dW (:class:`WeightProduct`) that are summed at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.sbuf import Ring
from nkilib.experimental.loss.linear.backward.gradient_block import PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.block_schedule import Block, Span, cut
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class WeightProduct:
    """A tile of dW, summed over tiles of positions in a bank of PSUM.

    Attributes:
        bank_psum: the sum, float32 [rows, columns].
        classes, features: the classes within the block, and the features within the stripe.
        has_classes_first: whether rows are classes and columns are features; else the reverse.
        row_tile: the index of the tile's rows in the group, in tiles of 128 rows.
        first_column: the index of the tile's first column in the group.
    """

    bank_psum: nl.NkiTensor
    classes: Span
    features: Span
    has_classes_first: bool
    row_tile: int
    first_column: int

    def add(self, gradient_sbuf: nl.NkiTensor, input_sbuf: nl.NkiTensor, is_first: bool) -> None:
        """Add the product of G and X for one tile of positions to the sum.

        Args:
            gradient_sbuf: G, [positions of the tile, classes of the block].
            input_sbuf: X, [positions of the tile, features of the stripe].
            is_first: whether the product is stored instead of being added.
        """
        of_classes = gradient_sbuf[:, self.classes.first : self.classes.end]
        of_features = input_sbuf[:, self.features.first : self.features.end]
        nisa.nc_matmul(
            dst=self.bank_psum,
            stationary=of_classes if self.has_classes_first else of_features,
            moving=of_features if self.has_classes_first else of_classes,
            accumulate=not is_first,
        )

    def of(self, group_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of this tile in a tensor in SBUF that holds the whole group."""
        rows, columns = self.bank_psum.shape
        return group_sbuf[0:rows, self.row_tile, self.first_column : self.first_column + columns]


@dataclass(frozen=True)
class WeightGroup:
    """Tiles of dW that are summed in PSUM at the same time and loaded and stored together, because few large transfers
    are fast.

    Attributes:
        products: the tiles.
        place_hbm: the region of dW that the tiles cover, [rows, columns].
        sum_hbm: the same region of the float32 sum that dW is added to; None without such a sum.
        scratch_hbm: the float32 sums of the region over earlier blocks of positions; None for one block of positions.
    """

    products: list[WeightProduct]
    place_hbm: nl.NkiTensor
    sum_hbm: nl.NkiTensor | None
    scratch_hbm: nl.NkiTensor | None


def _transfers(rows_hbm: nl.NkiTensor, tiles_sbuf: nl.NkiTensor) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
    """Return pairs of views: of a matrix in HBM, and of the tensor [128, tiles, columns] that holds its rows.

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
    """The computation of dW; dW of each block of classes is stored once.

    Attributes:
        gradient_hbm: dW, in the layout of W.
        has_classes_first: whether the layout is [V, D].
        sum_hbm: the float32 sum that dW is added to, in the layout of W; it may be ``gradient_hbm``. None without such
            a sum.
        banks_psum: the banks that accumulate tiles of dW, float32 [128, 512].
        results: buffers for a group on its way to HBM, in the dtype of dW.
        sums: float32 buffers of a group, for parts of ``sum_hbm`` and ``scratch_hbm``; empty if both are None.
        scratch_hbm: float32 sums of one block of classes over the blocks of positions so far, in the layout of W; None
            for one block of positions.
        classes_of_tile: the number of classes of a tile of dW if W is [D, V].
        group_tiles: the number of tiles of 128 rows that the buffers of a group have.
        power: the power of two that G is multiplied by; None for 1.
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
        """Allocate the memory that a plan gives to dW.

        Args:
            gradient_hbm, sum_hbm, banks_psum, power: see the class.
        """
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
        """Restart the ring buffers, at the start of a round (a block of classes with a block of positions)."""
        self.results.restart()
        self.sums.restart()

    def groups(self, block: Block, stripe: Span) -> list[WeightGroup]:
        """Return the tiles of dW of a block of classes and a stripe of features, in groups that fit PSUM."""
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
        """Return the group with the given rows and columns of dW.

        Args:
            block: the block of classes.
            rows, columns: the ranges of the group; classes are counted within the block, features from the first
                feature of W.
            row_tiles, column_tiles: the tiles of the group; classes are counted within the block, features within the
                stripe.
        """
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
        """Load a group's parts of ``scratch_hbm`` and ``sum_hbm``, which :meth:`finish` adds, and return the buffers.

        Before the last block of positions, nothing is loaded, and the result is empty. Call this when the products of
        the group begin, so that the values arrive in time.

        Args:
            is_first, is_last: whether the block of positions is the first or last one.
        """
        if not is_last:
            return []
        earlier_hbm = [None if is_first else group.scratch_hbm, group.sum_hbm]
        return [self._loaded(rows_hbm) for rows_hbm in earlier_hbm if rows_hbm is not None]

    def finish(self, group: WeightGroup, loaded_sbuf: list[nl.NkiTensor], is_first: bool, is_last: bool) -> None:
        """Store the sums of a group over a block of positions.

        Before the last block of positions, the sums are stored in ``scratch_hbm`` or added to it. The sums of the last
        block are added to the loaded values, rounded once and stored in dW.

        Args:
            loaded_sbuf: the values that :meth:`load_earlier` has loaded.
            is_first, is_last: whether the block of positions is the first or last one.
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
        wide_sbuf = self.sums.next_tile()
        for product in group.products:
            self._sum(product.of(wide_sbuf), product.bank_psum, [])
        for place_hbm, tile_sbuf in _transfers(scratch_hbm, wide_sbuf):
            if is_first:
                nisa.dma_copy(dst=place_hbm, src=tile_sbuf)
            else:
                nisa.dma_compute(dst=place_hbm, srcs=[place_hbm, tile_sbuf], reduce_op=nl.add)

    def _loaded(self, rows_hbm: nl.NkiTensor) -> nl.NkiTensor:
        wide_sbuf = self.sums.next_tile()
        for place_hbm, tile_sbuf in _transfers(rows_hbm, wide_sbuf):
            nisa.dma_copy(dst=tile_sbuf, src=place_hbm)
        return wide_sbuf

    def _sum(self, dst_sbuf: nl.NkiTensor, sum_psum: nl.NkiTensor, earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Store ``sum_psum`` divided by the power of two, plus the earlier values, which may be overwritten."""
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
