# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensors and options of a launch of the kernels, and their checks.

The checks run before the first instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from nkilib.core.host.options import is_integer
from nkilib.core.losses.checks import require_floats, require_reduction
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.checks import require, require_indirect_dma, require_vector
from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.multi_margin.host.tiling import MOST_COLUMNS, MultiMarginTiling
from nkilib.experimental.loss.skeletons.indexed.elements import ElementFinder
from nkilib.experimental.loss.skeletons.indexed.positions import (
    BATCHES_MAX,
    Block,
    PositionBatch,
    Shape,
    batches_of_block,
    blocks_of,
)
from nkilib.nki import nl


@dataclass(frozen=True)
class MultiMarginOptions:
    """The options of the loss, under the names of the kernels' parameters.

    Attributes:
        p: 1 or 2, the exponent.
        margin: the amount by which the element at the target should exceed the others.
    """

    p: int = 1
    margin: float = 1.0


@dataclass(frozen=True)
class RowBlock:
    """Rows that are processed at a time, one in each partition.

    Attributes:
        batch: the rows as a batch of the input's stream.
        positions: the same rows as positions with targets.
    """

    batch: Batch
    positions: PositionBatch

    @property
    def number(self) -> int:
        """The number of the block among all blocks of the launch."""
        return self.positions.number


@dataclass(frozen=True)
class Launch:
    """The arguments of a launch of the forward or the backward kernel.

    Attributes:
        function: the name of the kernel in error messages.
        input_hbm: the scores, [N, C].
        targets_hbm: the targets, int32 [N].
        class_weight_hbm: the class weights, float32 [C]; None for weights of 1.
        options: the options of the loss.
        reduction: the reduction of the losses.
        tiling: the tiling of a row.
    """

    function: str
    input_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor
    class_weight_hbm: nl.NkiTensor | None
    options: MultiMarginOptions
    reduction: str
    tiling: MultiMarginTiling

    @property
    def shape(self) -> Shape:
        """The shape of the input."""
        return Shape.of(tuple(self.input_hbm.shape))

    @property
    def is_each(self) -> bool:
        """Whether each loss is stored, that is whether ``reduction`` is ``"none"``."""
        return self.reduction == "none"

    @property
    def factor(self) -> float:
        """The factor of the sum of a row besides its weight: 1 / C, or for a mean 1 / (N C)."""
        shape = self.shape
        return 1.0 / (shape.classes * (shape.rows if self.reduction == "mean" else 1))

    @property
    def number_of_blocks(self) -> int:
        """The number of blocks of all cores."""
        return len(blocks_of(self.shape))

    def blocks(self) -> list[RowBlock]:
        """Return the blocks of this core. The division of rows into blocks does not depend on the number of cores."""
        own = blocks_of(self.shape)[nl.program_id(0) :: nl.num_programs()]
        return [_row_block(self.shape, block) for block in own]

    def finder(self) -> ElementFinder:
        """Return the object that locates the elements at the targets."""
        targets_hbm = self.targets_hbm.reshape((self.shape.rows, 1))
        return ElementFinder.make(self.shape, targets_hbm, self.class_weight_hbm, None)


def _row_block(shape: Shape, block: Block) -> RowBlock:
    (positions,) = batches_of_block(shape, block)
    return RowBlock(Batch(block.first, block.rows, 1), positions)


# Chunks of a row at most: a partition keeps their sums.
_MOST_CHUNKS = 4096


def validate(launch: Launch) -> None:
    """Check the tensors and options of either kernel."""
    function, input_hbm = launch.function, launch.input_hbm
    require_indirect_dma(function)
    shape = tuple(input_hbm.shape)
    require(
        len(shape) == 2 and min(shape) > 0,
        f"{function}: input_hbm must have shape (N, C) with N, C > 0, got {shape}; reshape [C] to [1, C]",
    )
    require_floats(function, "input_hbm.dtype", input_hbm.dtype)
    require(
        tuple(launch.targets_hbm.shape) == shape[:1] and launch.targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32 of shape ({shape[0]},), got {launch.targets_hbm.dtype} of shape "
        f"{tuple(launch.targets_hbm.shape)}; cast it to int32",
    )
    if launch.class_weight_hbm is not None:
        require_vector(function, "class_weight_hbm", launch.class_weight_hbm, shape[1], "the classes")
    p, margin = launch.options.p, launch.options.margin
    require(p in (1, 2) and not isinstance(p, bool), f"{function}: p must be 1 or 2, got {p}")
    require(isfinite(margin), f"{function}: margin must be finite, got {margin}; a number near 1 is usual")
    require_reduction(function, launch.reduction)
    _validate_sizes(launch)


def _validate_sizes(launch: Launch) -> None:
    function, shape, chunk_size = launch.function, launch.shape, launch.tiling.chunk_size
    require(
        is_integer(chunk_size) and 0 < chunk_size <= MOST_COLUMNS,
        f"{function}: chunk_size must be an integer from 1 to {MOST_COLUMNS}, got {chunk_size}; leave it out",
    )
    most = min(INDEX_LIMIT, _MOST_CHUNKS * chunk_size)
    require(
        shape.classes <= most,
        f"{function}: a row must have at most {most} classes in chunks of {chunk_size}, got {shape.classes}; "
        f"pass chunk_size={MOST_COLUMNS}, or split the classes",
    )
    blocks = div_ceil(shape.rows, shape.rows_of_block)
    require(
        blocks <= BATCHES_MAX,
        f"{function}: a launch takes at most {BATCHES_MAX} groups of up to 128 rows, got {blocks} of {shape.rows} "
        f"rows; split the rows",
    )
