# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients of an input of few classes, which is read (or its gradient written) once and whole.

:func:`streamed_forward_of_core` and :func:`streamed_backward_of_core` are the loops over tiles (:class:`ClassTile`,
:class:`ClassTiling`); :class:`ClassMasks` tell where a class is the target. :func:`is_streamed` returns for which
inputs this takes less time than gathering elements.

A tile has all classes of many positions. A row [C, D] has D places, each with one element of every class. If whole rows
of [N, C, D] fit a partition, each partition has some of them; otherwise it has adjacent places of one row. Either way
its positions, and its elements of one class, are contiguous in HBM. The tiles depend on shape and type alone.

Targets and classes are compared as bfloat16, which represents all classes exactly; no other integer rounds to one of
them. Nothing is multiplied by a mask, because elements of other classes may be infinite or NaN; elements are copied
where the mask is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.cores import PartialSums
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.loss_arguments import in_all_partitions
from nkilib.core.plan_limits import limited_parts
from nkilib.core.rows.sbuf import dtype_bytes, ring_of
from nkilib.core.rows.tiles import cast, scaled, sum_in_place
from nkilib.experimental.loss.nll.gathered import Results, Sums, store_sums, weigh
from nkilib.experimental.loss.skeletons.elementwise.stream import FlatTile, flat_tiles
from nkilib.experimental.loss.skeletons.indexed import IndexedUpstream, Shape, number_of_batches
from nkilib.nki import nisa, nl

# bfloat16 has every integer up to this one: classes are compared in that type, four elements a cycle.
STREAMED_CLASSES_MAX = 256
# Sums that a partition of SBUF keeps. Further tiles share them.
PARTS_MAX = 4096
# Bytes of a partition for the classes that are on chip together, and the most positions that an instruction takes.
_TILE_BYTES, _POSITIONS_MAX = 48 * 1024, 1024
# Modelled for two cores of trn2, in microseconds: a group of 128 gathered elements, the start of gathering, an
# instruction of a class (there are two), and its time for each position of a partition.
_GATHER_US, _GATHER_START_US, _INSTRUCTION_US, _POSITION_US = 3.7, 12.0, 0.17, 0.0007
# Tiles of a ring buffer of elements.
_BUFFERS = 3
# Masks that are computed ahead of the one that is used, and tiles for them.
_AHEAD, _MASKS = 2, 4
_NO_CLASS = -1.0
# In bfloat16 no other integer rounds to an integer below this limit.
_EXACT_BELOW = 256


@dataclass(frozen=True)
class ClassTile:
    """Positions that are processed at a time, with all their classes.

    Attributes:
        part: the index of the partial sum to which the positions are added.
        is_first: whether this is the first tile of its part.
        shape: the shape of the input.
        row: the index n of the row input[n] ([C, D]) in which all positions of the tile lie; None if each partition
            has whole rows.
        flat: how the tile's items are spread over the partitions, adjacent ones in each. The items are whole rows if
            ``row`` is None, else the places 0 .. D - 1 of that row (each place has one element of every class).
    """

    part: int
    is_first: bool
    shape: Shape
    row: int | None
    flat: FlatTile

    @property
    def partitions(self) -> int:
        """The number of partitions that the tile takes."""
        return self.flat.rows

    @property
    def positions(self) -> int:
        """The number of positions in each partition."""
        return self.flat.columns * (self.shape.places if self.row is None else 1)

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the part of a tensor [N, D] that belongs to this tile, as a view [partitions, positions]."""
        if self.row is not None:
            return self.flat.of(self._row_of(tensor_hbm))
        return self._whole_rows_of(tensor_hbm).reshape((self.partitions, self.positions))

    def classes_of(self, tensor_hbm: nl.NkiTensor, first: int, last: int) -> nl.NkiTensor:
        """Return the elements of classes [first, last) of this tile in a tensor [N, C * D].

        The result is a view [partitions, classes, positions], or for whole rows [partitions, rows, C, D]; then
        [first, last) must be all classes.
        """
        flat, classes = self.flat, self.shape.classes
        if self.row is None:
            whole = self._whole_rows_of(tensor_hbm)
            return whole.reshape((flat.rows, flat.columns, classes, self.shape.places))
        row_hbm = self._row_of(tensor_hbm).reshape((classes, self.shape.places))
        run_hbm = row_hbm[first:last, flat.first : flat.first + flat.rows * flat.columns]
        return run_hbm.reshape((last - first, flat.rows, flat.columns)).permute((1, 0, 2))

    def on_chip(self, buffer_sbuf: nl.NkiTensor, classes: int) -> nl.NkiTensor:
        """Return the part of a buffer that holds the tile's elements of ``classes`` classes, in the shape of
        :meth:`classes_of`.
        """
        flat = self.flat
        taken_sbuf = buffer_sbuf[0 : flat.rows, 0 : classes * self.positions]
        if self.row is None:
            return taken_sbuf.reshape((flat.rows, flat.columns, classes, self.shape.places))
        return taken_sbuf.reshape((flat.rows, classes, flat.columns))

    def of_class(self, tile_sbuf: nl.NkiTensor, number: int) -> nl.NkiTensor:
        """Return the elements of class ``number`` in a tile from :meth:`on_chip`, [partitions, ...]."""
        return tile_sbuf[:, :, number, :] if self.row is None else tile_sbuf[:, number, :]

    def like_class(self, positions_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return a tile [partitions, positions] in the shape that :meth:`of_class` returns."""
        if self.row is not None:
            return positions_sbuf
        return positions_sbuf.reshape((self.partitions, self.flat.columns, self.shape.places))

    def _row_of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        row = self.row or 0
        return tensor_hbm[row : row + 1].reshape((tensor_hbm.shape[1],))

    def _whole_rows_of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        return tensor_hbm[self.flat.first : self.flat.first + self.flat.rows * self.flat.columns]


def _tiles(elements: int, columns: int) -> list[FlatTile]:
    """Return the tiles of :func:`flat_tiles`, all with at most ``columns`` elements per partition.

    A last tile that has more, in a single partition, is replaced by one with its elements, fewer than 128, in one
    partition each.
    """
    tiles = flat_tiles(elements, columns)
    last = tiles[-1]
    if last.columns > columns:
        tiles[-1] = FlatTile(last.number, last.first, last.columns, 1)
    return tiles


@dataclass(frozen=True)
class ClassTiling:
    """The tiling of an input of few classes.

    Attributes:
        shape: the shape of the input.
        positions: the largest number of positions in a partition.
        classes: the number of classes whose elements at these positions are on chip together.
        has_whole_rows: whether partitions have whole rows.
    """

    shape: Shape
    positions: int
    classes: int
    has_whole_rows: bool

    @classmethod
    def of(cls, shape: Shape, dtype: nl.DType) -> ClassTiling:
        """Choose the tiling of an input.

        A tile has as many positions as fit, but with whole rows no more than it takes to spread all rows over the
        partitions of two cores.
        """
        in_buffer = _TILE_BYTES // dtype_bytes(dtype)
        fitting = min(_POSITIONS_MAX, in_buffer // shape.classes)
        if fitting < shape.places or shape.rows < PARTITIONS <= shape.places:
            runs = div_ceil(shape.places, PARTITIONS)
            positions = div_ceil(runs, div_ceil(runs, _POSITIONS_MAX))
            return cls(shape, positions, min(shape.classes, in_buffer // positions), False)
        rows = min(fitting // shape.places, div_ceil(shape.rows, 2 * PARTITIONS))
        return cls(shape, rows * shape.places, shape.classes, True)

    @property
    def groups(self) -> list[tuple[int, int]]:
        """The ranges [first, last) of classes that are on chip together."""
        starts = range(0, self.shape.classes, self.classes)
        return [(start, min(start + self.classes, self.shape.classes)) for start in starts]

    def tiles(self) -> list[ClassTile]:
        """Return all tiles of the launch, in the order of their positions."""
        shape = self.shape
        rows_and_runs: list[tuple[int | None, FlatTile]]
        if self.has_whole_rows:
            rows_and_runs = [(None, flat) for flat in _tiles(shape.rows, self.positions // shape.places)]
        else:
            rows_and_runs = [(row, flat) for row in range(shape.rows) for flat in _tiles(shape.places, self.positions)]
        of_part = div_ceil(len(rows_and_runs), limited_parts(PARTS_MAX))
        return [
            ClassTile(number // of_part, number % of_part == 0, shape, row, flat)
            for number, (row, flat) in enumerate(rows_and_runs)
        ]

    def tiles_of_core(self) -> list[ClassTile]:
        """Return the tiles that this core processes: those of the partial sums that it computes, see
        :attr:`ClassTile.part`.
        """
        cores, core = nl.num_programs(), nl.program_id(0)
        return [tile for tile in self.tiles() if tile.part % cores == core]

    @property
    def number_of_tiles(self) -> int:
        """The number of tiles of the launch."""
        if self.has_whole_rows:
            return len(_tiles(self.shape.rows, self.positions // self.shape.places))
        return self.shape.rows * len(_tiles(self.shape.places, self.positions))


def is_streamed(shape: Shape, dtype: nl.DType) -> bool:
    """Return whether, in the model, streaming the whole input takes less time than gathering the elements at the
    targets.
    """
    if shape.classes > STREAMED_CLASSES_MAX:
        return False
    tiling = ClassTiling.of(shape, dtype)
    of_class = 2.0 * _INSTRUCTION_US + _POSITION_US * dtype_bytes(dtype) * tiling.positions
    streaming = div_ceil(tiling.number_of_tiles, 2) * shape.classes * of_class
    return streaming < _GATHER_START_US + _GATHER_US * div_ceil(number_of_batches(shape), 2)


@dataclass(frozen=True)
class LoadedTargets:
    """The loaded targets of one tile: [partitions, positions].

    Attributes:
        tile: the tile that the targets belong to.
        targets_sbuf: the targets, int32.
        classes_sbuf: the targets, bfloat16.
    """

    tile: ClassTile
    targets_sbuf: nl.NkiTensor
    classes_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class TargetTile:
    """The targets of one tile, with masks of valid and ignored positions: bfloat16 [partitions, positions].

    Attributes:
        tile: the tile that the targets belong to.
        classes_sbuf: the targets; -1 where ``ignore_index`` is itself a class number and the position is ignored.
        counts_sbuf: 1 for a valid position, 0 for an ignored one.
        ignored_sbuf: 1 for an ignored position, 0 for a valid one.
    """

    tile: ClassTile
    classes_sbuf: nl.NkiTensor
    counts_sbuf: nl.NkiTensor
    ignored_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class ClassMasks:
    """The tensors and tiles from which masks of classes are computed.

    Attributes:
        targets_hbm: the targets, int32 [N, D].
        ignore_index: the target of ignored positions, an int32.
        masks_sbuf: bfloat16 tiles for masks, used round-robin.
    """

    targets_hbm: nl.NkiTensor
    ignore_index: int
    masks_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, targets_hbm: nl.NkiTensor, ignore_index: int, positions: int) -> ClassMasks:
        """Allocate masks for tiles of at most ``positions`` positions in each partition."""
        shape = (nl.tile_size.pmax, positions)
        masks = [nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(_MASKS)]
        return cls(targets_hbm, ignore_index, masks)

    def load(self, tile: ClassTile) -> LoadedTargets:
        """Load the targets of a tile. Issue this one tile ahead, so that Vector does not wait for the targets."""
        shape = (tile.partitions, tile.positions)
        targets_sbuf = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
        classes_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=targets_sbuf, src=tile.of(self.targets_hbm))
        nisa.activation(dst=classes_sbuf, op=nl.copy, data=targets_sbuf)
        return LoadedTargets(tile, targets_sbuf, classes_sbuf)

    def compare(self, loaded: LoadedTargets) -> TargetTile:
        """Compare the loaded targets with ``ignore_index``, and return them with masks of valid and ignored
        positions.
        """
        classes_sbuf = loaded.classes_sbuf
        counts_sbuf, ignored_sbuf = (
            nl.ndarray(classes_sbuf.shape, dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(2)
        )
        # bfloat16 if it tells ignore_index from every other integer; float32 tells ignore_index from every class.
        compared_sbuf = classes_sbuf if abs(self.ignore_index) < _EXACT_BELOW else loaded.targets_sbuf
        ignored = float(self.ignore_index)
        nisa.tensor_scalar(dst=counts_sbuf, data=compared_sbuf, op0=nl.not_equal, operand0=ignored)
        nisa.tensor_scalar(dst=ignored_sbuf, data=compared_sbuf, op0=nl.equal, operand0=ignored)
        if 0 <= self.ignore_index < loaded.tile.shape.classes:
            nisa.tensor_copy_predicated(dst=classes_sbuf, src=_NO_CLASS, predicate=ignored_sbuf.view(nl.uint16))
        return TargetTile(loaded.tile, classes_sbuf, counts_sbuf, ignored_sbuf)

    def of_tiles(self, tiles: list[ClassTile]) -> Iterator[TargetTile]:
        """Yield the targets of each tile, loaded one tile ahead."""
        loaded: list[LoadedTargets] = []
        for number in range(len(tiles)):
            loaded.extend(self.load(tile) for tile in tiles[len(loaded) : number + 2])
            yield self.compare(loaded[number])

    def of_classes(self, targets: TargetTile, first: int, last: int) -> Iterator[tuple[int, nl.NkiTensor]]:
        """Yield each class of [first, last) with a mask: uint16, nonzero at positions that have it as target.

        Masks are computed ahead of their use, so that Vector does not wait for its own results.
        """
        masks: list[nl.NkiTensor] = []
        for number in range(first, last + _AHEAD):
            if number < last:
                masks.append(self._mask(targets, number))
            done = number - _AHEAD
            if first <= done < last:
                yield done, masks[done - first]

    def _mask(self, targets: TargetTile, number: int) -> nl.NkiTensor:
        partitions, positions = targets.classes_sbuf.shape
        mask_sbuf = self.masks_sbuf[number % _MASKS][0:partitions, 0:positions]
        nisa.tensor_scalar(dst=mask_sbuf, data=targets.classes_sbuf, op0=nl.equal, operand0=float(number))
        return mask_sbuf.view(nl.uint16)


@dataclass(frozen=True)
class Chosen:
    """The input's elements at the targets of one tile, and the targets' class weights: [partitions, positions].

    Attributes:
        targets: the targets of the positions.
        values_sbuf: the elements at the targets, in the type of the input.
        weight_sbuf: the class weights of the targets; 0 for ignored ones.
    """

    targets: TargetTile
    values_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor


def _add_sum(sums: PartialSums, tile: ClassTile, values_sbuf: nl.NkiTensor) -> None:
    """Add the sum of each partition of a tile to the sum of the earlier tiles of the same part, see
    :class:`ClassTile`.
    """
    total_sbuf = sums.of_part(tile.part, tile.partitions)
    if tile.is_first:
        sum_in_place(values_sbuf, total_sbuf)
        return
    sum_sbuf = nl.ndarray((tile.partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    sum_in_place(values_sbuf, sum_sbuf)
    nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=sum_sbuf, op=nl.add)


@dataclass(frozen=True)
class _Forward:
    """The operands and results that all tiles share.

    Attributes:
        masks: the masks of the classes.
        weights_sbuf: the class weights, float32 [128, C]; None for weights of 1.
        results: the tensors in HBM for the results.
        sums: the partial sums of losses and weights.
    """

    masks: ClassMasks
    weights_sbuf: nl.NkiTensor | None
    results: Results
    sums: Sums

    def begin(self, targets: TargetTile, dtype: nl.DType) -> Chosen:
        """Return the tiles into which the elements at the targets and the weights are copied, class by class. At first
        the element is 0 where the position is ignored, and else NaN, which remains for a target out of range.
        """
        shape = targets.classes_sbuf.shape
        values_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
        nisa.memset(dst=values_sbuf, value=float("nan"), engine=nisa.engine.gpsimd)
        nisa.tensor_copy_predicated(dst=values_sbuf, src=0.0, predicate=targets.ignored_sbuf.view(nl.uint16))
        weight_sbuf = targets.counts_sbuf
        if self.weights_sbuf is not None:
            weight_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=weight_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        return Chosen(targets, values_sbuf, weight_sbuf)

    def choose(self, chosen: Chosen, input_sbuf: nl.NkiTensor, first: int, last: int) -> None:
        """Copy the elements of classes [first, last), which are on chip, to ``chosen`` where the class is the
        target.
        """
        tile = chosen.targets.tile
        for number, mask_sbuf in self.masks.of_classes(chosen.targets, first, last):
            nisa.tensor_copy_predicated(
                dst=tile.like_class(chosen.values_sbuf),
                src=tile.of_class(input_sbuf, number - first),
                predicate=tile.like_class(mask_sbuf),
            )
            if self.weights_sbuf is not None:
                of_class_sbuf = self.weights_sbuf[0 : tile.partitions, number : number + 1]
                nisa.tensor_copy_predicated(
                    dst=chosen.weight_sbuf, src=of_class_sbuf.broadcast(1, tile.positions), predicate=mask_sbuf
                )

    def finish(self, chosen: Chosen) -> None:
        """Compute the losses -w x from the chosen elements x and weights w, and store them or add them to the sums."""
        values_sbuf, tile = chosen.values_sbuf, chosen.targets.tile
        losses_sbuf = nl.ndarray(values_sbuf.shape, dtype=self.results.loss_hbm.dtype, buffer=nl.sbuf)
        if self.weights_sbuf is None:
            nisa.activation(dst=losses_sbuf, op=nl.copy, data=values_sbuf, scale=-1.0)
        else:
            weigh(losses_sbuf, values_sbuf, chosen.weight_sbuf)
        if self.sums.losses is None:
            nisa.dma_copy(dst=tile.of(self.results.loss_hbm), src=losses_sbuf)
        else:
            _add_sum(self.sums.losses, tile, losses_sbuf)
        _add_sum(self.sums.weights, tile, chosen.weight_sbuf)


def _loaded_classes(
    tile: ClassTile, first: int, last: int, buffer_sbuf: nl.NkiTensor, input_hbm: nl.NkiTensor
) -> nl.NkiTensor:
    """Load the elements of classes [first, last) of a tile into ``buffer_sbuf``, and return the view that holds
    them.
    """
    input_sbuf = tile.on_chip(buffer_sbuf, last - first)
    nisa.dma_copy(dst=input_sbuf, src=tile.classes_of(input_hbm, first, last))
    return input_sbuf


def streamed_forward_of_core(
    input_hbm: nl.NkiTensor,
    shape: Shape,
    targets_hbm: nl.NkiTensor,
    class_weight_hbm: nl.NkiTensor | None,
    ignore_index: int,
    results: Results,
) -> None:
    """Compute and store the results of this core from an input [N, C * D]."""
    tiling = ClassTiling.of(shape, input_hbm.dtype)
    tiles, parts = tiling.tiles_of_core(), tiling.tiles()[-1].part + 1
    sums = Sums(PartialSums.make(parts), None if results.is_each else PartialSums.make(parts))
    masks = ClassMasks.make(targets_hbm, ignore_index, tiling.positions)
    weights_sbuf = None if class_weight_hbm is None else in_all_partitions(class_weight_hbm)
    stage = _Forward(masks, weights_sbuf, results, sums)
    ring = ring_of(_BUFFERS, tiling.classes * tiling.positions, input_hbm.dtype)
    visits = [(tile, first, last) for tile in tiles for first, last in tiling.groups]
    on_chip: list[nl.NkiTensor] = []
    visit = 0
    for targets in masks.of_tiles(tiles):
        chosen = stage.begin(targets, input_hbm.dtype)
        for first, last in tiling.groups:
            for number in range(len(on_chip), min(visit + _BUFFERS - 1, len(visits))):
                on_chip.append(_loaded_classes(*visits[number], ring[number % _BUFFERS], input_hbm))
            stage.choose(chosen, on_chip[visit], first, last)
            visit += 1
        stage.finish(chosen)
    store_sums(sums, results)


@dataclass(frozen=True)
class _LoadedUpstream:
    """The loaded targets and upstream gradients of one tile: [partitions, positions].

    Attributes:
        targets: the targets of the positions.
        values_sbuf: the gradient at the target, in the type of the input, if it does not depend on the class of
            the target; else None.
        grad_sbuf: the upstream gradient of each loss, if it is still to be multiplied by the weight of the
            class; else None.
    """

    targets: TargetTile
    values_sbuf: nl.NkiTensor | None
    grad_sbuf: nl.NkiTensor | None


def _factors(class_weight_hbm: nl.NkiTensor | None, uniform_sbuf: nl.NkiTensor | None, classes: int) -> nl.NkiTensor:
    """Return the factor of the gradient for each class, float32 [128, C].

    It is minus the class weight, times the upstream gradient if all losses share one.
    """
    if class_weight_hbm is None:
        factors_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=factors_sbuf, value=-1.0)
    else:
        factors_sbuf = scaled(in_all_partitions(class_weight_hbm), -1.0)
    return factors_sbuf if uniform_sbuf is None else scaled(factors_sbuf, uniform_sbuf)


@dataclass(frozen=True)
class _Backward:
    """The operands that all tiles share.

    Attributes:
        masks: the masks of the classes.
        factors_sbuf: the gradient at a target of each class, [128, C]; if each loss has its own upstream
            gradient, the factor of that gradient.
        upstream: the upstream gradients of the losses.
        is_weighted: whether the factors of the classes differ.
    """

    masks: ClassMasks
    factors_sbuf: nl.NkiTensor
    upstream: IndexedUpstream
    is_weighted: bool

    def load(self, targets: TargetTile, dtype: nl.DType) -> _LoadedUpstream:
        """Load the upstream gradients of a tile; multiply them by the factor if it is the same for all classes."""
        tile = targets.tile
        if not self.upstream.is_each:
            return _LoadedUpstream(targets, None, None)
        grad_sbuf = nl.ndarray((tile.partitions, tile.positions), dtype=self.upstream.grad_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=grad_sbuf, src=tile.of(self.upstream.grad_hbm))
        if self.is_weighted:
            return _LoadedUpstream(targets, None, grad_sbuf)
        return _LoadedUpstream(targets, self._product(grad_sbuf, 0, dtype), None)

    def make(self, loaded: _LoadedUpstream, gradient_sbuf: nl.NkiTensor, first: int, last: int) -> None:
        """Compute the gradient for classes [first, last): the gradient of the position where the class is the target,
        else 0.
        """
        tile = loaded.targets.tile
        nisa.memset(dst=gradient_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for number, mask_sbuf in self.masks.of_classes(loaded.targets, first, last):
            nisa.tensor_copy_predicated(
                dst=tile.of_class(gradient_sbuf, number - first),
                src=tile.like_class(self._values(loaded, number, gradient_sbuf.dtype)),
                predicate=tile.like_class(mask_sbuf),
            )

    def _values(self, loaded: _LoadedUpstream, number: int, dtype: nl.DType) -> nl.NkiTensor:
        """Return the gradient at positions whose target is class ``number``, [partitions, positions]."""
        if loaded.values_sbuf is not None:
            return loaded.values_sbuf
        if loaded.grad_sbuf is not None:
            return self._product(loaded.grad_sbuf, number, dtype)
        tile = loaded.targets.tile
        return self.factors_sbuf[0 : tile.partitions, number : number + 1].broadcast(1, tile.positions)

    def _product(self, grad_sbuf: nl.NkiTensor, number: int, dtype: nl.DType) -> nl.NkiTensor:
        """Multiply upstream gradients by the factor of class ``number``, on Scalar, which has little else to do."""
        values_sbuf = nl.ndarray(grad_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
        factor_sbuf = self.factors_sbuf[0 : grad_sbuf.shape[0], number : number + 1]
        nisa.activation(dst=values_sbuf, op=nl.copy, data=grad_sbuf, scale=factor_sbuf)
        return values_sbuf


def streamed_backward_of_core(
    grad_input_hbm: nl.NkiTensor,
    shape: Shape,
    targets_hbm: nl.NkiTensor,
    class_weight_hbm: nl.NkiTensor | None,
    ignore_index: int,
    upstream: IndexedUpstream,
) -> None:
    """Write the gradient [N, C * D] of the tiles of this core."""
    tiling = ClassTiling.of(shape, grad_input_hbm.dtype)
    masks = ClassMasks.make(targets_hbm, ignore_index, tiling.positions)
    factors_sbuf = _factors(class_weight_hbm, upstream.uniform(), shape.classes)
    if not upstream.is_each:
        factors_sbuf = cast(factors_sbuf, grad_input_hbm.dtype)
    stage = _Backward(masks, factors_sbuf, upstream, class_weight_hbm is not None)
    ring = ring_of(_BUFFERS, tiling.classes * tiling.positions, grad_input_hbm.dtype)
    visit = 0
    for targets in masks.of_tiles(tiling.tiles_of_core()):
        loaded, tile = stage.load(targets, grad_input_hbm.dtype), targets.tile
        for first, last in tiling.groups:
            gradient_sbuf = tile.on_chip(ring[visit % _BUFFERS], last - first)
            stage.make(loaded, gradient_sbuf, first, last)
            nisa.dma_copy(dst=tile.classes_of(grad_input_hbm, first, last), src=gradient_sbuf)
            visit += 1
