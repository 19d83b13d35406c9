# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of the rows of a core into batches, one row per partition, and into groups of batches.

A *batch* is a set of rows that are processed at a time. A *group* is a run of batches of the same size whose results
are computed and stored together. :func:`batches_of_core` makes each :class:`Batch`, :func:`batch_groups` each
:class:`BatchGroup`. Code that also works for gathered rows (:mod:`.gathered`) takes any :class:`RowsOfMatrix` or
:class:`StoredRows`. :class:`RowsAhead` is a load of a group's values that has been started; :class:`GroupedLoads`
starts such loads before the group is processed. With :class:`SwappedResult`, two cores exchange results, so that each
stores contiguous values. Core c has rows c, c + cores, c + 2 * cores, ... (:mod:`nkilib.core.cores`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from nkilib.core.cores import positions_of_core, row_span, strided_rows
from nkilib.nki import nisa, nl

# How many batches share a group at most.
GROUP_BATCHES_MAX = 16
# The results of fewer batches are stored element by element in less time than they are swapped.
SWAPPED_BATCHES_MIN = 4
_PIPE = 0
# Batches whose values are loaded by themselves, where those of later ones are loaded by groups.
LOADED_ALONE = 3
# Rows and columns that Vector transposes at a time.
_TRANSPOSED = 32


class RowsOfMatrix(Protocol):
    """A protocol: rows that are processed at a time, one per partition."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Return columns ``start`` to ``end`` of the rows of a matrix, as a view [rows, columns]."""


class StoredRows(Protocol):
    """A protocol: rows whose results are stored together."""

    @property
    def start(self) -> int:
        """The index of the first batch of the rows, among the batches of the core."""

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, batches] as the values of the rows in a vector [N] in HBM, and return the DMA
        instruction.
        """


@dataclass(frozen=True)
class Batch:
    """Rows that are processed at a time: ``first``, ``first + cores``, ...

    Attributes:
        first: the first row.
        rows: the number of rows, at most one for each partition.
        cores: the number of cores of the launch.
    """

    first: int
    rows: int
    cores: int

    @property
    def span(self) -> int:
        """The number of rows of the matrix from the first row of the batch to the last one, both included."""
        return row_span(self.rows, self.cores)

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Return columns ``start`` to ``end`` of the rows of a matrix, as a view [rows, columns]."""
        return matrix_hbm[self.first : self.first + self.span : self.cores, start:end]

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load the values of the rows from a vector [N] in HBM into a new tile [rows, 1], and return the tile."""
        values_sbuf = nl.ndarray((self.rows, 1), dtype=dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=values_sbuf, src=strided_rows(vector_hbm, self.first, self.rows, self.cores))
        return values_sbuf

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, 1] as the values of the rows in a vector [N] in HBM, and return the DMA instruction."""
        return nisa.dma_copy(dst=strided_rows(vector_hbm, self.first, self.rows, self.cores), src=values_sbuf)


@dataclass(frozen=True)
class BatchGroup:
    """Batches that are finished together. All of them have the same number of rows.

    Attributes:
        start, end: the batches of the core from index ``start`` up to but not including index ``end``.
        first, rows, cores: the attributes of the group's first :class:`Batch`.
    """

    start: int
    end: int
    first: int
    rows: int
    cores: int

    @property
    def batches(self) -> int:
        """The number of batches."""
        return self.end - self.start

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load the values of the rows from a vector [N] in HBM into a new tile [rows, batches], and return the tile."""
        return self._arranged(self._requested(vector_hbm, dtype))

    def ahead(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> RowsAhead:
        """Start to load the values of the rows from a vector [N]. :meth:`RowsAhead.loaded` of the result returns the
        tile.
        """
        return RowsAhead(self, self._requested(vector_hbm, dtype))

    def _requested(self, vector_hbm: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        """Load the values of the rows into a tile that :meth:`_arranged` turns into [rows, batches].

        The values of several batches are loaded as [batches, rows * cores], together with the values of the other
        cores: these are contiguous in HBM, and a DMA engine takes as long for a single value as for contiguous ones.
        """
        if self.batches == 1:
            values_sbuf = nl.ndarray((self.rows, self.batches), dtype=dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=values_sbuf, src=self._of_group(vector_hbm))
            return values_sbuf
        shape = (self.batches, self.rows * self.cores)
        # The last batch is no part of it, so that there are as many values behind the first one.
        rows_hbm = vector_hbm.slice(0, self.first, self.first + shape[0] * shape[1]).reshape_dim(0, shape)
        rows_sbuf = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows_sbuf, src=rows_hbm)
        return rows_sbuf

    def _arranged(self, rows_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the loaded values as a tile [rows, batches]. The values of several batches are transposed on
        Vector.
        """
        if self.batches == 1:
            return rows_sbuf
        values_sbuf = nl.ndarray((self.rows, self.batches), dtype=rows_sbuf.dtype, buffer=nl.sbuf)
        for first in range(0, self.rows, _TRANSPOSED):
            end = min(first + _TRANSPOSED, self.rows)
            own_sbuf = rows_sbuf[:, first * self.cores : (end - 1) * self.cores + 1 : self.cores]
            nisa.nc_transpose(dst=values_sbuf[first:end], data=own_sbuf, engine=nisa.engine.vector)
        return values_sbuf

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [rows, batches] as the values of the rows in a vector [N] in HBM, and return the DMA
        instruction.
        """
        return nisa.dma_copy(dst=self._of_group(vector_hbm), src=values_sbuf)

    def _of_group(self, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
        of_group_hbm = strided_rows(vector_hbm, self.first, self.rows * self.batches, self.cores)
        return of_group_hbm.reshape_dim(0, (self.batches, self.rows)).permute((1, 0))


@dataclass(frozen=True)
class RowsAhead:
    """A load of a group's values from a vector that has been started. The load writes the tile ``requested_sbuf``."""

    group: BatchGroup
    requested_sbuf: nl.NkiTensor

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Return the values as a tile [rows, batches]. Pass the arguments that :meth:`BatchGroup.ahead` got."""
        return self.group._arranged(self.requested_sbuf)


def batches_of_core(num_rows: int, cores: int, core: int, rows_per_batch: int) -> list[Batch]:
    """Return the batches of a core; an empty list if the core has no rows."""
    own = positions_of_core(num_rows, cores, core)
    return [
        Batch(core + done * cores, min(rows_per_batch, own - done), cores) for done in range(0, own, rows_per_batch)
    ]


def batch_groups(batches: list[Batch], most: int) -> list[BatchGroup]:
    """Return groups of at most ``most`` batches each.

    The last batch is a group of its own, because it may have fewer rows than the others. Besides, only the results of
    this one batch are then left to store at the end of the kernel.
    """
    last = len(batches) - 1
    starts = [*range(0, last, most), last]
    return [
        BatchGroup(start, end, batches[start].first, batches[start].rows, batches[start].cores)
        for start, end in zip(starts, [*starts[1:], last + 1], strict=True)
    ]


@dataclass(frozen=True)
class SwappedResult:
    """A result that this core stores for its own rows and for the rows of the other core.

    The rows of a core are every other row of the matrix, and a DMA engine takes as long for a single element as for a
    row of elements. So both cores compute two results for their own rows and exchange values. Each core then stores one
    of the results, for the rows of both cores, as contiguous values.

    Attributes:
        group: the group of this core; the rows of the other core are its group with the same index.
        vector_hbm: the vector of the result, [N].
        values_sbuf: the values of the rows of core 0 and of core 1, each [rows, batches].
    """

    group: BatchGroup
    vector_hbm: nl.NkiTensor
    values_sbuf: list[nl.NkiTensor]

    @classmethod
    def begin(cls, group: BatchGroup, results: list[tuple[nl.NkiTensor, nl.NkiTensor]]) -> SwappedResult:
        """Exchange results with the other core, and return the result that this core has to store.

        Args:
            group: the group of this core.
            results: two results of this core's rows, each as its vector [N] and its values [rows, batches]. Both have
                the same type.
        """
        core = group.first % group.cores
        (vector_hbm, own_sbuf), (_, sent_sbuf) = results[core], results[1 - core]
        others_sbuf = nl.ndarray(sent_sbuf.shape, dtype=sent_sbuf.dtype, buffer=nl.sbuf)
        nisa.sendrecv(src=sent_sbuf, dst=others_sbuf, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=_PIPE)
        return cls(group, vector_hbm, [own_sbuf, others_sbuf] if core == 0 else [others_sbuf, own_sbuf])

    def store(self) -> nisa.NkiInstruction:
        """Store the values of both cores as contiguous values, and return the DMA instruction. Vector transposes the
        values.
        """
        rows, batches, cores = self.group.rows, self.group.batches, self.group.cores
        shape = (batches, rows * cores)
        runs_sbuf = nl.ndarray(shape, dtype=self.values_sbuf[0].dtype, buffer=nl.sbuf)
        for core, values_sbuf in enumerate(self.values_sbuf):
            for first in range(0, rows, _TRANSPOSED):
                end = min(first + _TRANSPOSED, rows)
                places_sbuf = runs_sbuf[:, first * cores + core : (end - 1) * cores + core + 1 : cores]
                nisa.nc_transpose(dst=places_sbuf, data=values_sbuf[first:end], engine=nisa.engine.vector)
        start = self.group.first // cores * cores
        run_hbm = self.vector_hbm.slice(0, start, start + batches * rows * cores)
        return nisa.dma_copy(dst=run_hbm.reshape_dim(0, shape), src=runs_sbuf)


@dataclass(frozen=True)
class FirstBatch(Batch):
    """A batch that records in ``asked`` the vector and the type of each call of :meth:`loaded`."""

    asked: list[tuple[nl.NkiTensor, nl.DType]]

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        self.asked.append((vector_hbm, dtype))
        return super().loaded(vector_hbm, dtype)


@dataclass(frozen=True)
class BatchOfGroup(Batch):
    """A batch whose values are on chip already; each call of :meth:`loaded` returns the next tile of ``values``."""

    values: Iterator[nl.NkiTensor]

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        return next(self.values)


@dataclass
class GroupedLoads:
    """The batches of a core, for code that loads the same vectors for each batch. The values of a group of batches are
    loaded together, which takes the DMA engines as long as the values of one batch.

    The first batch is loaded alone, and shows which vectors are needed. The next two batches are loaded alone as well.
    Meanwhile the first group is loaded during one batch and transposed on Vector during the next, so that no engine
    waits.

    Attributes:
        batches: the batches of the core.
        alone: the number of batches at the begin that are loaded one by one: ``LOADED_ALONE``, or all batches for no
            groups.
        groups: the groups of the later batches, by the index of the first batch of each group.
    """

    batches: list[Batch]
    alone: int = LOADED_ALONE
    groups: dict[int, BatchGroup] = field(init=False)
    _asked: list[tuple[nl.NkiTensor, nl.DType]] = field(default_factory=list, init=False)
    _ahead: dict[int, list[RowsAhead]] = field(default_factory=dict, init=False)
    _start: int = field(default=0, init=False)
    _tiles: list[nl.NkiTensor] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        later = self.batches[self.alone :]
        groups = batch_groups(later, GROUP_BATCHES_MAX) if later else []
        self.groups = {self.alone + group.start: group for group in groups}

    def is_grouped(self, number: int) -> bool:
        """Return whether the values of batch ``number`` are loaded together with those of its group."""
        return number >= self.alone

    def request_after(self, number: int) -> None:
        """Start the load of the group whose first batch is ``number + alone``; do nothing if no group begins there."""
        number += self.alone
        if number in self.groups:
            self._ahead[number] = [self.groups[number].ahead(*asked) for asked in self._asked]

    def batch(self, number: int) -> Batch:
        """Return batch ``number``. Call with 0, 1, 2, ..., and call :meth:`request_after` after each of these calls."""
        first, rows, cores = (getattr(self.batches[number], name) for name in ("first", "rows", "cores"))
        if number == 0:
            return FirstBatch(first, rows, cores, self._asked)
        tiles, start = self._tiles, self._start
        if number + 1 in self.groups:
            self._start = number + 1
            under_way = zip(self._ahead.pop(number + 1), self._asked, strict=True)
            self._tiles = [ahead.loaded(*asked) for ahead, asked in under_way]
        if number < self.alone:
            return self.batches[number]
        return BatchOfGroup(first, rows, cores, iter([tile[:, number - start : number - start + 1] for tile in tiles]))
