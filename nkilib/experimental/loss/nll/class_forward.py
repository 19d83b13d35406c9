# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of an input of few classes, which is read as a whole, once, in long runs."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.tiles import sum_in_place
from nkilib.experimental.loss.nll.class_masks import ClassMasks, TargetTile
from nkilib.experimental.loss.nll.class_tiles import ClassTile, ClassTiling, loaded_weights
from nkilib.experimental.loss.nll.forward import Results, Sums, store_sums, weigh
from nkilib.experimental.loss.skeletons.indexed.positions import Shape
from nkilib.nki import nisa, nl

_BUFFERS = 3


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
    stage = _Forward(masks, loaded_weights(class_weight_hbm), results, sums)
    ring = ring_of(_BUFFERS, tiling.classes * tiling.positions, input_hbm.dtype)
    visits = [(tile, first, last) for tile in tiles for first, last in tiling.groups]
    on_chip: list[nl.NkiTensor] = []
    visit = 0
    for targets in masks.of_tiles(tiles):
        chosen = stage.begin(targets, input_hbm.dtype)
        for first, last in tiling.groups:
            for number in range(len(on_chip), min(visit + _BUFFERS - 1, len(visits))):
                on_chip.append(_loaded(*visits[number], ring[number % _BUFFERS], input_hbm))
            stage.choose(chosen, on_chip[visit], first, last)
            visit += 1
        stage.finish(chosen)
    store_sums(sums, results)


def _loaded(tile: ClassTile, first: int, last: int, buffer_sbuf: nl.NkiTensor, input_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load the elements of classes [first, last) of a tile."""
    input_sbuf = tile.on_chip(buffer_sbuf, last - first)
    nisa.dma_copy(dst=input_sbuf, src=tile.classes_of(input_hbm, first, last))
    return input_sbuf


@dataclass(frozen=True)
class Chosen:
    """The elements and weights at the targets of one tile: [partitions, positions].

    Attributes:
        targets: the targets of the positions.
        values_sbuf: the elements at the targets, in the type of the input.
        weight_sbuf: the class weights of the targets; 0 for ignored ones.
    """

    targets: TargetTile
    values_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _Forward:
    """The operands and results that all tiles share.

    Attributes:
        masks: the masks of the classes.
        weights_sbuf: the class weights, float32 [128, C]; None for weights of 1.
        results: the tensors that the losses go to.
        sums: the partial sums of losses and weights.
    """

    masks: ClassMasks
    weights_sbuf: nl.NkiTensor | None
    results: Results
    sums: Sums

    def begin(self, targets: TargetTile, dtype: nl.DType) -> Chosen:
        """Set the elements to NaN, which remains where a target is out of range, and to 0 where it is ignored."""
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
        """Copy the elements whose class is the target, among classes [first, last), which are on chip."""
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
