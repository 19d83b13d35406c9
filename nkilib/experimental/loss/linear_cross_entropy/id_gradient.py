# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the log-probabilities of several target ids per position, with respect to the logits.

N positions, K target ids per position, K' is K rounded up to a multiple of 8. With upstream gradients g_k of the ids
t_k and the softmax p, the gradient for class v is ``sum_k g_k 1[t_k = v] - p_v sum_k g_k``. The first term is a tile
that is 0 except at few classes (:class:`IdTiles`), the second a coefficient of p (:class:`IdGradient`). Both are
float32, so that the terms of a confident id cancel before the only rounding.

Once per launch the ids of a position are sorted, equal ids are joined into one with the sum of their gradients, and
each gets an index into a table of gradients (:class:`IdColumns`). For a tile of classes, Vector compares the class
numbers 0, 1, 2, ... with eight ids at a time and marks those that are ids. A running sum of the marks, which starts at
the number of ids below the tile, gives the table index of each class. So a tile costs K / 8 passes of Vector and a few
more, instead of two passes per id. GpSimd gathers the gradients from the table when the tile is computed.

The table indices of the next block are computed while Tensor multiplies a block of gradients with W and X, when Vector
has little to do, and are kept in one byte each. ``nc_match_replace8`` searches for ids among the class numbers of a
tile, and is not defined for an id that it does not find. So the ids are appended to the class numbers that it searches.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.tiles import FLOAT32_LOWEST, float32_like, product, scaled, selected
from nkilib.experimental.loss.cross_entropy.coefficients import loaded_gradient, rest_terms, summed
from nkilib.experimental.loss.cross_entropy.launch import Options, PositionUpstream
from nkilib.experimental.loss.linear.backward.gradient_block import PowerOfTwo
from nkilib.experimental.loss.linear.block_schedule import IDS_OF_SEARCH, searched_ids
from nkilib.experimental.loss.linear.operands import AllPositions
from nkilib.experimental.loss.linear_cross_entropy.gradient_columns import Exponents, GradientColumns
from nkilib.experimental.loss.linear_cross_entropy.launch import ID_SLOTS, LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.targets import load_ids
from nkilib.nki import nisa, nl

_MARK = -1.0

# Replacements of repeated ids of a position: numbers beyond all classes, which stay different in float32 whatever
# class is subtracted from them.
_FIRST_STAND_IN, _NEXT_STAND_IN = 2**25, 256
# Numbers per partition that are sorted at a time.
_SORTED_AT_A_TIME = 1024
_GPSIMD = nisa.engine.gpsimd


@dataclass(frozen=True)
class IdTiles:
    """The computation of tiles of ``sum_k g_k 1[t_k = v]``, for upstream gradients g_k of target ids t_k and classes v.

    Attributes:
        table_sbuf: the table of gradients, see :class:`IdColumns`.
        classes: the largest number of classes of a tile.
        source_sbuf: the class numbers 0, 1, 2, ..., then the ids minus the first class of the tile, float32 [128,
            classes + K'].
        marked_sbuf: a copy of ``source_sbuf`` in which each class that is an id is replaced by -1.
        below_sbuf: 1 for each id below the first class of a tile, else 0, float32 [128, K'].
        running_sbuf: minus the number of ids up to each class, float32 [128, classes].
        kept_sbuf: the index of each class of a block in the table, 0 if it is no id, uint8 [128, tiles of positions,
            tiles of classes, classes of a tile].
        places_sbuf: buffer slots for the table indices of a tile, uint32 [128, classes].
        gradients_sbuf: buffer slots for the gradients of a tile, float32 [128, classes].
    """

    table_sbuf: nl.NkiTensor
    classes: int
    source_sbuf: nl.NkiTensor
    marked_sbuf: nl.NkiTensor
    below_sbuf: nl.NkiTensor
    running_sbuf: nl.NkiTensor
    kept_sbuf: nl.NkiTensor
    places_sbuf: list[nl.NkiTensor]
    gradients_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, table_sbuf: nl.NkiTensor, position_tiles: int, block: int, classes: int) -> IdTiles:
        """Allocate memory for blocks of ``position_tiles`` tiles of positions and ``block`` classes.

        Args:
            table_sbuf: the table of gradients, see :class:`IdColumns`.
            position_tiles: the number of tiles of positions of a block.
            block: the number of classes of a block.
            classes: the number of classes of a tile.
        """
        searched = table_sbuf.shape[2] - 1

        def tile(columns: int, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
            return nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf)

        source_sbuf = tile(classes + searched)
        nisa.iota(dst=source_sbuf[:, 0:classes], pattern=[[1, classes]], offset=0, channel_multiplier=0)
        shape = (PARTITIONS, position_tiles, div_ceil(block, classes), classes)
        return cls(
            table_sbuf,
            classes,
            source_sbuf,
            tile(classes + searched),
            tile(searched),
            tile(classes),
            nl.ndarray(shape, dtype=nl.uint8, buffer=nl.sbuf),
            [tile(classes, nl.uint32) for _ in range(ID_SLOTS)],
            [tile(classes) for _ in range(ID_SLOTS)],
        )

    @property
    def tiles_of_classes(self) -> int:
        """The number of tiles of classes of a block."""
        return self.kept_sbuf.shape[2]

    def search(self, column: int, tile: int, ids_sbuf: nl.NkiTensor, skipped: int) -> None:
        """Find, for a tile of positions and a tile of classes, the index of each class in the table of gradients.

        Args:
            column: the number of the tile of positions.
            tile: the number of the tile of classes in its block.
            ids_sbuf: the sorted ids of the positions, float32 [128, K'].
            skipped: the number of classes from the class that ``ids_sbuf`` counts from to the first class of the block.
        """
        searched = ids_sbuf.shape[1]
        own_sbuf = self.source_sbuf[:, self.classes :]
        first = float(skipped + tile * self.classes)
        nisa.tensor_scalar(dst=own_sbuf, data=ids_sbuf, op0=nl.subtract, operand0=first)
        count_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=self.below_sbuf,
            data=own_sbuf,
            op0=nl.less,
            operand0=0.0,
            reduce_op=nl.add,
            reduce_res=count_sbuf,
            reduce_res_negate=True,
        )
        for start in range(0, searched, IDS_OF_SEARCH):
            nisa.nc_match_replace8(
                dst=self.marked_sbuf,
                data=self.source_sbuf if start == 0 else self.marked_sbuf,
                vals=own_sbuf[:, start : start + IDS_OF_SEARCH],
                imm=_MARK,
            )
        marks_sbuf = self.marked_sbuf[:, 0 : self.classes]
        nisa.tensor_scalar_cumulative(
            dst=self.running_sbuf,
            src=marks_sbuf,
            op0=nl.minimum,
            op1=nl.add,
            imm0=0.0,
            imm1=count_sbuf,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
        )
        nisa.scalar_tensor_tensor(
            dst=self._kept(column, tile),
            data=marks_sbuf,
            op0=nl.minimum,
            operand0=0.0,
            op1=nl.multiply,
            operand1=self.running_sbuf,
        )

    def gradients(self, number: int, rows: int, column: int, first: int, classes: int) -> nl.NkiTensor:
        """Return a tile of ``sum_k g_k 1[t_k = v]``, float32 [rows, classes]; :meth:`search` was called for it before.

        Args:
            number: a running number of the tile, which selects buffer slots round-robin.
            rows: the number of positions.
            column: the number of the tile of positions.
            first: the first class of the tile, counted in its block.
            classes: the number of classes of the tile.
        """
        slot = number % ID_SLOTS
        places_sbuf = self.places_sbuf[slot][0:rows, 0:classes]
        kept_sbuf = self._kept(column, first // self.classes)[0:rows, 0:classes]
        nisa.tensor_copy(dst=places_sbuf, src=kept_sbuf, engine=nisa.engine.gpsimd)
        gradients_sbuf = self.gradients_sbuf[slot][0:rows, 0:classes]
        nisa.nc_n_gather(dst=gradients_sbuf, data=self.table_sbuf[0:rows, column], indices=places_sbuf)
        return gradients_sbuf

    def _kept(self, column: int, tile: int) -> nl.NkiTensor:
        # No two tiles of a block share this memory.
        return self.kept_sbuf[:, column % self.kept_sbuf.shape[1], tile]


def sorted_at_a_time(ids: int) -> int:
    """Return the number of tiles of positions that are sorted together, for ``ids`` target ids per position."""
    return _SORTED_AT_A_TIME // searched_ids(ids)


def _join_equal(ids_sbuf: nl.NkiTensor, gradients_sbuf: nl.NkiTensor, ids: int) -> nl.NkiTensor:
    """Return the gradients, except that the first of several equal ids has the sum of their gradients.

    In ``ids_sbuf``, each repeated id is replaced by a distinct number beyond all classes.

    Args:
        ids_sbuf: the ids, float32 [128, tiles, K'], changed in place.
        gradients_sbuf: the gradients, float32, in the same shape.
        ids: K.
    """
    sums_sbuf, again_sbuf = float32_like(gradients_sbuf), float32_like(ids_sbuf)
    equal_sbuf = float32_like(ids_sbuf)
    nisa.tensor_copy(dst=sums_sbuf, src=gradients_sbuf)
    nisa.memset(dst=again_sbuf[:, :, 0:ids], value=0.0)
    if ids < ids_sbuf.shape[2]:
        nisa.memset(dst=again_sbuf[:, :, ids:], value=1.0)
    for distance in range(1, ids):
        later, earlier = slice(distance, ids), slice(0, ids - distance)
        matches_sbuf = equal_sbuf[:, :, earlier]
        nisa.tensor_tensor(dst=matches_sbuf, data1=ids_sbuf[:, :, later], data2=ids_sbuf[:, :, earlier], op=nl.equal)
        places_sbuf = again_sbuf[:, :, later]
        nisa.tensor_tensor(dst=places_sbuf, data1=places_sbuf, data2=matches_sbuf, op=nl.maximum, engine=_GPSIMD)
        added_sbuf = product(matches_sbuf, gradients_sbuf[:, :, later])
        first_sbuf = sums_sbuf[:, :, earlier]
        nisa.tensor_tensor(dst=first_sbuf, data1=first_sbuf, data2=added_sbuf, op=nl.add)
    is_again_sbuf = nl.ndarray(ids_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=is_again_sbuf, src=again_sbuf)
    stand_ins_sbuf = nl.ndarray((PARTITIONS, ids_sbuf.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(
        dst=stand_ins_sbuf,
        pattern=[[_NEXT_STAND_IN, ids_sbuf.shape[2]]],
        offset=_FIRST_STAND_IN,
        channel_multiplier=0,
    )
    stand_ins_sbuf = stand_ins_sbuf.expand_dim(1).broadcast(1, ids_sbuf.shape[1])
    nisa.tensor_copy_predicated(dst=ids_sbuf, src=stand_ins_sbuf, predicate=is_again_sbuf)
    return sums_sbuf


def _sort(sorted_sbuf: nl.NkiTensor, table_sbuf: nl.NkiTensor, ids_sbuf: nl.NkiTensor, sums_sbuf: nl.NkiTensor) -> None:
    """Sort the ids of each position in ascending order, and their sums of gradients in the same order.

    Args:
        sorted_sbuf: the result, the sorted ids.
        table_sbuf: the result, the sums in the order of the ids.
        ids_sbuf: the ids, distinct within a position.
        sums_sbuf: the sum of the gradients of each id.
    """
    searched = ids_sbuf.shape[2]
    negated_sbuf = scaled(ids_sbuf, -1.0)
    left_sbuf, largest_sbuf = float32_like(ids_sbuf), float32_like(ids_sbuf)
    places_sbuf = nl.ndarray(ids_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=left_sbuf, src=negated_sbuf)
    for tile in range(ids_sbuf.shape[1]):
        for start in range(0, searched, IDS_OF_SEARCH):
            eight = slice(start, start + IDS_OF_SEARCH)
            values_sbuf, rest_sbuf = largest_sbuf[:, tile, eight], left_sbuf[:, tile]
            nisa.max8(dst=values_sbuf, src=rest_sbuf)
            nisa.nc_find_index8(dst=places_sbuf[:, tile, eight], data=negated_sbuf[:, tile], vals=values_sbuf)
            if start + IDS_OF_SEARCH < searched:
                nisa.nc_match_replace8(dst=rest_sbuf, data=rest_sbuf, vals=values_sbuf, imm=FLOAT32_LOWEST)
        nisa.nc_n_gather(dst=table_sbuf[:, tile], data=sums_sbuf[:, tile], indices=places_sbuf[:, tile])
    nisa.tensor_scalar(dst=sorted_sbuf, data=largest_sbuf, op0=nl.multiply, operand0=-1.0)


@dataclass(frozen=True)
class IdColumns:
    """The ids of all positions, K' per position, and the upstream gradients of their log-probabilities.

    Attributes:
        sorted_sbuf: the ids, ascending, counted from the first class that the launch holds, float32 [128, tiles, K'].
        table_sbuf: 0, then the gradients of the ids in that order, float32 [128, tiles, 1 + K'].
        negated_sum_sbuf: minus the sum of the gradients of a position, float32 [128, tiles].
        size_sbuf: the sum of the magnitudes of the gradients of a position, float32 [128, tiles].
    """

    sorted_sbuf: nl.NkiTensor
    table_sbuf: nl.NkiTensor
    negated_sum_sbuf: nl.NkiTensor
    size_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: LinearLaunch, options: Options, slope: Scale, grad_logprob_hbm: nl.NkiTensor) -> IdColumns:
        """Compute the sorted ids and their gradients for all positions of a launch.

        Args:
            launch, options: the operands and options of the launch.
            slope: 1 over the temperature of each position.
            grad_logprob_hbm: the upstream gradients, [N, K].
        """
        tiles, searched = launch.position_tiles, searched_ids(launch.ids)
        columns = cls(
            nl.ndarray((PARTITIONS, tiles, searched), dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray((PARTITIONS, tiles, 1 + searched), dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf),
            nl.ndarray((PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf),
        )
        nisa.memset(dst=columns.table_sbuf[:, :, 0:1], value=0.0)
        at_a_time = sorted_at_a_time(launch.ids)
        for first in range(0, tiles, at_a_time):
            end = min(first + at_a_time, tiles)
            columns._make_tiles(launch, options, slope.part(first, end), grad_logprob_hbm, first, end)
        return columns

    def _make_tiles(
        self,
        launch: LinearLaunch,
        options: Options,
        slope: Scale,
        grad_logprob_hbm: nl.NkiTensor,
        first: int,
        end: int,
    ) -> None:
        """Compute the ids and gradients of the tiles ``first`` to ``end - 1`` of positions.

        ``slope`` is 1 over the temperature of these positions; ``grad_logprob_hbm`` has the gradients of all, [N, K].
        """
        searched = self.sorted_sbuf.shape[2]
        start, last = first * PARTITIONS, min(end * PARTITIONS, launch.num_positions)
        ids_sbuf = load_ids(launch.targets_hbm.slice(0, start, last), -1.0, searched)
        gradients_sbuf = load_ids(grad_logprob_hbm.slice(0, start, last), 0.0, searched)
        valid_sbuf = nl.ndarray(ids_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=valid_sbuf, data=ids_sbuf, op0=nl.not_equal, operand0=float(options.recipe.ignore_index))
        gradients_sbuf = selected(gradients_sbuf, valid_sbuf)
        if not slope.is_one:
            gradients_sbuf = slope.times(gradients_sbuf)
        nisa.tensor_reduce(dst=self.negated_sum_sbuf[:, first:end], op=nl.add, data=gradients_sbuf, axis=2, negate=True)
        size_sbuf = float32_like(gradients_sbuf)
        nisa.activation(dst=size_sbuf, op=nl.abs, data=gradients_sbuf)
        nisa.tensor_reduce(dst=self.size_sbuf[:, first:end], op=nl.add, data=size_sbuf, axis=2)
        sums_sbuf = _join_equal(ids_sbuf, gradients_sbuf, launch.ids)
        if options.classes.first > 0:
            nisa.tensor_scalar(dst=ids_sbuf, data=ids_sbuf, op0=nl.subtract, operand0=float(options.classes.first))
        _sort(self.sorted_sbuf[:, first:end], self.table_sbuf[:, first:end, 1:], ids_sbuf, sums_sbuf)


@dataclass(frozen=True)
class IdGradient:
    """The per-position values of the gradient for several target ids.

    Attributes:
        columns: the per-position scalars; their targets are the sorted ids, and they have no term for a single target.
        table_sbuf: the table of gradients, see :class:`IdColumns`; None without a gradient of the log-probabilities.
    """

    columns: GradientColumns
    table_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> IdGradient:
        """Compute the per-position values of the gradient for all positions of a launch."""
        positions = AllPositions()
        exponents, temperatures = Exponents.make(positions, launch, upstream), launch.temperatures()
        scale, slope = options.scale_of(temperatures), options.slope_of(temperatures)
        ids = None
        if upstream.grad_logprob_hbm is not None:
            ids = IdColumns.make(launch, options, slope, upstream.grad_logprob_hbm)
        terms_sbuf = [] if ids is None else [ids.negated_sum_sbuf]
        terms_sbuf += rest_terms(upstream, positions, exponents.lse_sbuf, None, slope, options)
        rest_sbuf = summed(terms_sbuf[0], terms_sbuf[1:]) if terms_sbuf else None
        entropy_sbuf = None
        if upstream.grad_entropy_hbm is not None:
            entropy_sbuf = loaded_gradient(positions, upstream.grad_entropy_hbm, slope)
        table_sbuf, power = None if ids is None else ids.table_sbuf, None
        if launch.dtype == nl.float16:
            sizes_sbuf = [None if ids is None else ids.size_sbuf, rest_sbuf, entropy_sbuf]
            power = PowerOfTwo.of_largest([size_sbuf for size_sbuf in sizes_sbuf if size_sbuf is not None])
            table_sbuf, rest_sbuf, entropy_sbuf = (
                None if values_sbuf is None else scaled(values_sbuf, power.factor_sbuf)
                for values_sbuf in (table_sbuf, rest_sbuf, entropy_sbuf)
            )
        slope_sbuf = None
        if entropy_sbuf is not None and upstream.entropy_hbm is not None:
            slope_sbuf, offset_sbuf = exponents.entropy_terms(
                entropy_sbuf, positions.loaded(upstream.entropy_hbm), scale
            )
            rest_sbuf = offset_sbuf if rest_sbuf is None else summed(offset_sbuf, [rest_sbuf])
        if rest_sbuf is None:
            raise ValueError("linear_token_scores_backward: there must be an upstream gradient, got none; pass one")
        if exponents.factor_sbuf is not None:
            rest_sbuf = product(rest_sbuf, exponents.factor_sbuf)
            slope_sbuf = None if slope_sbuf is None else product(slope_sbuf, exponents.factor_sbuf)
        columns = GradientColumns(
            scale=scale,
            target_sbuf=rest_sbuf if ids is None else ids.sorted_sbuf,
            bias_sbuf=exponents.bias_sbuf,
            neg_maximum_sbuf=exponents.neg_maximum_sbuf,
            has_target=False,
            own_sbuf=rest_sbuf,
            rest_sbuf=None if slope_sbuf is None else rest_sbuf,
            slope_sbuf=slope_sbuf,
            spread_sbuf=None,
            power=power,
        )
        return cls(columns, table_sbuf)

    def tiles(self, position_tiles: int, block: int, classes: int) -> IdTiles | None:
        """Return an :class:`IdTiles` for blocks of this size; None without a gradient of the log-probabilities.

        Args:
            position_tiles: the number of tiles of positions of a block.
            block: the number of classes of a block.
            classes: the number of classes of a tile.
        """
        return None if self.table_sbuf is None else IdTiles.make(self.table_sbuf, position_tiles, block, classes)
