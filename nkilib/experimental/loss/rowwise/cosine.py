"""Cosine embedding: the cosine of two rows should be 1 where the target is 1, and at most the margin where it is -1.

``1 - cos`` or ``max(0, cos - margin)``; 0 for other targets: ``torch.nn.functional.cosine_embedding_loss``. Like
PyTorch it adds 1e-12 to the squared norms, so that the cosine of a row of zeros is 0.

Gradients are ``k (r1 r2 y - cos r1^2 x)`` with the inverse norms r and k the derivative of the loss by the cosine: sums
of the two rows, with coefficients that the forward makes.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import product, scaled, selected
from nkilib.experimental.loss.rowwise.combination import Term, combine
from nkilib.experimental.loss.rowwise.kind import RowResults, Statistic, Sum
from nkilib.experimental.loss.rowwise.piece import Piece
from nkilib.experimental.loss.rowwise.row_numbers import (
    at_least_zero,
    combined,
    compared,
    inverse_or_zero,
    mask_of,
    shifted,
    square_root,
)
from nkilib.experimental.loss.skeletons.elementwise.kind import Prepared
from nkilib.nki import nl

FIRST, SECOND = 0, 1
_DOT, _FIRST_SQUARES, _SECOND_SQUARES = 0, 1, 2
# Added to squared norms, as in ATen's cosine_embedding_loss (aten/src/ATen/native/Loss.cpp).
SQUARED_EPS = 1e-12


@dataclass(frozen=True)
class CosineFactors:
    """What the rows are multiplied by, float32 [partitions, rows] each.

    Attributes:
        of_other: in the gradient of either.
        of_itself: by tensor.
    """

    of_other: nl.NkiTensor
    of_itself: list[nl.NkiTensor]


@dataclass(frozen=True)
class CosineEmbedding:
    """The loss with its option.

    Attributes:
        margin: a number.
    """

    margin: float
    forward_tiles = 3
    backward_tiles = 2
    statistics: tuple[Statistic, ...] = (Sum(), Sum(), Sum())

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Both."""
        return FIRST, SECOND

    def prepare(self, piece: Piece) -> Prepared:
        """Nothing: the engines wait for the loads alone."""
        return ()

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Products on Vector, squares on Scalar."""
        first_sbuf, second_sbuf = piece.tensors[FIRST], piece.tensors[SECOND]
        piece.add_product(_DOT, piece.float32(), first_sbuf, second_sbuf)
        piece.add_function(_FIRST_SQUARES, nl.square, piece.float32(), first_sbuf)
        piece.add_function(_SECOND_SQUARES, nl.square, piece.float32(), second_sbuf)

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Losses of rows, and what the other row and the row itself are multiplied by in the gradients."""
        (target_sbuf,) = vectors_sbuf
        inverses = [_inverse_norm(statistics_sbuf[number]) for number in (_FIRST_SQUARES, _SECOND_SQUARES)]
        cosine_sbuf = product(product(statistics_sbuf[_DOT], inverses[0]), inverses[1])
        beyond_sbuf = shifted(cosine_sbuf, -self.margin)
        is_alike_sbuf, is_unlike_sbuf = (compared(target_sbuf, nl.equal, value) for value in (1.0, -1.0))
        hinge_sbuf = at_least_zero(beyond_sbuf)
        loss_sbuf = combined(
            selected(shifted(scaled(cosine_sbuf, -1.0), 1.0), mask_of(is_alike_sbuf)),
            selected(hinge_sbuf, mask_of(is_unlike_sbuf)),
            nl.add,
        )
        is_beyond_sbuf = product(is_unlike_sbuf, compared(beyond_sbuf, nl.greater_equal, 0.0))
        by_cosine_sbuf = combined(is_beyond_sbuf, is_alike_sbuf, nl.subtract)
        of_other_sbuf = product(product(by_cosine_sbuf, inverses[0]), inverses[1])
        turned_sbuf = scaled(product(by_cosine_sbuf, cosine_sbuf), -1.0)
        of_itself = [product(product(turned_sbuf, inverse), inverse) for inverse in inverses]
        return RowResults(loss_sbuf, [of_other_sbuf, *of_itself])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> CosineFactors:
        """Coefficients times upstream gradients."""
        of_other, *of_itself = (product(upstream_sbuf, each) for each in coefficients_sbuf)
        return CosineFactors(of_other, of_itself)

    def gradients(self, piece: Piece, factors: CosineFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Sums of both rows."""
        for tensor, gradient_sbuf in dst_sbuf.items():
            other = SECOND if tensor == FIRST else FIRST
            terms = [
                Term(piece.tensors[other], factors.of_other),
                Term(piece.tensors[tensor], factors.of_itself[tensor]),
            ]
            combine(piece, gradient_sbuf, terms)


def _inverse_norm(squares_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    return inverse_or_zero(square_root(shifted(squares_sbuf, SQUARED_EPS)))
