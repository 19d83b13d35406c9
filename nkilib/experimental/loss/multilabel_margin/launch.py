# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of the multi-label margin loss: its arguments and checks, and the targets and scores of rows on chip.

:class:`Launch` has the arguments, which :func:`validate` checks. A *block* (:class:`RowBlock`) is up to 128 rows that
are processed together; N is the number of rows, C the number of classes. :class:`InputBuffers` loads the inputs of
blocks, :class:`TargetReader` the targets, and :class:`Scores` separates the scores of targets from the others.

The targets of a row are a list, ended by the first negative number (:class:`TargetLists`). Each iteration of a device
loop processes ``TARGETS_OF_ITERATION`` targets of every row, but the lists have different lengths. Therefore the loop
runs as often as the longest list of all rows needs, and shorter lists are padded with 0; targets in padded lists are
class numbers from 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.loss_arguments import require_float_tensor, require_reduction
from nkilib.core.plan_limits import limited_sbuf_bytes
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.checks import require
from nkilib.core.rows.tiles import FLOAT32_HIGHEST, float32_like
from nkilib.nki import nisa, nl

# Classes of a row, which is on chip as a whole. Counts of pairs of them are exact in float32.
CLASSES_MAX = 4096
# Blocks of a launch at most: the program of so many blocks is near the limit of its length.
BLOCKS_MAX = 2048
# Bytes of a partition for all tiles of C columns, and the bytes for each class that all blocks share.
_TILE_BYTES, _SHARED_BYTES = 190_000, 28
# The largest finite number of each type, and the score of a target among the other classes.
_HIGHEST = {nl.float32: FLOAT32_HIGHEST, nl.bfloat16: 3.3895313892515355e38, nl.float16: 65504.0}
_LOWEST = float("-inf")
# Targets of an iteration: the instructions of one target hide the latencies of the others.
TARGETS_OF_ITERATION = 4
_BITS_OF_TARGET = 2
_PIPE = 1


@dataclass(frozen=True)
class RowBlock:
    """A block of rows, one in each partition.

    Attributes:
        number: the index of the block among all blocks of the launch.
        place: the index of the block among the blocks of its core.
        batch: the rows.
        is_stored: whether this core stores the results of the rows; False only on the second core, if N is 1.
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
        """Whether ``reduction`` is ``"none"``, so that each loss is stored."""
        return self.reduction == "none"

    @property
    def factor(self) -> float:
        """The factor that turns the sum of a row's terms into its loss: 1 / C, or for a mean 1 / (N C)."""
        return 1.0 / (self.classes * (self.rows if self.reduction == "mean" else 1))

    @property
    def number_of_blocks(self) -> int:
        """The number of blocks of all cores, if N > 1: even, so that two cores have equally many blocks."""
        return 2 * div_ceil(self.rows, 2 * PARTITIONS)

    def groups(self, bytes_of_class: int) -> list[list[RowBlock]]:
        """Return the blocks of this core in groups of as many as fit SBUF; a device loop processes a whole group.

        Args:
            bytes_of_class: the bytes per partition that each block needs, divided by C.
        """
        blocks = self.blocks()
        fitting = max(1, (limited_sbuf_bytes(_TILE_BYTES) // self.classes - _SHARED_BYTES) // bytes_of_class)
        size = div_ceil(len(blocks), div_ceil(len(blocks), fitting))
        return [blocks[start : start + size] for start in range(0, len(blocks), size)]

    def blocks(self) -> list[RowBlock]:
        """Return the blocks of this core, in order; if N is 1, both cores get the row, and only the first stores it."""
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
    """Tiles [128, C] for the input, which all groups reuse.

    Attributes:
        launch: the launch of the kernel.
        tiles_sbuf: one tile for each block of a group.
    """

    launch: Launch
    tiles_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: Launch, blocks: int) -> InputBuffers:
        """Allocate tiles for groups of ``blocks`` blocks."""
        shape, dtype = (PARTITIONS, launch.classes), launch.input_hbm.dtype
        return cls(launch, [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(blocks)])

    def loaded(self, group: list[RowBlock]) -> list[nl.NkiTensor]:
        """Load the inputs of a group, and return one tile [rows, C] for each block.

        Where this core does not store the results, the tile has zeros: the other core may overwrite the row in HBM.
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
    """Check the arguments of a launch.

    Raises:
        AssertionError: if an argument is not accepted.
    """
    function, shape = launch.function, tuple(launch.input_hbm.shape)
    require(
        len(shape) == 2 and min(shape) > 0,
        f"{function}: input_hbm must have shape (N, C) with N, C > 0, got {shape}; reshape [C] to [1, C]",
    )
    require_float_tensor(function, "input_hbm.dtype", launch.input_hbm.dtype)
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


def iterations_of(classes: int) -> int:
    """Return the number of iterations of a device loop over lists of ``classes`` targets, the longest possible."""
    return div_ceil(classes, TARGETS_OF_ITERATION)


@dataclass(frozen=True)
class Ordinals:
    """The class numbers from 1 on: float32 [128, C], equal in every partition.

    Attributes:
        rising_sbuf: 1, 2, ..., C.
        falling_sbuf: C, C - 1, ..., 1.
    """

    rising_sbuf: nl.NkiTensor
    falling_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, classes: int) -> Ordinals:
        """Compute both tiles for ``classes`` classes."""
        tiles = []
        for first, step in ((1, 1), (classes, -1)):
            counted_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.int32, buffer=nl.sbuf)
            tile_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
            nisa.iota(dst=counted_sbuf, pattern=[[step, classes]], offset=first, channel_multiplier=0)
            nisa.tensor_copy(dst=tile_sbuf, src=counted_sbuf)
            tiles.append(tile_sbuf)
        return cls(tiles[0], tiles[1])


def of_iteration(tile_sbuf: nl.NkiTensor, iteration: nisa.VirtualRegister, place: int) -> nl.NkiTensor:
    """Return a view [rows, 1] of a tile: for each row the value of target number ``place`` of an iteration.

    Args:
        tile_sbuf: one value for each target, [rows, iterations, targets of an iteration].
        iteration: the index of the iteration of the device loop.
        place: the index of the target in the iteration.
    """
    rows = tile_sbuf.shape[0]
    return tile_sbuf[:, nl.ds(iteration, 1), place : place + 1].reshape((rows, 1))


@dataclass(frozen=True)
class TargetLists:
    """The padded lists of targets of a block of rows.

    Attributes:
        classes_sbuf: float32 [rows, iterations, targets of an iteration]: the target classes, counted from 1; 0 after
            the end of a list.
    """

    classes_sbuf: nl.NkiTensor

    def of_iteration(self, iteration: nisa.VirtualRegister, place: int) -> nl.NkiTensor:
        """Return a view [rows, 1]: the target number ``place`` of an iteration, for each row."""
        return of_iteration(self.classes_sbuf, iteration, place)


@dataclass(frozen=True)
class TargetReader:
    """A reader that loads and pads the lists of targets of blocks.

    Attributes:
        launch: the launch of the kernel.
        ordinals: the numbers of the classes.
        loaded_sbuf: two int32 tiles [128, C] for loaded targets, which blocks use alternately.
        unused_sbuf: a scratch tile, float32 [128, C].
    """

    launch: Launch
    ordinals: Ordinals
    loaded_sbuf: list[nl.NkiTensor]
    unused_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, ordinals: Ordinals, unused_sbuf: nl.NkiTensor) -> TargetReader:
        """Allocate the tiles for loaded targets.

        Args:
            launch: the launch of the kernel.
            ordinals: the class numbers.
            unused_sbuf: a scratch tile, float32 [128, C].
        """
        shape = (PARTITIONS, launch.classes)
        loaded = [nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf) for _ in range(2)]
        return cls(launch, ordinals, loaded, unused_sbuf)

    def lengths(self, blocks: list[RowBlock]) -> nl.NkiTensor:
        """Return the number of targets of each row of all blocks, float32 [128, blocks]; 0 where there is no row."""
        lengths_sbuf = nl.ndarray((PARTITIONS, len(blocks)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=lengths_sbuf, value=0.0)
        for block in blocks:
            rows, place = block.batch.rows, block.place
            # Of all negative numbers, the first one has the most classes from it to the end of the row.
            nisa.scalar_tensor_tensor(
                dst=self.unused_sbuf[0:rows, :],
                data=self._loaded(block),
                op0=nl.less,
                operand0=0.0,
                op1=nl.multiply,
                operand1=self.ordinals.falling_sbuf[0:rows, :],
                reduce_op=nl.maximum,
                reduce_res=lengths_sbuf[0:rows, place : place + 1],
            )
            nisa.tensor_scalar(
                dst=lengths_sbuf[0:rows, place : place + 1],
                data=lengths_sbuf[0:rows, place : place + 1],
                op0=nl.multiply,
                operand0=-1.0,
                op1=nl.add,
                operand1=float(self.launch.classes),
            )
        return lengths_sbuf

    def iterations(self, lengths_sbuf: nl.NkiTensor) -> nisa.VirtualRegister:
        """Return the number of iterations that the longest list of all rows of both cores needs.

        ``lengths_sbuf`` is the result of :meth:`lengths` for this core's blocks.
        """
        longest_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=longest_sbuf, op=nl.maximum, data=lengths_sbuf, axis=1)
        transposed_psum = nl.ndarray((1, PARTITIONS), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=transposed_psum, data=longest_sbuf)
        most_sbuf = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=most_sbuf, op=nl.maximum, data=transposed_psum, axis=1)
        if nl.num_programs() > 1:
            other, others_sbuf = 1 - nl.program_id(0), nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.sendrecv(src=most_sbuf, dst=others_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=_PIPE)
            nisa.tensor_tensor(dst=most_sbuf, data1=most_sbuf, data2=others_sbuf, op=nl.maximum)
        nisa.tensor_scalar(dst=most_sbuf, data=most_sbuf, op0=nl.add, operand0=float(TARGETS_OF_ITERATION - 1))
        iterations_sbuf = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=iterations_sbuf, src=most_sbuf)
        nisa.tensor_scalar(dst=iterations_sbuf, data=iterations_sbuf, op0=nl.right_shift, operand0=_BITS_OF_TARGET)
        iterations = nisa.register_alloc()
        nisa.register_load(iterations, iterations_sbuf)
        return iterations

    def lists(self, block: RowBlock, lengths_sbuf: nl.NkiTensor) -> TargetLists:
        """Load the targets of a block and return its padded lists; ``lengths_sbuf`` comes from :meth:`lengths`."""
        rows, classes = block.batch.rows, self.launch.classes
        length_sbuf = lengths_sbuf[0:rows, block.place : block.place + 1]
        iterations = iterations_of(classes)
        padded_sbuf = nl.ndarray((rows, iterations * TARGETS_OF_ITERATION), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=padded_sbuf, value=0.0)
        counts_sbuf = self.unused_sbuf[0:rows, :]
        rising_sbuf = self.ordinals.rising_sbuf[0:rows, :]
        nisa.tensor_scalar(dst=counts_sbuf, data=rising_sbuf, op0=nl.less_equal, operand0=length_sbuf)
        nisa.scalar_tensor_tensor(
            dst=padded_sbuf[:, 0:classes],
            data=self._loaded(block),
            op0=nl.add,
            operand0=1.0,
            op1=nl.multiply,
            operand1=counts_sbuf,
        )
        return TargetLists(padded_sbuf.reshape((rows, iterations, TARGETS_OF_ITERATION)))

    def _loaded(self, block: RowBlock) -> nl.NkiTensor:
        targets_sbuf = self.loaded_sbuf[block.place % len(self.loaded_sbuf)][0 : block.batch.rows, :]
        nisa.dma_copy(dst=targets_sbuf, src=block.batch.part_of(self.launch.targets_hbm, 0, self.launch.classes))
        return targets_sbuf


@dataclass(frozen=True)
class Scores:
    """The scores of a block of rows, as :func:`scores_of_group` returns them.

    Attributes:
        others_sbuf: the scores, [rows, C], in the type of the input; -inf at the targets.
        biases_sbuf: 1 - x_t for each target t of a row's list, float32 [rows, iterations, targets of an iteration];
            after the end of the list the lowest float32, so that no term is positive.
        is_target_sbuf: bfloat16 [rows, C], 1 at every target, else 0.
    """

    others_sbuf: nl.NkiTensor
    biases_sbuf: nl.NkiTensor
    is_target_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, input_sbuf: nl.NkiTensor, lists: TargetLists) -> Scores:
        """Clip the scores of ``input_sbuf`` to finite numbers, in place; set the biases and marks of targets to 0."""
        highest = _HIGHEST[input_sbuf.dtype]
        nisa.tensor_scalar(
            dst=input_sbuf, data=input_sbuf, op0=nl.minimum, operand0=highest, op1=nl.maximum, operand1=-highest
        )
        biases_sbuf = float32_like(lists.classes_sbuf)
        is_target_sbuf = nl.ndarray(input_sbuf.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        for tile_sbuf in (biases_sbuf, is_target_sbuf):
            nisa.memset(dst=tile_sbuf, value=0.0)
        return cls(input_sbuf, biases_sbuf, is_target_sbuf)

    def find_target(
        self,
        iteration: nisa.VirtualRegister,
        place: int,
        lists: TargetLists,
        ordinals: Ordinals,
        unused_sbuf: nl.NkiTensor,
    ) -> None:
        """Copy the score x_t of one target of each row to the target's place in ``biases_sbuf``, and mark the target in
        ``is_target_sbuf``.

        Args:
            iteration: the index of the iteration of the device loop.
            place: the index of the target in the iteration.
            lists: the lists of targets.
            ordinals: the class numbers.
            unused_sbuf: a scratch tile for products, [128, C].
        """
        rows, target_sbuf = self.others_sbuf.shape[0], lists.of_iteration(iteration, place)
        rising_sbuf = ordinals.rising_sbuf[0:rows, :]
        nisa.scalar_tensor_tensor(
            dst=unused_sbuf[0:rows, :],
            data=rising_sbuf,
            op0=nl.equal,
            operand0=target_sbuf,
            op1=nl.multiply,
            operand1=self.others_sbuf,
            reduce_op=nl.add,
            reduce_res=of_iteration(self.biases_sbuf, iteration, place),
        )
        nisa.scalar_tensor_tensor(
            dst=self.is_target_sbuf,
            data=rising_sbuf,
            op0=nl.equal,
            operand0=target_sbuf,
            op1=nl.maximum,
            operand1=self.is_target_sbuf,
        )


def _make_biases(biases_sbuf: nl.NkiTensor, lists: TargetLists) -> None:
    """Replace each x_t in ``biases_sbuf`` by 1 - x_t, and the numbers after the end of a list by the lowest float32."""
    nisa.tensor_scalar(dst=biases_sbuf, data=biases_sbuf, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    is_none_sbuf = nl.ndarray(biases_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_none_sbuf, data=lists.classes_sbuf, op0=nl.equal, operand0=0.0)
    nisa.tensor_copy_predicated(dst=biases_sbuf, src=-FLOAT32_HIGHEST, predicate=is_none_sbuf)


def scores_of_group(
    inputs_sbuf: list[nl.NkiTensor],
    lists: list[TargetLists],
    ordinals: Ordinals,
    iterations: nisa.VirtualRegister,
    unused_sbuf: nl.NkiTensor,
) -> list[Scores]:
    """Return the scores of each block of a group, with the scores of targets separated from those of other classes.

    The score of a target is found as a sum over all classes of score times mask. Infinite scores are clipped to the
    largest finite numbers first, because 0 times infinity is NaN.

    Args:
        inputs_sbuf: the input of each block, [rows, C]; overwritten.
        lists: the target lists of each block.
        ordinals: the class numbers, with which targets are compared.
        iterations: the number of iterations that the longest list of all rows needs.
        unused_sbuf: a scratch tile for products, [128, C].
    """
    group_scores = [
        Scores.make(input_sbuf, target_lists) for input_sbuf, target_lists in zip(inputs_sbuf, lists, strict=True)
    ]

    def find_targets(iteration: nisa.VirtualRegister) -> None:
        for place in range(TARGETS_OF_ITERATION):
            for scores, target_lists in zip(group_scores, lists, strict=True):
                scores.find_target(iteration, place, target_lists, ordinals, unused_sbuf)

    nl.fori_loop(0, iterations, find_targets)
    for scores, target_lists in zip(group_scores, lists, strict=True):
        predicate = scores.is_target_sbuf.view(nl.uint16)
        nisa.tensor_copy_predicated(dst=scores.others_sbuf, src=_LOWEST, predicate=predicate)
        _make_biases(scores.biases_sbuf, target_lists)
    return group_scores
