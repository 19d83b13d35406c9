# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What there is of the positions of a block: their targets with class weights, or several target ids.

Several numbers for each position, [positions, ids] in HBM, are tiles [128, tiles, ids].
"""

from __future__ import annotations

from typing import NamedTuple

from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.rows.tiles import cast, float32_like
from nkilib.experimental.loss.cross_entropy.group import TargetValues
from nkilib.experimental.loss.cross_entropy.options import Classes, Options
from nkilib.experimental.loss.cross_entropy.targets import TargetMasks
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.operands import load_positions
from nkilib.experimental.loss.linear_cross_entropy.shared.options import LinearLaunch
from nkilib.nki import nisa, nl


class _Part(NamedTuple):
    """Positions whose numbers are one transfer.

    Attributes:
        rows_hbm: [partitions, tiles, ids].
        first, end: number of the first tile, and of the one after the last.
    """

    rows_hbm: nl.NkiTensor
    first: int
    end: int


def load_ids(matrix_hbm: nl.NkiTensor, fill: float, columns: int | None = None) -> nl.NkiTensor:
    """The numbers of all positions, float32 ``[128, tiles, columns]``; ``[p, t]`` are those of position ``128 t + p``.

    Args:
        matrix_hbm: [positions, ids], of 4 bytes each; a number that float32 cannot hold is rounded.
        fill: stands beyond the last position and the last id.
        columns: at least as many as ids; None: as many.
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
    """The reverse of :func:`load_ids`, from float32 [128, tiles, ids] to a matrix of float32."""
    for part in _parts(matrix_hbm):
        rows = part.rows_hbm.shape[0]
        nisa.dma_copy(dst=part.rows_hbm, src=values_sbuf[0:rows, part.first : part.end])


def one_or_several(matrix_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """A matrix [positions, ids] as it is, or as a vector [positions] where there is one id."""
    return matrix_hbm.select(1, 0) if matrix_hbm.shape[1] == 1 else matrix_hbm


def _parts(matrix_hbm: nl.NkiTensor) -> list[_Part]:
    """Whole tiles of positions, and the rest: views."""
    positions = matrix_hbm.shape[0]
    tiles, rest = divmod(positions, PARTITIONS)
    found: list[_Part] = []
    if tiles > 0:
        whole_hbm = matrix_hbm.slice(0, 0, tiles * PARTITIONS).reshape_dim(0, (tiles, PARTITIONS))
        found.append(_Part(whole_hbm.permute((1, 0, 2)), 0, tiles))
    if rest > 0:
        rest_hbm = matrix_hbm.slice(0, tiles * PARTITIONS, positions)
        found.append(_Part(rest_hbm.expand_dim(1), tiles, tiles + 1))
    return found


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
