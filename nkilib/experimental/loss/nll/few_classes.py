# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients for inputs [N, C, D] of few classes: the forward reads the whole input, the backward writes the
whole gradient from SBUF.

:func:`streamed_forward_of_core` and :func:`streamed_backward_of_core` are the loops over tiles (:class:`ClassTile`,
:class:`ClassTiling`); :class:`ClassMasks` computes, for each class, a mask of the positions whose target it is.
:func:`is_streamed` returns whether these loops take less time than gathering elements.

A row [C, D] has D places; a position is one place of one row, with one element of every class. A tile has all classes
of many positions. Each partition has either several whole rows or adjacent places of one row. The tiles depend on shape
and type only, not on the number of cores.

Targets and classes are compared as bfloat16. This is exact, because C is at most 256: no other integer rounds to a
class. Elements are copied where a mask is set, not multiplied by the mask, because elements of other classes may be
infinite or NaN.
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
    """Positions that are processed together, with all their classes.

    Attributes:
        part: the index of the partial sum to which the losses of the tile are added.
        is_first: whether the tile is the first one of its partial sum.
        shape: the shape of the input.
        row: the index of the row that contains all positions; None if each partition has whole rows.
        flat: the range of rows if ``row`` is None, else the range of places of this row, divided over partitions.
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
        """Return the view of a tensor [N, D] for this tile, [partitions, positions]."""
        if self.row is not None:
            return self.flat.of(self._row_of(tensor_hbm))
        return self._whole_rows_of(tensor_hbm).reshape((self.partitions, self.positions))

    def classes_of(self, tensor_hbm: nl.NkiTensor, first: int, last: int) -> nl.NkiTensor:
        """Return the view of a tensor [N, C * D] for classes [first, last) of this tile.

        If ``row`` is None, the view is [partitions, rows, C, D], and [first, last) must be all classes; else the view
        is [partitions, classes, positions].
        """
        flat, classes = self.flat, self.shape.classes
        if self.row is None:
            whole = self._whole_rows_of(tensor_hbm)
            return whole.reshape((flat.rows, flat.columns, classes, self.shape.places))
        row_hbm = self._row_of(tensor_hbm).reshape((classes, self.shape.places))
        run_hbm = row_hbm[first:last, flat.first : flat.first + flat.rows * flat.columns]
        return run_hbm.reshape((last - first, flat.rows, flat.columns)).permute((1, 0, 2))

    def on_chip(self, buffer_sbuf: nl.NkiTensor, classes: int) -> nl.NkiTensor:
        """Return a view of a buffer [128, elements] for ``classes`` classes, in the shape of :meth:`classes_of`."""
        flat = self.flat
        taken_sbuf = buffer_sbuf[0 : flat.rows, 0 : classes * self.positions]
        if self.row is None:
            return taken_sbuf.reshape((flat.rows, flat.columns, classes, self.shape.places))
        return taken_sbuf.reshape((flat.rows, classes, flat.columns))

    def of_class(self, tile_sbuf: nl.NkiTensor, number: int) -> nl.NkiTensor:
        """Return the elements of one class in a tile from :meth:`on_chip`; ``number`` is the index in the tile."""
        return tile_sbuf[:, :, number, :] if self.row is None else tile_sbuf[:, number, :]

    def like_class(self, positions_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile ``positions_sbuf`` [partitions, positions], reshaped to the shape of :meth:`of_class`."""
        if self.row is not None:
            return positions_sbuf
        return positions_sbuf.reshape((self.partitions, self.flat.columns, self.shape.places))

    def _row_of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        row = self.row or 0
        return tensor_hbm[row : row + 1].reshape((tensor_hbm.shape[1],))

    def _whole_rows_of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        return tensor_hbm[self.flat.first : self.flat.first + self.flat.rows * self.flat.columns]


def _tiles(elements: int, columns: int) -> list[FlatTile]:
    """Return the tiles of :func:`flat_tiles`, each with at most ``columns`` elements per partition.

    The last tile of :func:`flat_tiles` may have more than ``columns`` elements, in a single partition. Then it is
    replaced by a tile with one element in each partition.
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
        positions: the largest number of positions in a partition of a tile.
        classes: the number of classes whose elements are on chip together; C if partitions have whole rows.
        has_whole_rows: whether each partition has whole rows, instead of places of one row.
    """

    shape: Shape
    positions: int
    classes: int
    has_whole_rows: bool

    @classmethod
    def of(cls, shape: Shape, dtype: nl.DType) -> ClassTiling:
        """Return the tiling for an input of type ``dtype``."""
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
        """Return all tiles of the launch, in the order of positions."""
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
        """Return the tiles of this core; all tiles with one :attr:`ClassTile.part` belong to one core."""
        cores, core = nl.num_programs(), nl.program_id(0)
        return [tile for tile in self.tiles() if tile.part % cores == core]

    @property
    def number_of_tiles(self) -> int:
        """The number of tiles of the launch."""
        if self.has_whole_rows:
            return len(_tiles(self.shape.rows, self.positions // self.shape.places))
        return self.shape.rows * len(_tiles(self.shape.places, self.positions))


def is_streamed(shape: Shape, dtype: nl.DType) -> bool:
    """Return whether streaming the whole input is modelled to take less time than gathering the elements at the
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
    """The loaded targets of one tile, [partitions, positions].

    Attributes:
        tile: the tile that the targets belong to.
        targets_sbuf: the targets, int32.
        classes_sbuf: the same targets, rounded to bfloat16.
    """

    tile: ClassTile
    targets_sbuf: nl.NkiTensor
    classes_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class TargetTile:
    """The targets of one tile, with masks of valid and ignored positions: bfloat16 [partitions, positions].

    Attributes:
        tile: the tile that the targets belong to.
        classes_sbuf: the targets; -1 in place of ``ignore_index`` if that is in [0, C).
        counts_sbuf: 1 for a valid position, 0 for an ignored one.
        ignored_sbuf: 1 for an ignored position, 0 for a valid one.
    """

    tile: ClassTile
    classes_sbuf: nl.NkiTensor
    counts_sbuf: nl.NkiTensor
    ignored_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class ClassMasks:
    """The loader of targets, which also computes for each class a mask of the positions whose target it is.

    Attributes:
        targets_hbm: the targets, int32 [N, D].
        ignore_index: the target of ignored positions.
        masks_sbuf: bfloat16 tiles [128, positions] for masks, used round-robin.
    """

    targets_hbm: nl.NkiTensor
    ignore_index: int
    masks_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, targets_hbm: nl.NkiTensor, ignore_index: int, positions: int) -> ClassMasks:
        """Return a loader for tiles of at most ``positions`` positions in each partition."""
        shape = (nl.tile_size.pmax, positions)
        masks = [nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(_MASKS)]
        return cls(targets_hbm, ignore_index, masks)

    def load(self, tile: ClassTile) -> LoadedTargets:
        """Load the targets of a tile into new tiles."""
        shape = (tile.partitions, tile.positions)
        targets_sbuf = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
        classes_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=targets_sbuf, src=tile.of(self.targets_hbm))
        nisa.activation(dst=classes_sbuf, op=nl.copy, data=targets_sbuf)
        return LoadedTargets(tile, targets_sbuf, classes_sbuf)

    def compare(self, loaded: LoadedTargets) -> TargetTile:
        """Return the targets with masks of valid and ignored positions; ``loaded.classes_sbuf`` may be overwritten."""
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
        """Yield the targets of each tile, after issuing the load of the next tile."""
        loaded: list[LoadedTargets] = []
        for number in range(len(tiles)):
            loaded.extend(self.load(tile) for tile in tiles[len(loaded) : number + 2])
            yield self.compare(loaded[number])

    def of_classes(self, targets: TargetTile, first: int, last: int) -> Iterator[tuple[int, nl.NkiTensor]]:
        """Yield each class of [first, last) with its mask: uint16 [partitions, positions], not 0 where the class is the
        target.

        Masks are computed two classes ahead, so that Vector does not wait for its own results.
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
    """The elements and class weights at the targets of one tile, [partitions, positions].

    Attributes:
        targets: the targets of the positions.
        values_sbuf: the elements at the targets, in the type of the input; 0 at ignored positions.
        weight_sbuf: the class weights of the targets; 0 at ignored positions.
    """

    targets: TargetTile
    values_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor


def _add_sum(sums: PartialSums, tile: ClassTile, values_sbuf: nl.NkiTensor) -> None:
    """Sum ``values_sbuf`` over each partition, in place, and add the result to partial sum number ``tile.part``."""
    total_sbuf = sums.of_part(tile.part, tile.partitions)
    if tile.is_first:
        sum_in_place(values_sbuf, total_sbuf)
        return
    sum_sbuf = nl.ndarray((tile.partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    sum_in_place(values_sbuf, sum_sbuf)
    nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=sum_sbuf, op=nl.add)


@dataclass(frozen=True)
class _Forward:
    """The operands and results that all tiles of the forward share.

    Attributes:
        masks: the source of the masks of classes.
        weights_sbuf: the class weights, float32 [128, C]; None for weights of 1.
        results: the tensors in HBM for the results.
        sums: the partial sums of losses and weights.
    """

    masks: ClassMasks
    weights_sbuf: nl.NkiTensor | None
    results: Results
    sums: Sums

    def begin(self, targets: TargetTile, dtype: nl.DType) -> Chosen:
        """Return tiles that :meth:`choose` fills: elements 0 at ignored positions, else NaN; class weights, at first 0.

        NaN remains where the target is out of range. Without class weights, the weights are 1 or 0 (ignored) already.
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
        """For each class of [first, last), copy its elements and its weight to ``chosen`` where it is the target.

        ``input_sbuf`` has the elements of these classes (:meth:`ClassTile.on_chip`).
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
        """Compute the losses -w x from the elements x and weights w; store them in HBM or add them to the sums.

        The weights are added to their sum in both cases.
        """
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
    """Compute the losses of this core's tiles and store ``results``; ``input_hbm`` is [N, C * D]."""
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
    """The targets of one tile and, if each loss has its own upstream gradient, one tile [partitions, positions].

    Attributes:
        targets: the targets of the positions.
        values_sbuf: without class weights, minus the upstream gradient of each loss, in the type of the input.
        grad_sbuf: with class weights, the upstream gradient of each loss. The tile that is not needed is None; both
            are None if all losses share an upstream gradient.
    """

    targets: TargetTile
    values_sbuf: nl.NkiTensor | None
    grad_sbuf: nl.NkiTensor | None


def _factors(class_weight_hbm: nl.NkiTensor | None, uniform_sbuf: nl.NkiTensor | None, classes: int) -> nl.NkiTensor:
    """Return, for each class, minus its weight, times ``uniform_sbuf`` if that is not None: float32 [128, C]."""
    if class_weight_hbm is None:
        factors_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=factors_sbuf, value=-1.0)
    else:
        factors_sbuf = scaled(in_all_partitions(class_weight_hbm), -1.0)
    return factors_sbuf if uniform_sbuf is None else scaled(factors_sbuf, uniform_sbuf)


@dataclass(frozen=True)
class _Backward:
    """The operands that all tiles of the backward share.

    Attributes:
        masks: the source of the masks of classes.
        factors_sbuf: the result of :func:`_factors`, [128, C]: for each class the gradient at targets of this class. If
            each loss has its own upstream gradient, the gradient is that times this factor.
        upstream: the upstream gradients of the losses.
        is_weighted: whether there are class weights.
    """

    masks: ClassMasks
    factors_sbuf: nl.NkiTensor
    upstream: IndexedUpstream
    is_weighted: bool

    def load(self, targets: TargetTile, dtype: nl.DType) -> _LoadedUpstream:
        """Load the upstream gradients of a tile if each loss has its own; negate them if there are no class weights."""
        tile = targets.tile
        if not self.upstream.is_each:
            return _LoadedUpstream(targets, None, None)
        grad_sbuf = nl.ndarray((tile.partitions, tile.positions), dtype=self.upstream.grad_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=grad_sbuf, src=tile.of(self.upstream.grad_hbm))
        if self.is_weighted:
            return _LoadedUpstream(targets, None, grad_sbuf)
        return _LoadedUpstream(targets, self._product(grad_sbuf, 0, dtype), None)

    def make(self, loaded: _LoadedUpstream, gradient_sbuf: nl.NkiTensor, first: int, last: int) -> None:
        """Write the gradient for classes [first, last) to ``gradient_sbuf``: 0 except where the class is the target."""
        tile = loaded.targets.tile
        nisa.memset(dst=gradient_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for number, mask_sbuf in self.masks.of_classes(loaded.targets, first, last):
            nisa.tensor_copy_predicated(
                dst=tile.of_class(gradient_sbuf, number - first),
                src=tile.like_class(self._values(loaded, number, gradient_sbuf.dtype)),
                predicate=tile.like_class(mask_sbuf),
            )

    def _values(self, loaded: _LoadedUpstream, number: int, dtype: nl.DType) -> nl.NkiTensor:
        if loaded.values_sbuf is not None:
            return loaded.values_sbuf
        if loaded.grad_sbuf is not None:
            return self._product(loaded.grad_sbuf, number, dtype)
        tile = loaded.targets.tile
        return self.factors_sbuf[0 : tile.partitions, number : number + 1].broadcast(1, tile.positions)

    def _product(self, grad_sbuf: nl.NkiTensor, number: int, dtype: nl.DType) -> nl.NkiTensor:
        """Return upstream gradients times the factor of class ``number``, in a new tile of type ``dtype``."""
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
    """Compute and store the gradient of this core's tiles in ``grad_input_hbm``, [N, C * D]."""
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
