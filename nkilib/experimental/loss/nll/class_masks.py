# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Masks of the positions of a tile whose target is a given class.

Targets and classes are compared as bfloat16, which represents all classes exactly; no other integer rounds
to one of them. Nothing is multiplied by a mask, because elements of other classes may be infinite or NaN;
elements are copied where the mask is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.experimental.loss.nll.class_tiles import ClassTile
from nkilib.nki import nisa, nl

# Masks that are computed ahead of the one that is used, and tiles for them.
_AHEAD, _MASKS = 2, 4
_NO_CLASS = -1.0
# In bfloat16 no other integer rounds to an integer below this limit.
_EXACT_BELOW = 256


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
        classes_sbuf: the targets, but -1 in place of an ignored target that is a class.
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
        masks_sbuf: bfloat16 tiles for masks, used as a ring buffer.
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
