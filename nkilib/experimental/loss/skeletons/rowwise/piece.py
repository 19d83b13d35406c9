# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A piece of rows on chip, and the reduction of its elements to one number per row.

A piece of a long row is a range of its columns. An engine accumulates one number per run of columns, and a
statistic of the row is combined from the numbers of all runs in the end. A piece of short rows is several
rows, which Vector reduces along their columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nkilib.core.rows.arithmetic import product
from nkilib.core.rows.scratch import Scratch
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.rowwise.host.tiling import RUN_COLUMNS
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


@dataclass(frozen=True)
class Piece:
    """A range of columns of a long row in each partition, or several short rows.

    Attributes:
        tensors: the parts of the tensors on chip, [partitions, elements] in their types, by the number of the
            tensor.
        scratch: the source of float32 tiles of the piece's size.
        row: the index of the piece's first row among the rows that a partition has in the group.
        rows: the number of rows in each partition.
        is_long: whether the rows are long, so that other pieces may have further columns of them.
        numbers_sbuf: the values of each statistic, float32 [partitions, runs] for a long row, [partitions, rows] for
            short ones; empty in a backward.
        later: in a backward, functions that are called, to issue work, after the next piece has begun, so that
            no engine waits for another one.
    """

    tensors: dict[int, nl.NkiTensor]
    scratch: Scratch
    row: int
    rows: int
    is_long: bool
    numbers_sbuf: list[nl.NkiTensor] = field(default_factory=list)
    later: list[Callable[[], None]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape as (partitions, elements per partition)."""
        partitions, elements = next(iter(self.tensors.values())).shape
        return partitions, elements

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs of a piece of a long row, each as (first element, end)."""
        elements = self.shape[1]
        return [(start, min(start + RUN_COLUMNS, elements)) for start in range(0, elements, RUN_COLUMNS)]

    def float32(self) -> nl.NkiTensor:
        """Return an uninitialised float32 tile of the piece's size from the scratch.

        A piece may take as many as its loss definition says.
        """
        return self.scratch.next(*self.shape)

    def by_row(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return a tile of the piece's size in the shape [partitions, rows, columns]."""
        partitions, elements = self.shape
        return tile_sbuf.reshape((partitions, self.rows, elements // self.rows))

    def of_rows(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the numbers of the piece's rows, [partitions, rows], from those of all rows of the group."""
        return values_sbuf[0 : self.shape[0], self.row : self.row + self.rows]

    def of_elements(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return, for each element, the number of its row: a view [partitions, rows, columns] of the numbers of the
        group's rows.
        """
        return self.of_rows(values_sbuf).expand_dim(2).broadcast(2, self.shape[1] // self.rows)

    def add_function(
        self,
        statistic: int,
        op: Operator,
        dst_sbuf: nl.NkiTensor,
        data_sbuf: nl.NkiTensor,
        bias_sbuf: nl.NkiTensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """Add the elements of ``op(data * scale + bias)`` to the sum of each run or short row, on Scalar; short rows
        are summed by Vector.

        Args:
            statistic: the number of the statistic that is the sum.
            op: an activation function.
            dst_sbuf: a float32 tile for the values, which may be the tile of the data.
            data_sbuf: a tile of any type.
            bias_sbuf: the bias, float32 [partitions or more, 1]; None for 0.
            scale: the factor of the data.
        """
        keywords = {} if bias_sbuf is None else {"bias": bias_sbuf[0 : self.shape[0], :]}
        if not self.is_long:
            nisa.activation(dst=dst_sbuf, op=op, data=data_sbuf, scale=scale, **keywords)
            self.add(statistic, dst_sbuf)
            return
        for number, (start, end) in enumerate(self.runs):
            nisa.activation(
                dst=dst_sbuf[:, start:end],
                op=op,
                data=data_sbuf[:, start:end],
                scale=scale,
                reduce_op=nl.add,
                reduce_res=self.numbers_sbuf[statistic][:, number : number + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
                **keywords,
            )

    def add_product(
        self, statistic: int, dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor
    ) -> None:
        """Add the elements of ``left * right`` to a sum, statistic number ``statistic``, on Vector.

        The products are written to ``dst_sbuf``, a float32 tile.
        """
        if not self.is_long:
            product(dst_sbuf, left_sbuf, right_sbuf)
            self.add(statistic, dst_sbuf)
            return
        for number, (start, end) in enumerate(self.runs):
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf[:, start:end],
                data=left_sbuf[:, start:end],
                op0=nl.multiply,
                operand0=1.0,
                op1=nl.multiply,
                operand1=right_sbuf[:, start:end],
                reduce_op=nl.add,
                reduce_res=self.numbers_sbuf[statistic][:, number : number + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def add(self, statistic: int, values_sbuf: nl.NkiTensor) -> None:
        """Add the elements of a float32 tile to a sum, statistic number ``statistic``, on Vector."""
        self._reduce(statistic, values_sbuf, nl.add)

    def take_maximum(self, statistic: int, values_sbuf: nl.NkiTensor) -> None:
        """Compute the maximum of each run, or of each short row, of a tile for statistic number ``statistic``, on
        Vector.
        """
        self._reduce(statistic, values_sbuf, nl.maximum)

    def count_equal(self, statistic: int, values_sbuf: nl.NkiTensor, numbers_sbuf: nl.NkiTensor) -> None:
        """Count the elements that equal the number of their run or short row, for statistic number ``statistic``, on
        Vector.

        Args:
            statistic: the number of the statistic that is the count.
            values_sbuf: the elements, overwritten.
            numbers_sbuf: the number of each run of a long row, or of each short row.
        """
        if not self.is_long:
            columns = self.shape[1] // self.rows
            nisa.tensor_tensor(
                dst=self.by_row(values_sbuf),
                data1=self.by_row(values_sbuf),
                data2=numbers_sbuf.expand_dim(2).broadcast(2, columns),
                op=nl.equal,
            )
        else:
            for number, (start, end) in enumerate(self.runs):
                nisa.tensor_scalar(
                    dst=values_sbuf[:, start:end],
                    data=values_sbuf[:, start:end],
                    op0=nl.equal,
                    operand0=numbers_sbuf[:, number : number + 1],
                )
        self.add(statistic, values_sbuf)

    def _reduce(self, statistic: int, values_sbuf: nl.NkiTensor, op: Operator) -> None:
        numbers_sbuf = self.numbers_sbuf[statistic]
        if not self.is_long:
            nisa.tensor_reduce(dst=numbers_sbuf, op=op, data=self.by_row(values_sbuf), axis=2)
            return
        for number, (start, end) in enumerate(self.runs):
            nisa.tensor_reduce(dst=numbers_sbuf[:, number : number + 1], op=op, data=values_sbuf[:, start:end], axis=1)


def runs_of(elements: int) -> int:
    """Return the number of runs of a row of ``elements`` elements: pieces of at most ``RUN_COLUMNS`` neighbours."""
    return div_ceil(elements, RUN_COLUMNS)
