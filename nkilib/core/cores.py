# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cores of a logical NeuronCore: the division of work over them, a barrier, and sums over all of them.

NKI code may call everything here. :func:`positions_of_core`, :func:`row_span` and :func:`strided_rows` divide positions
with a stride: core c takes positions c, c + cores, c + 2 * cores, ... The numbers of positions of two cores therefore
differ by at most one. :func:`synchronise` is the barrier.

:class:`PartialSums` adds up numbers, bitwise identical on one core and on two. The work of a launch is divided into
*parts*. One core processes a part, and leaves a float32 number in each partition. Each core has a tile with a column
for each part: it writes these numbers to the columns of its own parts, and keeps zeros in the columns of the other
core's parts. At the end the cores exchange the tiles and add them, which is exact, because one summand is zero. Both
cores then add the same numbers in the same order, 32 at a time (:func:`levels`).
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.nki import nisa, nl

# How many numbers are added one after the other; their sums are added in the same way, and so on.
LEAF = 32


def positions_of_core(num_positions: int, cores: int, core: int) -> int:
    """Return how many of ``num_positions`` positions core number ``core`` of ``cores`` cores processes. The result may
    be 0.
    """
    if num_positions <= core:
        return 0
    return div_ceil(num_positions - core, cores)


def row_span(rows: int, cores: int) -> int:
    """Return the number of rows from the first to the last of ``rows`` rows that lie ``cores`` apart, both included."""
    return (rows - 1) * cores + 1


def strided_rows(tensor_hbm: nl.NkiTensor, first: int, rows: int, cores: int) -> nl.NkiTensor:
    """Return a view of ``rows`` rows of a tensor in HBM with a stride of ``cores``: rows ``first``, ``first + cores``,
    ...
    """
    return tensor_hbm.slice(0, first, first + row_span(rows, cores), cores)


def synchronise(tensor_hbm: nl.NkiTensor) -> None:
    """Let each core wait at a barrier until all cores have finished their accesses to a tensor."""
    if nl.num_programs() > 1:
        nisa.core_barrier(tensor_hbm, tuple(range(nl.num_programs())))


def levels(parts: int) -> int:
    """Return how many times :class:`PartialSums` sums groups of ``LEAF`` numbers until ``parts`` numbers have become
    one.
    """
    count = 0
    while parts > 1:
        parts, count = div_ceil(parts, LEAF), count + 1
    return count


def _added(numbers_sbuf: nl.NkiTensor) -> nl.NkiTensor:
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
    """Sums of float32 numbers, one for each partition and each part of a launch (see the module).

    Attributes:
        sums_sbuf: the sums of the parts of this core, [128, columns]. A column belongs to a part; the number of columns
            is a multiple of ``LEAF``.
    """

    sums_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, parts: int) -> PartialSums:
        """Return sums for ``parts`` parts, in new memory that is set to zero."""
        columns = div_ceil(parts, LEAF) * LEAF
        sums_sbuf = nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=sums_sbuf, value=0.0)
        return cls(sums_sbuf)

    def of_part(self, part: int, rows: int) -> nl.NkiTensor:
        """Return the column of part number ``part`` as a view [rows, 1], for the caller to write."""
        return self.sums_sbuf[0:rows, part : part + 1]

    def total(self, pipe: int) -> nl.NkiTensor:
        """Return the sum of all numbers of all cores, [1, 1], on each core.

        Args:
            pipe: the pipe number of the exchange (``pipe_id`` of ``nisa.sendrecv``). Each sum of a launch needs a pipe
                number of its own.
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
        """Store the sum of all numbers times ``factor`` as one float32 in HBM. Only the first core writes it."""
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
