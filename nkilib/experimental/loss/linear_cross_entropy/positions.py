"""The targets of a block of positions, and their class weights."""

from __future__ import annotations

from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.cross_entropy.group import TargetValues
from nkilib.experimental.loss.cross_entropy.options import Classes, Options
from nkilib.experimental.loss.cross_entropy.targets import TargetMasks
from nkilib.experimental.loss.linear.blocks import Block
from nkilib.experimental.loss.linear.operands import load_positions
from nkilib.experimental.loss.linear_cross_entropy.id_positions import load_ids
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch
from nkilib.nki import nisa, nl


def load_targets(launch: LinearLaunch, block: Block) -> nl.NkiTensor:
    """The targets of a block, float32 [128, tiles], exact up to class 2^24; [128, tiles, ids] of ids."""
    targets_hbm = block.of(launch.targets_hbm)
    return load_positions(targets_hbm, fill=-1.0) if launch.ids == 1 else load_ids(targets_hbm, fill=-1.0)


def target_values(
    launch: LinearLaunch, options: Options, targets_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor
) -> TargetValues:
    """Which targets count, and their class weights; the logits are still to be found."""
    masks = _masks(targets_sbuf, options)
    weights_sbuf = None
    if launch.class_weight_hbm is not None:
        weights_sbuf = weights_of_targets(launch.class_weight_hbm, targets_sbuf, options.classes)
    return TargetValues(logits_sbuf, masks, weights_sbuf)


def _masks(targets_sbuf: nl.NkiTensor, options: Options) -> TargetMasks:
    masks = TargetMasks(*(nl.ndarray(targets_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf) for _ in range(2)))
    first, last = options.classes.first, options.classes.first + options.classes.held - 1
    nisa.tensor_scalar(
        dst=masks.valid_sbuf, data=targets_sbuf, op0=nl.not_equal, operand0=float(options.recipe.ignore_index)
    )
    is_held_sbuf = float32_like(targets_sbuf)
    nisa.tensor_scalar(dst=is_held_sbuf, data=targets_sbuf, op0=nl.greater_equal, operand0=float(first))
    nisa.scalar_tensor_tensor(
        dst=is_held_sbuf,
        data=targets_sbuf,
        op0=nl.less_equal,
        operand0=float(last),
        op1=nl.multiply,
        operand1=is_held_sbuf,
    )
    nisa.scalar_tensor_tensor(
        dst=masks.held_sbuf,
        data=targets_sbuf,
        op0=nl.not_equal,
        operand0=float(options.recipe.ignore_index),
        op1=nl.multiply,
        operand1=is_held_sbuf,
    )
    return masks


def weights_of_targets(class_weight_hbm: nl.NkiTensor, targets_sbuf: nl.NkiTensor, classes: Classes) -> nl.NkiTensor:
    """Class weights of targets, float32 [128, tiles]; of the nearest class that is here for those elsewhere."""
    index_sbuf = nl.ndarray(targets_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    first, held = float(classes.first), float(classes.held)
    nearest_sbuf = float32_like(targets_sbuf)
    nisa.tensor_scalar(
        dst=nearest_sbuf, data=targets_sbuf, op0=nl.subtract, operand0=first, op1=nl.maximum, operand1=0.0
    )
    nisa.tensor_scalar(dst=index_sbuf, data=nearest_sbuf, op0=nl.minimum, operand0=held - 1.0)
    weights_sbuf = float32_like(targets_sbuf)
    for tile in range(targets_sbuf.shape[1]):
        nisa.dma_copy(
            dst=weights_sbuf[:, tile : tile + 1],
            src=vector_elements(class_weight_hbm, index_sbuf[:, tile : tile + 1]),
        )
    return weights_sbuf
