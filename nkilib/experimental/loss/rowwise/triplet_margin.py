# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The triplet margin loss: its definition in instructions, and its kernels, as plain functions to call from NKI code.

An anchor should be nearer to its positive example than to its negative example by a margin. With anchor a, positive
example p, negative example n and distance d, the loss is ``max(0, margin + d(a, p) - d(a, n))``,
``torch.nn.functional.triplet_margin_loss(a, p, n)``. With ``swap`` the smaller of d(a, n) and d(p, n) replaces d(a, n).
Distances and their derivatives are in :mod:`.triplet_distances`. Each distance belongs to a pair of tensors; tensors,
pairs and their distances are identified by numbers. A *piece* is the part of a tile of rows that is processed at a
time.

The gradient of a tensor is a sum of derivatives of distances, each times a coefficient. The backward recomputes the
differences of the tensors, and from them the derivatives. The forward returns the coefficients, one for each row and
distance: 0 where margin + d(a, p) - d(a, n) is negative; elsewhere for p = 2, for example, 1 / d(a, p) and
-1 / d(a, n).
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.arithmetic import difference
from nkilib.core.hardware import HbmTensor
from nkilib.core.loss_arguments import Upstream, require_float_tensor, require_reduction, require_upstream
from nkilib.core.rows.checks import require, require_flag
from nkilib.core.rows.tiles import product, scaled
from nkilib.experimental.loss.rowwise.triplet_distances import (
    ANCHOR,
    NEGATIVE,
    PAIRS,
    POSITIVE,
    Norm,
    backward_tiles,
    forward_tiles,
    needed_pairs,
    needed_tensors,
    norm_of,
    num_coefficients,
    pairs_of,
)
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.backward import Term, backward_of_core, combine
from nkilib.experimental.loss.skeletons.rowwise.definition import (
    RowResults,
    Statistic,
    at_least_zero,
    combined,
    compared,
    shifted,
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
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class TripletFactors:
    """The factors of the derivatives of distances in the gradients, each a tile float32 [partitions, rows of the
    group of tiles].

    Attributes:
        of_first: for each distance by number, the factor of its derivative in the gradient of the pair's first tensor.
        of_second: the same for the pair's second tensor: the negatives of ``of_first``.
        row_scalars_sbuf: for each distance by number, the result of :meth:`.Norm.row_scalar`; empty if not needed.
        biases_sbuf: for each tensor by number, :attr:`.Norm.derivative_offset` times the sum of the factors that
            :meth:`of` returns for this tensor.
    """

    of_first: list[nl.NkiTensor]
    of_second: list[nl.NkiTensor]
    row_scalars_sbuf: list[nl.NkiTensor]
    biases_sbuf: dict[int, nl.NkiTensor]

    def of(self, number: int, tensor: int) -> nl.NkiTensor:
        """Return the factor of distance number ``number`` in the gradient of tensor number ``tensor``."""
        return (self.of_first if PAIRS[number][0] == tensor else self.of_second)[number]


def _difference_of_pair(piece: Piece, number: int) -> nl.NkiTensor:
    """Return first - second for the tensors of pair number ``number``, in a float32 tile.

    GpSimd computes pair number 1, so that Vector does not take longer than the loads.
    """
    first, second = (piece.tensors[tensor] for tensor in PAIRS[number])
    difference_sbuf = piece.float32()
    if number == 1:
        nisa.tensor_tensor(dst=difference_sbuf, data1=first, data2=second, op=nl.subtract, engine=nisa.engine.gpsimd)
    else:
        difference(difference_sbuf, first, second)
    return difference_sbuf


def _share_of_first(first_sbuf: nl.NkiTensor, second_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the derivative of min(first, second) with respect to first: 1, 0, or 1/2 if both are equal, as in
    PyTorch.
    """
    is_less_sbuf = combined(first_sbuf, second_sbuf, nl.less)
    is_equal_sbuf = combined(first_sbuf, second_sbuf, nl.equal)
    return combined(is_less_sbuf, scaled(is_equal_sbuf, 0.5), nl.add)


@dataclass(frozen=True)
class Triplet:
    """The definition of the loss with its options.

    Attributes:
        norm: the norm that gives the distances.
        margin: the amount by which d(anchor, negative) should exceed d(anchor, positive).
        swap: whether d(anchor, negative) is replaced by d(positive, negative) where the latter is smaller.
    """

    norm: Norm
    margin: float
    swap: bool

    @property
    def forward_tiles(self) -> int:
        """The number of float32 scratch tiles that a piece needs in the forward."""
        return forward_tiles(self.swap)

    @property
    def backward_tiles(self) -> int:
        """The result of :func:`.triplet_distances.backward_tiles`."""
        return backward_tiles(self.swap)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics of the norm, repeated for each pair of tensors."""
        return self.norm.statistics * len(pairs_of(self.swap))

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        return needed_tensors(wanted, self.swap)

    def prepare(self, piece: Piece) -> Prepared:
        """Return the difference of each pair of tensors."""
        return tuple(_difference_of_pair(piece, number) for number in range(len(pairs_of(self.swap))))

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Add the differences of each pair to the statistics of the norm."""
        for number, difference_sbuf in enumerate(prepared):
            self.norm.accumulate(piece, number * len(self.norm.statistics), difference_sbuf)

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Return the loss of each row, and its coefficients for the backward.

        For each distance there is a coefficient, the factor of the distance's derivative in the gradient of the pair's
        first tensor; then, if :attr:`.Norm.keeps_row_scalar`, for each distance its row scalar.
        """
        size = len(self.norm.statistics)
        parts = [statistics_sbuf[start : start + size] for start in range(0, len(statistics_sbuf), size)]
        distances = [self.norm.distance(part) for part in parts]
        factors = [self.norm.row_factor(*pair) for pair in zip(distances, parts, strict=True)]
        farther_sbuf = combined(distances[1], distances[2], nl.minimum) if self.swap else distances[1]
        # margin first, as PyTorch has it
        open_sbuf = combined(shifted(distances[0], self.margin), farther_sbuf, nl.subtract)
        is_open_sbuf = compared(open_sbuf, nl.greater_equal, 0.0)
        shut_sbuf = scaled(is_open_sbuf, -1.0)
        signed = [product(factors[0], is_open_sbuf), product(factors[1], shut_sbuf)]
        if self.swap:
            share_sbuf = _share_of_first(distances[1], distances[2])
            signed[1] = product(signed[1], share_sbuf)
            rest_sbuf = shifted(scaled(share_sbuf, -1.0), 1.0)
            signed.append(product(product(factors[2], shut_sbuf), rest_sbuf))
        kept = [self.norm.row_scalar(distance) for distance in distances] if self.norm.keeps_row_scalar else []
        return RowResults(at_least_zero(open_sbuf), [*signed, *kept])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> TripletFactors:
        """Return the coefficients times the upstream gradients; row scalars stay as they are."""
        pairs = pairs_of(self.swap)
        of_first = [product(upstream_sbuf, coefficient) for coefficient in coefficients_sbuf[: len(pairs)]]
        of_second = [scaled(factor, -1.0) for factor in of_first]
        factors = TripletFactors(of_first, of_second, coefficients_sbuf[len(pairs) :], {})
        for tensor in (ANCHOR, POSITIVE, NEGATIVE):
            numbers = [factors.of(number, tensor) for number, pair in enumerate(pairs) if tensor in pair]
            factors.biases_sbuf[tensor] = self._bias(numbers)
        return factors

    def _bias(self, factors_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the sum of the factors, times :attr:`.Norm.derivative_offset`."""
        total_sbuf, *others = (scaled(factor_sbuf, self.norm.derivative_offset) for factor_sbuf in factors_sbuf)
        for factor_sbuf in others:
            total_sbuf = combined(total_sbuf, factor_sbuf, nl.add)
        return total_sbuf

    def gradients(self, piece: Piece, factors: TripletFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Write the requested gradients to ``dst_sbuf``: for each tensor the sum, over the distances of its pairs, of
        derivative times factor.
        """
        offset, derivatives = self.norm.derivative_offset, {}
        for number in needed_pairs(tuple(dst_sbuf), self.swap):
            derivatives[number] = _difference_of_pair(piece, number)
            row_scalar_sbuf = factors.row_scalars_sbuf[number] if self.norm.keeps_row_scalar else None
            self.norm.derivative(piece, derivatives[number], row_scalar_sbuf)
        for tensor, gradient_sbuf in dst_sbuf.items():
            terms = [
                Term(derivatives[number], factors.of(number, tensor), offset)
                for number, pair in enumerate(pairs_of(self.swap))
                if tensor in pair
            ]
            combine(piece, gradient_sbuf, terms, factors.biases_sbuf[tensor] if offset else None)


def _require_options(function: str, p: float, swap: bool, reduction: str) -> None:
    require(
        p >= 1.0,
        f"{function}: p must be at least 1, which makes it a norm, got {p}; use "
        f"torch.nn.functional.triplet_margin_loss",
    )
    require_flag(function, "swap", swap)
    require_reduction(function, reduction)


def triplet_margin_loss_forward(
    anchor_hbm: HbmTensor,
    positive_hbm: HbmTensor,
    negative_hbm: HbmTensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    coefficients_wanted: bool = True,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the triplet margin loss of every row:
    ``max(0, margin + d(anchor, positive) - d(anchor, negative))``.

    d is the p-norm of the difference, after eps is added to its elements. Equivalent to ``F.triplet_margin_loss(anchor,
    positive, negative, margin=margin, p=p, eps=eps, swap=swap, reduction=reduction)`` in PyTorch, computed in float32.
    Launch with ``triplet_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.
        K: coefficients of a row: 2, or 3 with ``swap`` (one for each distance), and twice as many if p is not 1 or 2.

    Args:
        anchor_hbm, positive_hbm, negative_hbm: [N, D], each bfloat16, float16 or float32, in HBM.
        margin: the amount by which d(anchor, negative) should exceed d(anchor, positive).
        p: the exponent of the norm, at least 1, also infinity; 1, 2 and infinity are faster and more accurate than
            other values.
        eps: the number that is added to every difference.
        swap: whether to replace d(anchor, negative) by the smaller of d(anchor, negative) and d(positive, negative).
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over rows).
        coefficients_wanted: whether to return the coefficients that the backward takes.
        dtype: the type of the losses for ``"none"``; None: the type of the anchor.
        columns: the number of columns of a chunk of a row; None: chosen from shape and types.
        each: the number of rows that a partition processes at a time, if a chunk has all columns; None: chosen from
            shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, [N], for ``"none"``; else their sum or mean, [1], float32.
        coefficients_hbm: the coefficients of the gradients, [K, N], float32, if ``coefficients_wanted``.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "triplet_margin_loss_forward"
    matrices = {"anchor_hbm": anchor_hbm, "positive_hbm": positive_hbm, "negative_hbm": negative_hbm}
    require_matrices(function, matrices)
    _require_options(function, p, swap, reduction)
    require_flag(function, "coefficients_wanted", coefficients_wanted)
    dtype = anchor_hbm.dtype if dtype is None else dtype
    require_float_tensor(function, "dtype", dtype)
    rows, size = anchor_hbm.shape
    streamed = [each_hbm.dtype for each_hbm in matrices.values()]
    tiling = checked_tiling(function, (rows, size), streamed, forward_tiles(swap), columns, each, buffers)
    definition = Triplet(norm_of(p, eps), margin, swap)
    numbers = num_coefficients(p, swap)
    outputs = new_outputs(rows, dtype, factor_of(reduction, rows), numbers, coefficients_wanted)
    forward_of_core(RowLaunch(tuple(matrices.values()), tiling), definition, outputs)
    return returned(outputs)


def triplet_margin_loss_backward(
    anchor_hbm: HbmTensor,
    positive_hbm: HbmTensor,
    negative_hbm: HbmTensor,
    coefficients_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    grad_anchor_wanted: bool = True,
    grad_positive_wanted: bool = True,
    grad_negative_wanted: bool = True,
    inplace: bool = False,
    columns: int | None = None,
    each: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the triplet margin loss with respect to anchor, positive and negative.

    Equivalent to the gradients of ``F.triplet_margin_loss`` in PyTorch. If the two distances that ``swap``
    compares are equal, each gets half of the gradient. The derivative of a distance of 0 is 0. Launch like
    :func:`triplet_margin_loss_forward`.

    Dimensions:
        N: rows, N > 0.
        D: elements of a row, D > 0.
        K: coefficients of a row, see the forward.

    Args:
        anchor_hbm, positive_hbm, negative_hbm, p, eps, swap, reduction: the arguments of the forward.
        coefficients_hbm: [K, N], float32, the second result of the forward.
        grad_loss_hbm: the upstream gradient: [N] for ``"none"``, bfloat16, float16 or float32; else [1], float32, read
            on the device.
        grad_anchor_wanted, grad_positive_wanted, grad_negative_wanted: whether to compute each gradient; at least one
            is True.
        inplace: write the gradient of the anchor over ``anchor_hbm``; else into a new tensor.
        columns, each, buffers: see :func:`triplet_margin_loss_forward`.

    Returns:
        grad_anchor_hbm, grad_positive_hbm, grad_negative_hbm: the requested gradients, each in shape and type of its
            tensor; with ``inplace`` the first is ``anchor_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "triplet_margin_loss_backward"
    matrices = {"anchor_hbm": anchor_hbm, "positive_hbm": positive_hbm, "negative_hbm": negative_hbm}
    require_matrices(function, matrices)
    _require_options(function, p, swap, reduction)
    flags = {"anchor": grad_anchor_wanted, "positive": grad_positive_wanted, "negative": grad_negative_wanted}
    require_wanted(function, flags, inplace)
    rows, size = anchor_hbm.shape
    factor = factor_of(reduction, rows)
    require_upstream(function, grad_loss_hbm, (rows,), is_each=factor is None)
    numbers = num_coefficients(p, swap)
    require_coefficients(function, coefficients_hbm, numbers, rows)
    tensors = tuple(matrices.values())
    wanted = tuple(number for number, flag in enumerate(flags.values()) if flag)
    streamed = [tensors[number].dtype for number in (*needed_tensors(wanted, swap), *wanted)]
    tiling = checked_tiling(function, (rows, size), streamed, backward_tiles(swap), columns, each, buffers)
    likes = {name: tensor if flag else None for (name, flag), tensor in zip(flags.items(), tensors, strict=True)}
    gradients = new_gradients(likes, inplace)
    coefficients = [coefficients_hbm[number, :] for number in range(numbers)]
    definition = Triplet(norm_of(p, eps), 0.0, swap)
    backward_of_core(RowLaunch(tensors, tiling), definition, Upstream(grad_loss_hbm, factor), coefficients, gradients)
    results = tuple(gradients.values())
    return results[0] if len(results) == 1 else results
