# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arithmetic on whole tiles. The functions write their result to a tile of the caller.

On Vector: :func:`transform`, :func:`combine`, :func:`difference`, :func:`total`, :func:`product`; on GpSimd:
:func:`subtract_on_gpsimd`, :func:`add_on_gpsimd`, :func:`multiply_on_gpsimd`. :func:`subtract_in_turns` and
:func:`multiply_in_turns` choose Vector or GpSimd for each *piece*, the columns that one instruction processes.
:mod:`nkilib.core.rows.tiles` has arithmetic on per-row scalars that returns new tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# Vector computes one piece of so many, and GpSimd the others, where Vector has another pass over all pieces.
_PIECES_PER_VECTOR_PIECE = 5


def transform(
    dst_sbuf: nl.NkiTensor,
    data_sbuf: nl.NkiTensor,
    op0: Operator,
    operand0: float | None,
    op1: Operator | None = None,
    operand1: float | None = None,
) -> None:
    """Compute ``(data op0 operand0) op1 operand1`` on Vector with two numbers as operands. If ``op1`` is None, compute
    ``data op0 operand0``.
    """
    nisa.tensor_scalar(dst=dst_sbuf, data=data_sbuf, op0=op0, operand0=operand0, op1=op1, operand1=operand1)


def combine(
    dst_sbuf: nl.NkiTensor,
    data_sbuf: nl.NkiTensor,
    op0: Operator,
    operand0: float,
    op1: Operator,
    operand1_sbuf: nl.NkiTensor,
) -> None:
    """Compute ``(data op0 operand0) op1 operand1`` on Vector, where ``operand0`` is a number and ``operand1`` a
    tile.
    """
    nisa.scalar_tensor_tensor(dst=dst_sbuf, data=data_sbuf, op0=op0, operand0=operand0, op1=op1, operand1=operand1_sbuf)


def difference(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left - right on Vector.

    ``scalar_tensor_tensor`` takes two tiles of SBUF at twice the rate of ``tensor_tensor``. A matrix product with the
    identity on Tensor is no alternative: an infinity in one partition would make NaN in all others.
    """
    combine(dst_sbuf, left_sbuf, nl.add, 0.0, nl.subtract, right_sbuf)


def subtract_on_gpsimd(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left - right on GpSimd, at less than two thirds of Vector's rate, for kernels that keep Vector busy."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.subtract, engine=nisa.engine.gpsimd)


def total(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left + right on Vector, at the rate of :func:`difference`."""
    combine(dst_sbuf, left_sbuf, nl.add, 0.0, nl.add, right_sbuf)


def add_on_gpsimd(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left + right on GpSimd; see :func:`subtract_on_gpsimd`."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.add, engine=nisa.engine.gpsimd)


def multiply_on_gpsimd(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left * right on GpSimd; see :func:`subtract_on_gpsimd`."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.multiply, engine=nisa.engine.gpsimd)


def product(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left * right on Vector, at the rate of :func:`difference`."""
    combine(dst_sbuf, left_sbuf, nl.multiply, 1.0, nl.multiply, right_sbuf)


def subtract_in_turns(number: int, dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left - right of one piece, on Vector or on GpSimd.

    Vector gets the pieces whose ``number`` is a multiple of a constant, and GpSimd the others, so that both engines
    take about the same time.

    Args:
        number: the number of the piece, counted from 0 by the caller.
        dst_sbuf: the tile for the result.
        left_sbuf, right_sbuf: the operands.
    """
    subtract = subtract_on_gpsimd if number % _PIECES_PER_VECTOR_PIECE else difference
    subtract(dst_sbuf, left_sbuf, right_sbuf)


def multiply_in_turns(number: int, dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> None:
    """Compute left * right of piece ``number``, on the engine that :func:`subtract_in_turns` would choose."""
    multiply = multiply_on_gpsimd if number % _PIECES_PER_VECTOR_PIECE else product
    multiply(dst_sbuf, left_sbuf, right_sbuf)
