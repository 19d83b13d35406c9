# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensors and options of a launch of the kernels, and their checks.

The checks run before the first instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.losses.checks import require_floats, require_reduction
from nkilib.core.plan_limits import limited_sbuf_bytes
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.checks import require
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

PARTITIONS = 128
# Classes of a row, which is on chip as a whole. Counts of pairs of them are exact in float32.
CLASSES_MAX = 4096
# Blocks of a launch at most: the program of so many blocks is near the limit of its length.
BLOCKS_MAX = 2048
# Bytes of a partition for all tiles of C columns, and the bytes for each class that all blocks share.
_TILE_BYTES, _SHARED_BYTES = 190_000, 28


@dataclass(frozen=True)
class RowBlock:
    """Rows that are processed at a time, one in each partition.

    Attributes:
        number: the number of the block among all blocks of the launch.
        place: the number of the block among the blocks of its core.
        batch: the rows.
        is_stored: whether this core stores the results of the rows.
    """

    number: int
    place: int
    batch: Batch
    is_stored: bool


@dataclass(frozen=True)
class Launch:
    """The arguments of a launch of the forward or the backward kernel.

    Attributes:
        function: the name of the kernel in error messages.
        input_hbm: the scores, [N, C].
        targets_hbm: the list of targets of each row, int32 [N, C].
        reduction: the reduction of the losses.
    """

    function: str
    input_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor
    reduction: str

    @property
    def rows(self) -> int:
        """The number of rows, N."""
        return int(self.input_hbm.shape[0])

    @property
    def classes(self) -> int:
        """The number of classes, C."""
        return int(self.input_hbm.shape[1])

    @property
    def is_each(self) -> bool:
        """Whether each loss is stored, that is whether ``reduction`` is ``"none"``."""
        return self.reduction == "none"

    @property
    def factor(self) -> float:
        """The factor of the sum of a row: 1 / C, or for a mean 1 / (N C)."""
        return 1.0 / (self.classes * (self.rows if self.reduction == "mean" else 1))

    @property
    def number_of_blocks(self) -> int:
        """The number of blocks of rows of all cores.

        It is even, so that both cores run their loops equally often, and does not depend on the number of cores.
        """
        return 2 * div_ceil(self.rows, 2 * PARTITIONS)

    def groups(self, bytes_of_class: int) -> list[list[RowBlock]]:
        """Return the blocks of this core in groups; each loop processes a whole group, because starting a loop takes
        long.

        Args:
            bytes_of_class: the bytes of a partition that a block takes for each class.
        """
        blocks = self.blocks()
        fitting = max(1, (limited_sbuf_bytes(_TILE_BYTES) // self.classes - _SHARED_BYTES) // bytes_of_class)
        size = div_ceil(len(blocks), div_ceil(len(blocks), fitting))
        return [blocks[start : start + size] for start in range(0, len(blocks), size)]

    def blocks(self) -> list[RowBlock]:
        """Return the blocks of this core.

        If there is only one row, both cores process it, and only the first one stores its results.
        """
        cores, core, count = nl.num_programs(), nl.program_id(0), self.number_of_blocks
        if self.rows == 1:
            return [RowBlock(0, 0, Batch(0, 1, 1), core == 0)]
        bounds = [self.rows * number // count for number in range(count + 1)]
        return [
            RowBlock(number, place, Batch(bounds[number], bounds[number + 1] - bounds[number], 1), True)
            for place, number in enumerate(range(core, count, cores))
        ]


@dataclass(frozen=True)
class InputBuffers:
    """Tiles [128, C] for the input, which each group of blocks reuses.

    Attributes:
        launch: the launch of the kernel.
        tiles_sbuf: one tile for each block of a group.
    """

    launch: Launch
    tiles_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: Launch, blocks: int) -> InputBuffers:
        """Allocate the tiles for groups of ``blocks`` blocks."""
        shape, dtype = (PARTITIONS, launch.classes), launch.input_hbm.dtype
        return cls(launch, [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(blocks)])

    def loaded(self, group: list[RowBlock]) -> list[nl.NkiTensor]:
        """Load the inputs of a group, a tile [rows, C] for each block.

        A row whose results the other core stores is replaced by zeros, because the other core may overwrite it.
        """
        inputs = []
        for block, tile_sbuf in zip(group, self.tiles_sbuf, strict=False):
            input_sbuf = tile_sbuf[0 : block.batch.rows, :]
            if block.is_stored:
                nisa.dma_copy(dst=input_sbuf, src=block.batch.part_of(self.launch.input_hbm, 0, self.launch.classes))
            else:
                nisa.memset(dst=input_sbuf, value=0.0)
            inputs.append(input_sbuf)
        return inputs


def validate(launch: Launch) -> None:
    """Check the tensors and options of either kernel."""
    function, shape = launch.function, tuple(launch.input_hbm.shape)
    require(
        len(shape) == 2 and min(shape) > 0,
        f"{function}: input_hbm must have shape (N, C) with N, C > 0, got {shape}; reshape [C] to [1, C]",
    )
    require_floats(function, "input_hbm.dtype", launch.input_hbm.dtype)
    targets_hbm = launch.targets_hbm
    require(
        tuple(targets_hbm.shape) == shape and targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32 of shape {shape}, got {targets_hbm.dtype} of shape "
        f"{tuple(targets_hbm.shape)}; cast it to int32, and fill rows with -1",
    )
    require(
        launch.classes <= CLASSES_MAX,
        f"{function}: a row must have at most {CLASSES_MAX} classes, which are on chip together, got {launch.classes}; "
        f"drop classes that are nobody's target",
    )
    require(
        launch.number_of_blocks <= BLOCKS_MAX,
        f"{function}: a launch takes at most {BLOCKS_MAX * PARTITIONS} rows, got {launch.rows}; split the rows",
    )
    require_reduction(function, launch.reduction)
