# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface of the definition of a row-wise loss, and arithmetic on tiles with one value per row.

The skeleton (:mod:`.run`, :mod:`.backward`) loads tensors [N, D] (N rows, D columns) tile by tile, and cuts each tile
into *pieces*, the parts that are processed at a time. A :class:`RowLossDefinition` has the arithmetic of a loss:

1. In the forward, it adds the elements of each piece to *statistics*, float32 sums or maxima over a row.
2. From the statistics of whole rows, it computes the losses, and *coefficients* of each row for the backward.
3. In the backward, it computes the gradients of a piece from the coefficients and the tensors.

Tensors are identified by numbers: their order among the arguments of the kernel.

The arithmetic consists of elementwise operations (:func:`compared`, :func:`mask_of`, :func:`shifted`,
:func:`at_least_zero`, :func:`combined`) and of functions for the whole range of float32 (:func:`square_root`,
:func:`root`, :func:`inverse_or_zero`, :func:`take_logarithm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from nkilib.core.hardware import LIMIT_OF_LOG
from nkilib.core.rows.tiles import FLOAT32_HIGHEST, constant, float32_like, product, scaled
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.stream import Piece
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


# ``sqrt`` is documented on [2^-116, 2^118]: numbers outside of these limits are brought there by a power of two.
_SMALL = 2.0**-100
_STEP, _ROOT_OF_STEP = 2.0**100, 2.0**50
_LEAST_OF_SQRT = 2.0**-116
_SMALLEST_NORMAL = 2.0**-126

# The factors of the gradients, a type of each loss definition.
Factors = TypeVar("Factors")


class Statistic(Protocol):
    """A value per row, such as a sum. For a long row, it is combined from one value for each *run*, a range of columns
    that an engine accumulates.
    """

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Combine the values of all runs of each row into one value.

        Args:
            dst_sbuf: the result, float32 [partitions, 1].
            runs_sbuf: for each statistic of the loss up to and including this one, the values of the runs, float32
                [partitions, runs]; the last tile belongs to this statistic.
            earlier_sbuf: for each statistic of the loss before this one, the result, [partitions, 1].
        """


@dataclass(frozen=True)
class Sum:
    """The statistic that is the sum of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class Maximum:
    """The statistic that is the maximum of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.maximum, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class RowResults:
    """The results that a loss definition computes from the statistics of rows, each a tile float32 [partitions, rows].

    Attributes:
        losses_sbuf: the loss of each row.
        coefficients_sbuf: the coefficients of each row for the backward, without the upstream gradient.
    """

    losses_sbuf: nl.NkiTensor
    coefficients_sbuf: list[nl.NkiTensor]


class RowLossDefinition(Protocol[Factors]):
    """The definition of a row-wise loss, with its options.

    In the forward, the skeleton calls :meth:`prepare` of the next piece before :meth:`accumulate` of the current piece.
    The first steps of a piece, such as differences, belong in :meth:`prepare`, so that no engine waits for them.
    """

    @property
    def forward_tiles(self) -> int:
        """The maximum number of tiles of :meth:`Piece.float32` that :meth:`prepare` and :meth:`accumulate` together
        take for a piece.
        """

    @property
    def backward_tiles(self) -> int:
        """Half the maximum number of tiles of :meth:`Piece.float32` that are in use at a time in the backward.

        If functions in :attr:`Piece.later` use tiles, the tiles of two pieces are in use at a time; else those of one.
        """

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics that are computed over each row."""

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of the tensors that must be loaded to compute the gradients of the tensors ``wanted``."""

    def prepare(self, piece: Piece) -> Prepared:
        """Issue the first steps of a piece, and return their results, tiles that :meth:`accumulate` gets."""

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Add the elements of a piece to the statistics of their rows, with the methods of :class:`Piece`."""

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Return the losses and the coefficients of rows.

        Args:
            statistics_sbuf: each statistic of the rows, float32 [partitions, rows].
            vectors_sbuf: each argument of the kernel that has one value per row, such as targets, in the same shape.
        """

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> Factors:
        """Return the factors of each row for :meth:`gradients`, in a form that the loss definition chooses.

        Args:
            upstream_sbuf: the upstream gradients of the losses, float32 [partitions, rows].
            coefficients_sbuf: the coefficients, see :class:`RowResults`.
        """

    def gradients(self, piece: Piece, factors: Factors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Write the gradients of a piece to the tiles ``dst_sbuf``.

        Args:
            piece: the piece.
            factors: the result of :meth:`factors` for the piece's group of rows.
            dst_sbuf: for each tensor whose gradient is requested, by its number, a tile [partitions, elements] of any
                floating type. For a tensor that all rows share, the tile is a float32 sum: add the gradient to it.
        """


def compared(values_sbuf: nl.NkiTensor, op: Operator, number: float) -> nl.NkiTensor:
    """Return 1 where ``value <op> number`` holds, else 0, elementwise."""
    is_true_sbuf = float32_like(values_sbuf)
    nisa.tensor_scalar(dst=is_true_sbuf, data=values_sbuf, op0=op, operand0=number)
    return is_true_sbuf


def mask_of(is_true_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return a tile of ones and zeros converted to uint32, for use as a predicate."""
    mask_sbuf = nl.ndarray(is_true_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=mask_sbuf, src=is_true_sbuf)
    return mask_sbuf


def shifted(values_sbuf: nl.NkiTensor, number: float) -> nl.NkiTensor:
    """Return value + number, elementwise."""
    shifted_sbuf = float32_like(values_sbuf)
    nisa.tensor_scalar(dst=shifted_sbuf, data=values_sbuf, op0=nl.add, operand0=number)
    return shifted_sbuf


def at_least_zero(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return max(value, 0), elementwise; NaN for NaN."""
    limited_sbuf = float32_like(values_sbuf)
    nisa.tensor_scalar(dst=limited_sbuf, data=values_sbuf, op0=nl.maximum, operand0=0.0)
    return limited_sbuf


def combined(left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor, op: Operator) -> nl.NkiTensor:
    """Return left <op> right, elementwise."""
    combined_sbuf = float32_like(left_sbuf)
    nisa.tensor_tensor(dst=combined_sbuf, data1=left_sbuf, data2=right_sbuf, op=op)
    return combined_sbuf


def _power(is_small: nl.NkiTensor, is_large: nl.NkiTensor, step: float) -> nl.NkiTensor:
    factor_sbuf = constant(is_small, 1.0)
    for mask_source, factor in ((is_small, step), (is_large, 1.0 / step)):
        nisa.tensor_copy_predicated(dst=factor_sbuf, src=constant(is_small, factor), predicate=mask_of(mask_source))
    return factor_sbuf


@dataclass(frozen=True)
class _Rescaled:
    """Values of which the very small and the very large ones are scaled by a power of two (:func:`_rescaled`).

    Attributes:
        values_sbuf: the scaled values.
        is_small_sbuf: 1 where a value was too small and is multiplied, else 0.
        is_large_sbuf: 1 where a value was too large and is divided, else 0.
    """

    values_sbuf: nl.NkiTensor
    is_small_sbuf: nl.NkiTensor
    is_large_sbuf: nl.NkiTensor

    def factor_sbuf(self, step: float) -> nl.NkiTensor:
        """Return ``step`` where a value was too small, 1 / ``step`` where it was too large, else 1."""
        return _power(self.is_small_sbuf, self.is_large_sbuf, step)


def _rescaled(values_sbuf: nl.NkiTensor, small: float, step: float) -> _Rescaled:
    """Return the values, multiplied by ``step`` below ``small``, and divided by ``step`` above ``1 / small``."""
    is_small, is_large = compared(values_sbuf, nl.less, small), compared(values_sbuf, nl.greater, 1.0 / small)
    return _Rescaled(product(values_sbuf, _power(is_small, is_large, step)), is_small, is_large)


def _of_positive_numbers(values_sbuf: nl.NkiTensor, root_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the element of ``root_sbuf`` where a value is positive and finite, and the value itself elsewhere."""
    is_finite_sbuf = compared(values_sbuf, nl.less_equal, FLOAT32_HIGHEST)
    is_proper_sbuf = product(compared(values_sbuf, nl.greater, 0.0), is_finite_sbuf)
    result_sbuf = scaled(values_sbuf, 1.0)
    nisa.tensor_copy_predicated(dst=result_sbuf, src=root_sbuf, predicate=mask_of(is_proper_sbuf))
    return result_sbuf


def square_root(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the square roots of values of at least 0, for the whole range of float32; infinity and NaN remain."""
    rescaled = _rescaled(values_sbuf, _SMALL, _STEP)
    root_sbuf = rescaled.values_sbuf
    nisa.tensor_scalar(
        dst=root_sbuf, data=root_sbuf, op0=nl.maximum, operand0=_LEAST_OF_SQRT, op1=nl.minimum, operand1=1.0 / _SMALL
    )
    nisa.activation(dst=root_sbuf, op=nl.sqrt, data=root_sbuf)
    return _of_positive_numbers(values_sbuf, product(root_sbuf, rescaled.factor_sbuf(1.0 / _ROOT_OF_STEP)))


def take_logarithm(values_sbuf: nl.NkiTensor) -> None:
    """Clamp the values of a tile to [2^-64, 2^64], for which NKI documents ``log``, and replace them by their
    logarithms.
    """
    nisa.tensor_scalar(
        dst=values_sbuf,
        data=values_sbuf,
        op0=nl.maximum,
        operand0=1.0 / LIMIT_OF_LOG,
        op1=nl.minimum,
        operand1=LIMIT_OF_LOG,
    )
    nisa.activation(dst=values_sbuf, op=nl.log, data=values_sbuf)


def root(values_sbuf: nl.NkiTensor, p: float) -> nl.NkiTensor:
    """Return the p-th roots, p > 0, of values of at least 0, as ``exp(log(value) / p)``; infinity and NaN remain."""
    rescaled = _rescaled(values_sbuf, 1.0 / LIMIT_OF_LOG**0.5, LIMIT_OF_LOG)
    root_sbuf = rescaled.values_sbuf
    take_logarithm(root_sbuf)
    nisa.activation(dst=root_sbuf, op=nl.exp, data=root_sbuf, scale=1.0 / p)
    return _of_positive_numbers(values_sbuf, product(root_sbuf, rescaled.factor_sbuf(LIMIT_OF_LOG ** (-1.0 / p))))


def inverse_or_zero(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return 1 / value for values above 0, and 0 for 0."""
    inverse_sbuf = float32_like(values_sbuf)
    nisa.tensor_scalar(dst=inverse_sbuf, data=values_sbuf, op0=nl.maximum, operand0=_SMALLEST_NORMAL)
    nisa.reciprocal(dst=inverse_sbuf, data=inverse_sbuf)
    return product(inverse_sbuf, compared(values_sbuf, nl.greater, 0.0))
