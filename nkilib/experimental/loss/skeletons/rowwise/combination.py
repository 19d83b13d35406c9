# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of terms, each a tile times a per-row scalar, from which gradients are made."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Term:
    """The term ``(tile + offset) * factor``.

    Attributes:
        tile_sbuf: the tile of a piece, [partitions, elements], of any floating type.
        factor_sbuf: the factors, float32 [partitions, rows of the group].
        offset: the number that is added to the tile.
    """

    tile_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor
    offset: float = 0.0


def combine(piece: Piece, dst_sbuf: nl.NkiTensor, terms: list[Term], bias_sbuf: nl.NkiTensor | None = None) -> None:
    """Compute the sum of terms, rounded once to the type of ``dst_sbuf``.

    For long rows, Scalar computes the first term and Vector the others; for short rows, Vector computes all.

    Args:
        piece: the piece, from whose scratch one float32 tile is taken for every two terms.
        dst_sbuf: the result, [partitions, elements].
        terms: the terms, at least one.
        bias_sbuf: the sum of ``offset * factor`` of all terms, float32 [partitions, rows of the group]; None if
            offsets are 0.
    """
    partial_sbuf = dst_sbuf if len(terms) == 1 else piece.float32()
    if not piece.is_long:
        multiply(piece, partial_sbuf, terms[0])
    else:
        keywords = {} if bias_sbuf is None else {"bias": piece.of_rows(bias_sbuf)}
        nisa.activation(
            dst=partial_sbuf,
            op=nl.copy,
            data=terms[0].tile_sbuf,
            scale=piece.of_rows(terms[0].factor_sbuf),
            **keywords,
        )
    for number, term in enumerate(terms[1:]):
        to_sbuf = dst_sbuf if number == len(terms) - 2 else partial_sbuf
        _add(piece, to_sbuf, term, partial_sbuf)


def add_to_sum(piece: Piece, sum_sbuf: nl.NkiTensor, term: Term) -> None:
    """Add a term without offset to a float32 sum, on Vector; the term's tile, float32 too, is overwritten."""
    if not piece.is_long:
        multiply(piece, term.tile_sbuf, term)
    nisa.scalar_tensor_tensor(
        dst=sum_sbuf,
        data=term.tile_sbuf,
        op0=nl.multiply,
        operand0=piece.of_rows(term.factor_sbuf) if piece.is_long else 1.0,
        op1=nl.add,
        operand1=sum_sbuf,
    )


def _add(piece: Piece, dst_sbuf: nl.NkiTensor, term: Term, partial_sbuf: nl.NkiTensor) -> None:
    """Write a partial sum plus one more term to ``dst_sbuf``."""
    if piece.is_long:
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=term.tile_sbuf,
            op0=nl.multiply,
            operand0=piece.of_rows(term.factor_sbuf),
            op1=nl.add,
            operand1=partial_sbuf,
        )
        return
    product_sbuf = piece.float32()
    multiply(piece, product_sbuf, term)
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=product_sbuf, op0=nl.add, operand0=0.0, op1=nl.add, operand1=partial_sbuf
    )


def multiply(piece: Piece, dst_sbuf: nl.NkiTensor, term: Term) -> None:
    """Write one term to ``dst_sbuf``, on Vector."""
    if piece.is_long:
        nisa.tensor_scalar(
            dst=dst_sbuf,
            data=term.tile_sbuf,
            op0=nl.add,
            operand0=term.offset,
            op1=nl.multiply,
            operand1=piece.of_rows(term.factor_sbuf),
        )
        return
    nisa.scalar_tensor_tensor(
        dst=piece.by_row(dst_sbuf),
        data=piece.by_row(term.tile_sbuf),
        op0=nl.add,
        operand0=term.offset,
        op1=nl.multiply,
        operand1=piece.of_elements(term.factor_sbuf),
    )
