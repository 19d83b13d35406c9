# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient with respect to an input of few classes, computed on chip and written once, in long runs."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.tiles import cast, scaled
from nkilib.experimental.loss.nll.class_masks import ClassMasks, TargetTile
from nkilib.experimental.loss.nll.class_tiles import ClassTiling, loaded_weights
from nkilib.experimental.loss.skeletons.indexed.positions import PARTITIONS, Shape
from nkilib.experimental.loss.skeletons.indexed.upstream import Upstream
from nkilib.nki import nisa, nl

_BUFFERS = 3


def streamed_backward_of_core(
    grad_input_hbm: nl.NkiTensor,
    shape: Shape,
    targets_hbm: nl.NkiTensor,
    class_weight_hbm: nl.NkiTensor | None,
    ignore_index: int,
    upstream: Upstream,
) -> None:
    """Write the gradient [N, C * D] of the tiles of this core."""
    tiling = ClassTiling.of(shape, grad_input_hbm.dtype)
    masks = ClassMasks.make(targets_hbm, ignore_index, tiling.positions)
    factors_sbuf = _factors(loaded_weights(class_weight_hbm), upstream.uniform(), shape.classes)
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


@dataclass(frozen=True)
class _Loaded:
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


def _factors(weights_sbuf: nl.NkiTensor | None, uniform_sbuf: nl.NkiTensor | None, classes: int) -> nl.NkiTensor:
    """Return -w for the weight w of each class, times the upstream gradient if all losses share one: float32 [128,
    C].
    """
    if weights_sbuf is None:
        weights_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=weights_sbuf, value=1.0)
    factors_sbuf = scaled(weights_sbuf, -1.0)
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
    upstream: Upstream
    is_weighted: bool

    def load(self, targets: TargetTile, dtype: nl.DType) -> _Loaded:
        """Load the upstream gradients of a tile, and multiply them by the factor if it is the same for all classes."""
        tile = targets.tile
        if not self.upstream.is_each:
            return _Loaded(targets, None, None)
        grad_sbuf = nl.ndarray((tile.partitions, tile.positions), dtype=self.upstream.grad_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=grad_sbuf, src=tile.of(self.upstream.grad_hbm))
        if self.is_weighted:
            return _Loaded(targets, None, grad_sbuf)
        return _Loaded(targets, self._product(grad_sbuf, 0, dtype), None)

    def make(self, loaded: _Loaded, gradient_sbuf: nl.NkiTensor, first: int, last: int) -> None:
        """Compute the gradient with respect to classes [first, last): a value where the class is the target, else 0."""
        tile = loaded.targets.tile
        nisa.memset(dst=gradient_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for number, mask_sbuf in self.masks.of_classes(loaded.targets, first, last):
            nisa.tensor_copy_predicated(
                dst=tile.of_class(gradient_sbuf, number - first),
                src=tile.like_class(self._values(loaded, number, gradient_sbuf.dtype)),
                predicate=tile.like_class(mask_sbuf),
            )

    def _values(self, loaded: _Loaded, number: int, dtype: nl.DType) -> nl.NkiTensor:
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
