# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cores of a logical NeuronCore: the division of work over them, a barrier, and sums over all of them.

NKI code may call everything here. :func:`positions_of_core`, :func:`row_span` and :func:`strided_rows` divide positions
with a stride: core c takes positions c, c + cores, c + 2 * cores, ... The shares of the cores therefore differ by at
most one position, whatever the number of positions is. :func:`synchronise` is the barrier.

:class:`PartialSums` adds up numbers, bitwise identical on one core and on two. The work of a launch is divided into
parts; a part, which one core does, leaves a float32 number in each partition. Each core keeps these numbers in the
column of the part, and zeros in the columns of the other core's parts. At the end the cores exchange the tiles and add
them, which is exact, because one summand is zero. Both then add the same numbers in the same order, 32 at a time
(:func:`levels`).
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.nki import nisa, nl

# How many numbers are added one after the other; their sums are added in the same way, and so on.
LEAF = 32


def positions_of_core(num_positions: int, cores: int, core: int) -> int:
    """Return how many of ``num_positions`` positions core number ``core`` of ``cores`` processes; it may be 0."""
    if num_positions <= core:
        return 0
    return div_ceil(num_positions - core, cores)


def row_span(rows: int, cores: int) -> int:
    """Return how many rows of a matrix lie from the first to the last one of ``rows`` rows that are ``cores`` apart."""
    return (rows - 1) * cores + 1


def strided_rows(tensor_hbm: nl.NkiTensor, first: int, rows: int, cores: int) -> nl.NkiTensor:
    """Return a view of ``rows`` rows of a matrix in HBM that are ``cores`` apart: ``first``, ``first + cores``, ..."""
    return tensor_hbm.slice(0, first, first + row_span(rows, cores), cores)


def synchronise(tensor_hbm: nl.NkiTensor) -> None:
    """Let every core wait at a barrier until all cores are done with a tensor."""
    if nl.num_programs() > 1:
        nisa.core_barrier(tensor_hbm, tuple(range(nl.num_programs())))


def levels(parts: int) -> int:
    """Return how many rounds turn ``parts`` numbers in each partition into one, if a round sums ``LEAF`` numbers at a
    time.
    """
    count = 0
    while parts > 1:
        parts, count = div_ceil(parts, LEAF), count + 1
    return count


def _added(numbers_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the sums of ``LEAF`` neighbouring columns at a time, one column for each sum; of all columns, if there are
    fewer.

    If there are more than ``LEAF`` sums, columns of zeros follow them, up to a multiple of ``LEAF``.
    """
    rows, columns = numbers_sbuf.shape
    leaf = min(LEAF, columns)
    sums = div_ceil(columns, leaf)
    padded = sums if sums <= LEAF else div_ceil(sums, LEAF) * LEAF
    sums_sbuf = nl.ndarray((rows, padded), dtype=nl.float32, buffer=nl.sbuf)
    if padded > sums:
        nisa.memset(dst=sums_sbuf[:, sums:padded], value=0.0)
    nisa.tensor_reduce(dst=sums_sbuf[:, 0:sums], op=nl.add, data=numbers_sbuf.reshape((rows, sums, leaf)), axis=2)
    return sums_sbuf


@dataclass(frozen=True)
class PartialSums:
    """Sums of float32 numbers, one for each partition and each part of the work of a launch.

    Attributes:
        sums_sbuf: the sums of the parts of this core, [128, columns]; a column is a part, and the number of columns is
            a multiple of ``LEAF``.
    """

    sums_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, parts: int) -> PartialSums:
        """Return sums for ``parts`` parts of the work, in new memory that is set to zero."""
        columns = div_ceil(parts, LEAF) * LEAF
        sums_sbuf = nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=sums_sbuf, value=0.0)
        return cls(sums_sbuf)

    def of_part(self, part: int, rows: int) -> nl.NkiTensor:
        """Return the view [rows, 1] to which a part of the work writes its numbers."""
        return self.sums_sbuf[0:rows, part : part + 1]

    def total(self, pipe: int) -> nl.NkiTensor:
        """Return the sum of all numbers, [1, 1], on every core.

        Args:
            pipe: the number of the pipe through which the cores exchange their sums; several sums of one launch need
                different pipes.
        """
        sums_sbuf = self._of_all_cores(pipe)
        while sums_sbuf.shape[1] > 1:
            sums_sbuf = _added(sums_sbuf)
        turned_psum = nl.ndarray((1, PARTITIONS), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned_psum, data=sums_sbuf)
        total_sbuf = nl.ndarray((1, PARTITIONS), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=total_sbuf, src=turned_psum)
        while total_sbuf.shape[1] > 1:
            total_sbuf = _added(total_sbuf)
        return total_sbuf

    def store(self, dst_hbm: nl.NkiTensor, factor: float = 1.0) -> None:
        """Store the sum of all numbers times a factor as one float32, from the first core."""
        total_sbuf = self.total(pipe=0)
        if factor != 1.0:
            nisa.tensor_scalar(dst=total_sbuf, data=total_sbuf, op0=nl.multiply, operand0=factor)
        if nl.program_id(0) == 0:
            nisa.dma_copy(dst=dst_hbm.reshape((1, 1)), src=total_sbuf)

    def _of_all_cores(self, pipe: int) -> nl.NkiTensor:
        if nl.num_programs() == 1:
            return self.sums_sbuf
        peer = 1 - nl.program_id(0)
        received_sbuf = nl.ndarray(self.sums_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.sendrecv(src=self.sums_sbuf, dst=received_sbuf, send_to_rank=peer, recv_from_rank=peer, pipe_id=pipe)
        nisa.tensor_tensor(dst=received_sbuf, data1=received_sbuf, data2=self.sums_sbuf, op=nl.add)
        return received_sbuf
