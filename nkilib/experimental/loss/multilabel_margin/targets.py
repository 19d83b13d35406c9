# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The targets of a block of rows: one list for each row, ended by the first negative number.

The operands of a loop of the device must exist for each of its iterations, and rows have lists of different
lengths. Therefore lists are padded with 0, classes count from 1, and a loop runs as often as the longest
list of all rows needs. Each iteration processes a fixed number of targets of every row.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.multilabel_margin.launch import PARTITIONS, Launch, RowBlock
from nkilib.nki import nisa, nl

# Targets of an iteration: the instructions of one target hide the latencies of the others.
TARGETS_OF_ITERATION = 4
_BITS_OF_TARGET = 2
_PIPE = 1


def iterations_of(classes: int) -> int:
    """Return the number of iterations of a loop over a list that has as many targets as there are classes."""
    return div_ceil(classes, TARGETS_OF_ITERATION)


@dataclass(frozen=True)
class Ordinals:
    """The numbers of the classes, counted from 1: float32 [128, C], the same in every partition.

    Attributes:
        rising_sbuf: 1, 2, ..., C.
        falling_sbuf: C, C - 1, ..., 1.
    """

    rising_sbuf: nl.NkiTensor
    falling_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, classes: int) -> Ordinals:
        """Compute the tiles, which count in int32 and are converted to float32; this is exact."""
        tiles = []
        for first, step in ((1, 1), (classes, -1)):
            counted_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.int32, buffer=nl.sbuf)
            tile_sbuf = nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf)
            nisa.iota(dst=counted_sbuf, pattern=[[step, classes]], offset=first, channel_multiplier=0)
            nisa.tensor_copy(dst=tile_sbuf, src=counted_sbuf)
            tiles.append(tile_sbuf)
        return cls(tiles[0], tiles[1])


@dataclass(frozen=True)
class TargetLists:
    """The padded lists of targets of a block of rows.

    Attributes:
        classes_sbuf: float32 [rows, iterations, targets of an iteration]: classes, counted from 1, and 0 behind
            the end of a list.
    """

    classes_sbuf: nl.NkiTensor

    def of_iteration(self, iteration: nisa.VirtualRegister, place: int) -> nl.NkiTensor:
        """Return target number ``place`` of an iteration, one for each row, [rows, 1]."""
        return of_iteration(self.classes_sbuf, iteration, place)


def of_iteration(tile_sbuf: nl.NkiTensor, iteration: nisa.VirtualRegister, place: int) -> nl.NkiTensor:
    """Return number ``place`` of an iteration, one for each row, from a tile [rows, iterations, targets of an
    iteration].
    """
    rows = tile_sbuf.shape[0]
    return tile_sbuf[:, nl.ds(iteration, 1), place : place + 1].reshape((rows, 1))


@dataclass(frozen=True)
class TargetReader:
    """The tiles with which the lists of all blocks are loaded and computed.

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
        """Allocate the tiles for all blocks."""
        shape = (PARTITIONS, launch.classes)
        loaded = [nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf) for _ in range(2)]
        return cls(launch, ordinals, loaded, unused_sbuf)

    def lengths(self, blocks: list[RowBlock]) -> nl.NkiTensor:
        """Return the lengths of the lists, float32 [128, blocks]; 0 in a partition without a row."""
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
        """Return the number of iterations that the longest list of all rows needs, including the rows of the other
        core.
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
        """Return the padded lists of a block: target + 1 where the place in the row is less than the list's length,
        else 0.
        """
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
