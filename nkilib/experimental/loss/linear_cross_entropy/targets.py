# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The targets of positions on chip: loaded from HBM, compared with the classes of a shard, and their class weights.

Targets [positions] are [128, tiles] on chip, one column for each tile of 128 positions. Several target ids per
position, [positions, ids], are [128, tiles, ids] on chip. :func:`load_targets` loads the targets or ids of a block of
positions; :func:`load_ids` and :func:`store_ids` load and store one value for each id. :func:`target_values` tells
which targets are valid and which are in the shard, with their class weights (:func:`weights_of_targets`).
"""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.tiles import cast, float32_like
from nkilib.experimental.loss.cross_entropy.launch import Classes, Options
from nkilib.experimental.loss.cross_entropy.targets import TargetMasks, TargetValues
from nkilib.experimental.loss.linear.block_schedule import Block
from nkilib.experimental.loss.linear.operands import load_positions
from nkilib.experimental.loss.linear_cross_entropy.launch import LinearLaunch
from nkilib.nki import nisa, nl


class _Part(NamedTuple):
    """Positions whose values are loaded or stored in one transfer.

    Attributes:
        rows_hbm: the values, [partitions, tiles, ids].
        first, end: the number of the first tile, and of the tile after the last.
    """

    rows_hbm: nl.NkiTensor
    first: int
    end: int


def _parts(matrix_hbm: nl.NkiTensor) -> list[_Part]:
    # One view of the whole tiles of positions, and one of the remaining positions; each only if there are any.
    positions = matrix_hbm.shape[0]
    tiles, rest = divmod(positions, PARTITIONS)
    parts: list[_Part] = []
    if tiles > 0:
        whole_hbm = matrix_hbm.slice(0, 0, tiles * PARTITIONS).reshape_dim(0, (tiles, PARTITIONS))
        parts.append(_Part(whole_hbm.permute((1, 0, 2)), 0, tiles))
    if rest > 0:
        rest_hbm = matrix_hbm.slice(0, tiles * PARTITIONS, positions)
        parts.append(_Part(rest_hbm.expand_dim(1), tiles, tiles + 1))
    return parts


def load_ids(matrix_hbm: nl.NkiTensor, fill: float, columns: int | None = None) -> nl.NkiTensor:
    """Return the values of all positions and ids, float32 [128, tiles, columns].

    Element ``[p, t, k]`` is the value of position ``128 t + p`` and id k.

    Args:
        matrix_hbm: the values, [positions, ids], of 4 bytes each; a value that float32 cannot hold is rounded.
        fill: the value beyond the last position and the last id.
        columns: the number of columns, at least ``ids``; None for ``ids``.
    """
    positions, ids = matrix_hbm.shape
    columns = ids if columns is None else columns
    tiles = -(-positions // PARTITIONS)
    loaded_sbuf = nl.ndarray((PARTITIONS, tiles, columns), dtype=matrix_hbm.dtype, buffer=nl.sbuf)
    if columns > ids:
        nisa.memset(dst=loaded_sbuf, value=fill)
    elif positions % PARTITIONS > 0:
        nisa.memset(dst=loaded_sbuf[:, tiles - 1 : tiles], value=fill)
    for part in _parts(matrix_hbm):
        rows = part.rows_hbm.shape[0]
        nisa.dma_copy(dst=loaded_sbuf[0:rows, part.first : part.end, 0:ids], src=part.rows_hbm)
    return cast(loaded_sbuf, nl.float32)


def store_ids(matrix_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
    """Store float32 [128, tiles, ids] as a float32 matrix [positions, ids]; the reverse of :func:`load_ids`."""
    for part in _parts(matrix_hbm):
        rows = part.rows_hbm.shape[0]
        nisa.dma_copy(dst=part.rows_hbm, src=values_sbuf[0:rows, part.first : part.end])


def one_or_several(matrix_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return a matrix [positions, ids] as it is, or as a vector [positions] if there is one id."""
    return matrix_hbm.select(1, 0) if matrix_hbm.shape[1] == 1 else matrix_hbm


def load_targets(launch: LinearLaunch, block: Block) -> nl.NkiTensor:
    """Return the targets of a block of positions, float32 [128, tiles] or [128, tiles, ids]; exact up to class 2^24."""
    targets_hbm = block.of(launch.targets_hbm)
    return load_positions(targets_hbm, fill=-1.0) if launch.ids == 1 else load_ids(targets_hbm, fill=-1.0)


def _masks(targets_sbuf: nl.NkiTensor, options: Options) -> TargetMasks:
    masks = TargetMasks(*(nl.ndarray(targets_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf) for _ in range(2)))
    first, last = options.classes.first, options.classes.first + options.classes.count - 1
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
        dst=masks.local_sbuf,
        data=targets_sbuf,
        op0=nl.not_equal,
        operand0=float(options.recipe.ignore_index),
        op1=nl.multiply,
        operand1=is_held_sbuf,
    )
    return masks


def weights_of_targets(class_weight_hbm: nl.NkiTensor, targets_sbuf: nl.NkiTensor, classes: Classes) -> nl.NkiTensor:
    """Return the class weights of targets, float32 [128, tiles].

    A target in another shard gets the weight of the nearest class of this shard.

    Args:
        class_weight_hbm: the class weights of the shard.
        targets_sbuf: the targets, float32 [128, tiles].
        classes: the classes of the shard.
    """
    index_sbuf = nl.ndarray(targets_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    first, count = float(classes.first), float(classes.count)
    nearest_sbuf = float32_like(targets_sbuf)
    nisa.tensor_scalar(
        dst=nearest_sbuf, data=targets_sbuf, op0=nl.subtract, operand0=first, op1=nl.maximum, operand1=0.0
    )
    nisa.tensor_scalar(dst=index_sbuf, data=nearest_sbuf, op0=nl.minimum, operand0=count - 1.0)
    weights_sbuf = float32_like(targets_sbuf)
    for tile in range(targets_sbuf.shape[1]):
        nisa.dma_copy(
            dst=weights_sbuf[:, tile : tile + 1],
            src=vector_elements(class_weight_hbm, index_sbuf[:, tile : tile + 1]),
        )
    return weights_sbuf


def target_values(
    launch: LinearLaunch, options: Options, targets_sbuf: nl.NkiTensor, logits_sbuf: nl.NkiTensor
) -> TargetValues:
    """Return masks of the targets that are valid and of those in this shard, class weights, and ``logits_sbuf``.

    Args:
        launch, options: the operands and options of the kernel.
        targets_sbuf: the targets.
        logits_sbuf: a tensor of the same shape for the logits at the targets, which the caller computes later.
    """
    masks = _masks(targets_sbuf, options)
    weights_sbuf = None
    if launch.class_weight_hbm is not None:
        weights_sbuf = weights_of_targets(launch.class_weight_hbm, targets_sbuf, options.classes)
    return TargetValues(logits_sbuf, masks, weights_sbuf)
