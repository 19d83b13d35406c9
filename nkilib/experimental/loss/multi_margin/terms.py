# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The terms of a row x, relu(x_j - x_t + margin)^p; the loss does not include the term at the target t."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.row_sums import RowSums
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multi_margin.host.tiling import SCRATCH_BUFFERS
from nkilib.experimental.loss.multi_margin.launch import Launch
from nkilib.nki import nisa, nl


def sum_without(parts: RowSums, own_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the sum of each row over all chunks without the target's own term, ``own_sbuf``: float32 [rows, 1]."""
    sum_sbuf = float32_like(own_sbuf)
    parts.total(sum_sbuf, parts.parts_sbuf.shape[1])
    nisa.tensor_tensor(dst=sum_sbuf, data1=sum_sbuf, data2=own_sbuf, op=nl.subtract)
    return sum_sbuf


@dataclass(frozen=True)
class Scratch:
    """A ring buffer of tiles [128, columns of a chunk], one for each chunk in turn."""

    tiles_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: Launch, dtype: nl.DType) -> Scratch:
        """Allocate the tiles in the type ``dtype``."""
        return cls(ring_of(SCRATCH_BUFFERS, launch.tiling.chunk_size, dtype))

    def tile(self, load: int, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile for chunk number ``load`` of the core, in the shape of another tile."""
        rows, columns = like_sbuf.shape
        return self.tiles_sbuf[load % len(self.tiles_sbuf)][0:rows, 0:columns]


def hinges(dst: nl.NkiTensor, data: nl.NkiTensor, bias_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor) -> None:
    """Compute relu(x + bias) of a tile and the sum of each row, on Scalar."""
    nisa.activation(
        dst=dst,
        op=nl.relu,
        data=data,
        bias=bias_sbuf,
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def hinges_on_vector(
    data: nl.NkiTensor, zeros_sbuf: nl.NkiTensor, bias_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor
) -> None:
    """Compute :func:`hinges` in place, on Vector instead of Scalar."""
    rows, columns = data.shape
    nisa.scalar_tensor_tensor(
        dst=data,
        data=data,
        op0=nl.add,
        operand0=bias_sbuf,
        op1=nl.maximum,
        operand1=zeros_sbuf[0:rows, 0:columns],
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def square_hinges(
    scratch_sbuf: nl.NkiTensor, data: nl.NkiTensor, bias_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor
) -> None:
    """Compute relu(x + bias)^2 of a tile into ``scratch_sbuf``, and the sum of each row.

    Vector computes the hinges, Scalar the squares.
    """
    nisa.tensor_scalar(dst=scratch_sbuf, data=data, op0=nl.add, operand0=bias_sbuf, op1=nl.maximum, operand1=0.0)
    nisa.activation(
        dst=scratch_sbuf,
        op=nl.square,
        data=scratch_sbuf,
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
