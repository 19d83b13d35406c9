# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cosine embedding loss: the cosine of two rows should be 1 where the target is 1, and at most the margin where the
target is -1.

The loss is ``1 - cos`` for target 1, ``max(0, cos - margin)`` for target -1, and 0 for other targets:
``torch.nn.functional.cosine_embedding_loss``. Like PyTorch it adds 1e-12 to the squared norms, so that the cosine of a
row of zeros is 0.

Let x and y be the two rows, r1 and r2 their inverse norms, and k the derivative of the loss with respect to the cosine
(-1, 0 or 1). The gradient of x is ``k r1 r2 y - k cos r1^2 x``. The forward returns the coefficients of y and x, the
backward computes the sum. Inputs are identified by numbers (``FIRST``, ``SECOND``); a *piece* is the part of a tile of
rows that is processed at a time.

The file has the definition in instructions (:class:`CosineEmbedding`), the float64 reference
(:class:`CosineReference`), the kernels (``cosine_embedding_loss_...``) and the registry entry
(:data:`COSINE_EMBEDDING`).

Errors of float32 arithmetic, with u = 2^-23 and n consecutive additions in the sum of a row:

- the dot product of the rows: (n + 1) u / 2 times the sum of the magnitudes of its terms;
- a squared norm, with its constant: (n + 2) u / 2 of itself; the inverse norm: half of this relative error, plus u / 2
  each for root and reciprocal;
- the cosine: the error of the dot product times the inverse norms, plus the cosine times the relative errors of both
  inverse norms, plus u for products;
- the loss: the error of the cosine, plus u / 2 of the loss and of the margin.

    |error| <= u (n + 9 / 2 + |margin| / 2 + loss / 2)

A further error of u in each root adds 2 u |cos|, and so does one in each reciprocal. In a gradient, the term of y has
the relative errors of the inverse norms and 4 u; the term of x has these errors and the error of the cosine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import CORRECT, SIMULATED, UNIT, Derived, Exact, Float64Array, FunctionErrors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.core.loss_arguments import Upstream, require_float_tensor, require_reduction, require_upstream
from nkilib.core.rows.checks import require_flag, require_vector
from nkilib.core.rows.tiles import product, scaled, selected
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.backward import Term, backward_of_core, combine
from nkilib.experimental.loss.skeletons.rowwise.definition import (
    RowResults,
    Statistic,
    Sum,
    at_least_zero,
    combined,
    compared,
    inverse_or_zero,
    mask_of,
    shifted,
    square_root,
)
from nkilib.experimental.loss.skeletons.rowwise.host import (
    RowGradients,
    RowTensors,
    Tensors,
    additions,
    rowwise_loss,
    summed,
)
from nkilib.experimental.loss.skeletons.rowwise.run import (
    checked_tiling,
    factor_of,
    forward_of_core,
    new_gradients,
    new_outputs,
    require_coefficients,
    require_matrices,
    require_wanted,
    returned,
)
from nkilib.experimental.loss.skeletons.rowwise.stream import Piece, RowLaunch
from nkilib.nki import nl

FIRST, SECOND = 0, 1
_DOT, _FIRST_SQUARES, _SECOND_SQUARES = 0, 1, 2
# Names of the tensors.
INPUT1, INPUT2, TARGET = "input1", "input2", "target"
# Added to squared norms, as in ATen's cosine_embedding_loss (aten/src/ATen/native/Loss.cpp).
SQUARED_EPS = 1e-12


@dataclass(frozen=True)
class CosineFactors:
    """The factors of the two rows x and y in the gradients: float32 [partitions, rows of the group of tiles].

    Attributes:
        of_other: the factor of y in the gradient of x, which is also the factor of x in the gradient of y.
        of_itself: the factor of x in the gradient of x, and the factor of y in the gradient of y.
    """

    of_other: nl.NkiTensor
    of_itself: list[nl.NkiTensor]


@dataclass(frozen=True)
class CosineEmbedding:
    """The definition of the cosine embedding loss.

    Attributes:
        margin: the largest cosine without a loss where the target is -1.
    """

    margin: float
    forward_tiles = 3
    backward_tiles = 2
    statistics: tuple[Statistic, ...] = (Sum(), Sum(), Sum())

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of both inputs: every gradient needs both."""
        return FIRST, SECOND

    def prepare(self, piece: Piece) -> Prepared:
        """Return an empty tuple: :meth:`accumulate` needs the loaded inputs only."""
        return ()

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Add the products x y (on Vector), and the squares of x and of y (on Scalar), to the three sums of a row."""
        first_sbuf, second_sbuf = piece.tensors[FIRST], piece.tensors[SECOND]
        piece.add_product(_DOT, piece.float32(), first_sbuf, second_sbuf)
        piece.add_function(_FIRST_SQUARES, nl.square, piece.float32(), first_sbuf)
        piece.add_function(_SECOND_SQUARES, nl.square, piece.float32(), second_sbuf)

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Return the loss of each row, and three coefficients: the factors of :class:`CosineFactors`, in their order,
        without the upstream gradient.
        """
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
        negative_sbuf = scaled(product(by_cosine_sbuf, cosine_sbuf), -1.0)
        of_itself = [product(product(negative_sbuf, inverse), inverse) for inverse in inverses]
        return RowResults(loss_sbuf, [of_other_sbuf, *of_itself])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> CosineFactors:
        """Return the coefficients times the upstream gradients."""
        of_other, *of_itself = (product(upstream_sbuf, coefficient_sbuf) for coefficient_sbuf in coefficients_sbuf)
        return CosineFactors(of_other, of_itself)

    def gradients(self, piece: Piece, factors: CosineFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Write each requested gradient, factor of x * x + factor of y * y, to its tile in ``dst_sbuf``."""
        for tensor, gradient_sbuf in dst_sbuf.items():
            other = SECOND if tensor == FIRST else FIRST
            terms = [
                Term(piece.tensors[other], factors.of_other),
                Term(piece.tensors[tensor], factors.of_itself[tensor]),
            ]
            combine(piece, gradient_sbuf, terms)


def _inverse_norm(squares_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    return inverse_or_zero(square_root(shifted(squares_sbuf, SQUARED_EPS)))


ERROR: Final = TermError(5.5, {"sqrt": 2.0, "reciprocal": 2.0}, "1 and margin", additions=1.0)


@dataclass(frozen=True)
class CosineReference:
    """The float64 reference, ``F.cosine_embedding_loss(..., reduction="none")``.

    Attributes:
        margin: the largest cosine without a loss where the target is -1.
    """

    margin: float = 0.0
    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the loss of each row and its error.

        The loss is 1 - cos for target 1, max(0, cos - margin) for target -1, else 0.
        """
        of_rows, target = _cosine(tensors), tensors[TARGET]
        cosine, margin = of_rows.exact, abs(self.margin)
        beyond = np.maximum(0.0, cosine.value - self.margin)
        value = np.where(target == 1.0, 1.0 - cosine.value, np.where(target == -1.0, beyond, 0.0))
        counts = np.abs(target) == 1.0
        own = np.where(counts, cosine.error + 0.5 * UNIT * (margin + np.abs(value)), 0.0)
        of_function = np.where(counts, 2.0 * UNIT * np.abs(cosine.value), 0.0)
        largest = np.maximum(np.abs(value), max(1.0, margin))
        return Derived(value, largest, own, {"sqrt": of_function, "reciprocal": of_function})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives of each row's loss with respect to the elements of both inputs, with their errors.

        An error is infinite where rounding may change the sign of cos - margin.
        """
        of_rows = _cosine(tensors, functions)
        cosine, inverses, relative = of_rows.exact, of_rows.inverses, of_rows.relative
        target, beyond = tensors[TARGET], cosine.value - self.margin
        is_unsure = (target == -1.0) & (np.abs(beyond) <= cosine.error + UNIT * (1.0 + abs(self.margin)))
        by_cosine = np.where(target == 1.0, -1.0, 0.0) + np.where((target == -1.0) & (beyond >= 0.0), 1.0, 0.0)
        gradients = {}
        for name, other, inverse in ((INPUT1, INPUT2, inverses[0]), (INPUT2, INPUT1, inverses[1])):
            of_other = (by_cosine * inverses[0] * inverses[1])[:, None] * tensors[other]
            of_itself = (by_cosine * inverse**2)[:, None] * tensors[name]
            error = (relative + 6.0 * UNIT) * np.abs(of_other) + np.abs(of_itself) * (
                cosine.error + (relative + 6.0 * UNIT) * np.abs(cosine.value)
            )[:, None]
            value = of_other - of_itself * cosine.value[:, None]
            gradients[name] = Exact(value, np.where(is_unsure[:, None], np.inf, error))
        return gradients


@dataclass(frozen=True)
class _Cosine:
    """The cosines of the rows of the first input with those of the second.

    Attributes:
        exact: the cosines, [N], and their errors.
        inverses: the inverse norms of the rows of the first and of the second input, each [N].
        relative: a bound on the relative error of r1 r2, and of the square of r1 or r2.
    """

    exact: Exact
    inverses: list[Float64Array]
    relative: float


def _cosine(tensors: Tensors, functions: FunctionErrors = CORRECT) -> _Cosine:
    first, second = tensors[INPUT1], tensors[INPUT2]
    terms = first * second
    product = summed(terms, 0.5 * UNIT * np.abs(terms))
    inverses = [1.0 / np.sqrt((rows * rows).sum(axis=1) + SQUARED_EPS) for rows in (first, second)]
    of_inverses = 2.0 * (functions.sqrt + functions.reciprocal)
    relative = (0.5 * (additions(first.shape[1]) + 2.0) + of_inverses) * UNIT
    value = product.value * inverses[0] * inverses[1]
    error = product.error * inverses[0] * inverses[1] + (relative + UNIT) * np.abs(value)
    return _Cosine(Exact(value, error), inverses, relative)


# Per row: the factor of the other row in the gradients, and the factor of each row itself.
_COEFFICIENTS = 3


def cosine_embedding_loss_forward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    target_hbm: HbmTensor,
    margin: float = 0.0,
    reduction: str = "mean",
    coefficients_wanted: bool = True,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the cosine embedding loss, row-wise: ``1 - cos`` where the target is 1, ``max(0, cos - margin)`` where
    the target is -1.

    The loss is 0 for any other target. Equivalent to ``F.cosine_embedding_loss(input1, input2, target, margin=margin,
    reduction=reduction)`` in PyTorch, computed in float32. Launch with ``cosine_embedding_loss_forward[2](...)`` on a
    logical NeuronCore of two cores.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.

    Args:
        input1_hbm, input2_hbm: the rows, [N, D], each bfloat16, float16 or float32, in HBM. 1e-12 is added to squared
            norms.
        target_hbm: the targets, [N], float32.
        margin: the largest cosine without a loss where the target is -1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over rows).
        coefficients_wanted: whether to return the coefficients that the backward takes.
        dtype: the type of the losses for ``"none"``; None: the type of ``input1_hbm``.
        columns: the number of columns of a chunk of a row; None: chosen from shape and types.
        each: the number of rows that a partition processes at a time, if a chunk has all columns; None: chosen from
            shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, [N], for ``"none"``; else their sum or mean, [1], float32.
        coefficients_hbm: the coefficients of the gradients, [3, N], float32, if ``coefficients_wanted``.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "cosine_embedding_loss_forward"
    require_matrices(function, {"input1_hbm": input1_hbm, "input2_hbm": input2_hbm})
    rows, size = input1_hbm.shape
    require_vector(function, "target_hbm", target_hbm, rows, "rows")
    require_reduction(function, reduction)
    require_flag(function, "coefficients_wanted", coefficients_wanted)
    dtype = input1_hbm.dtype if dtype is None else dtype
    require_float_tensor(function, "dtype", dtype)
    definition = CosineEmbedding(margin)
    streamed = [input1_hbm.dtype, input2_hbm.dtype]
    tiling = checked_tiling(function, (rows, size), streamed, definition.forward_tiles, columns, each, buffers)
    outputs = new_outputs(rows, dtype, factor_of(reduction, rows), _COEFFICIENTS, coefficients_wanted)
    forward_of_core(RowLaunch((input1_hbm, input2_hbm), tiling, (target_hbm,)), definition, outputs)
    return returned(outputs)


def cosine_embedding_loss_backward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    coefficients_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    grad_input1_wanted: bool = True,
    grad_input2_wanted: bool = True,
    inplace: bool = False,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the cosine embedding loss with respect to both inputs.

    The gradient of a row is a sum of this row and the other input's row, each times a coefficient of the forward and
    the upstream gradient. Equivalent to the gradients of ``F.cosine_embedding_loss`` in PyTorch. Launch it like
    :func:`cosine_embedding_loss_forward`.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.

    Args:
        input1_hbm, input2_hbm, reduction: the arguments of the forward.
        coefficients_hbm: [3, N], float32, as the forward returned them.
        grad_loss_hbm: the upstream gradient: [N] for ``"none"``, bfloat16, float16 or float32; else [1], float32, read
            on the device.
        grad_input1_wanted, grad_input2_wanted: whether to compute each gradient; at least one is True.
        inplace: write the gradient of the first input over ``input1_hbm``; else into a new tensor.
        columns, each, buffers: the tiling, see the forward.

    Returns:
        grad_input1_hbm, grad_input2_hbm: the requested gradients, each of the shape and type of its tensor; with
            ``inplace`` the first is ``input1_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "cosine_embedding_loss_backward"
    require_matrices(function, {"input1_hbm": input1_hbm, "input2_hbm": input2_hbm})
    require_reduction(function, reduction)
    require_wanted(function, {"input1": grad_input1_wanted, "input2": grad_input2_wanted}, inplace)
    rows, size = input1_hbm.shape
    factor = factor_of(reduction, rows)
    require_upstream(function, grad_loss_hbm, (rows,), is_each=factor is None)
    require_coefficients(function, coefficients_hbm, _COEFFICIENTS, rows)
    tensors = (input1_hbm, input2_hbm)
    likes = {
        "input1": input1_hbm if grad_input1_wanted else None,
        "input2": input2_hbm if grad_input2_wanted else None,
    }
    streamed = [each_hbm.dtype for each_hbm in (*tensors, *likes.values()) if each_hbm is not None]
    definition = CosineEmbedding(0.0)
    tiling = checked_tiling(function, (rows, size), streamed, definition.backward_tiles, columns, each, buffers)
    gradients = new_gradients(likes, inplace)
    coefficients = [coefficients_hbm[number, :] for number in range(_COEFFICIENTS)]
    backward_of_core(RowLaunch(tensors, tiling), definition, Upstream(grad_loss_hbm, factor), coefficients, gradients)
    results = tuple(gradients.values())
    return results[0] if len(results) == 1 else results


COSINE_EMBEDDING: Final = rowwise_loss(
    "cosine_embedding_loss",
    "CosineEmbeddingLoss",
    cosine_embedding_loss_forward,
    cosine_embedding_loss_backward,
    formula="1 - cos(x, y) for t = 1, max(0, cos(x, y) - margin) for t = -1",
    derivative="k (y / (|x| |y|) - cos x / |x|^2), k = -1 or [cos >= margin]",
    errors=(ERROR,),
    gradients=RowGradients(
        "4 u times each of the two terms, plus the errors of the forward's coefficients, plus half a ulp",
        "gradients are computed only on request",
    ),
    rows=RowTensors(vectors=(TARGET,), coefficients=lambda arguments: _COEFFICIENTS),
    time_limits=((1.5, 1.05), (1.05, 1.05)),
    forms=(
        Form(
            CosineReference(0.01),
            {INPUT1: Sample.NUMBERS, INPUT2: Sample.NUMBERS, TARGET: Sample.SIMILARITIES_OF_ROWS},
            {"margin": 0.01},
        ),
    ),
    edges="1e-12 is added to the squared norms; the loss is 0 for targets other than 1 and -1",
    differences="the rows of both inputs must have the same length, whereas PyTorch broadcasts a row of one element "
    "after computing its norm; a row whose squares overflow float32 has cosine 0 and gradient 0, where PyTorch's "
    "gradient is NaN or 0",
    family=Family.EMBEDDING,
)
