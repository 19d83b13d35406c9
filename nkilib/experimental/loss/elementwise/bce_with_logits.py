# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Binary cross-entropy of logits x and targets t, ``torch.nn.functional.binary_cross_entropy_with_logits(x, t)``.

The loss is ``softplus(-|x|) + x ([x > 0] - t)``, which equals PyTorch's ``(1 - t) x + softplus(-x)``. Of exp(x) and
exp(-x) it uses the smaller one, so that a confident logit keeps its small loss. At t = 0 and t = 1 nothing cancels. The
derivatives are ``sigmoid(x) - t`` and ``-x``.

With a weight p of positive examples (``pos_weight``) the loss is
``w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0)`` for ``w = p t + (1 - t)``; its derivatives are
``(1 - t) - w sigmoid(-x)`` and ``(p - 1) softplus(-x) - x``.

The file has the definition in instructions (:class:`BceWithLogits`, and :class:`BceWithPositiveWeight` with
``pos_weight``), the float64 references (:class:`BceWithLogitsReference` and :class:`BceWithPositiveWeightReference`),
the kernels (``binary_cross_entropy_with_logits_...``) and the registry entry (:data:`BCE_WITH_LOGITS`).

Errors of float32 arithmetic, with u = 2^-23.

Let s = softplus(-|x|), whose relative error is u / 2.

Without a weight, r = [x > 0] - t rounds once where x > 0, and so do its product with x, and the sum:

    |error| <= u (s / 2 + |x r| / 2 + [x > 0] |x r| / 2 + loss / 2)

An additional error of u in softplus adds u s.

With a weight p, each of p t, 1 - t and their sum w rounds once. So does each of the three products, and
each of the two sums, one of which adds 0:

    |error| <= u (3 w s / 2 + (|p t| + |1 - t|) s / 2 + |p t min(x, 0)| + |(1 - t) max(x, 0)| + loss / 2)

An additional error of u in softplus adds u w s. The error of a derivative consists of the error of sigmoid
or softplus and the roundings of its products and sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import (
    add_on_gpsimd,
    combine,
    difference,
    multiply_on_gpsimd,
    product,
    subtract_on_gpsimd,
    transform,
)
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, Float64Array, FunctionErrors, Tensors
from nkilib.core.host.loss import Form, Sample
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    INPUT,
    POSITIVE_WEIGHT,
    TARGET,
    WEIGHT,
    Activation,
    Combination,
    Derivative,
    LossDefinition,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.host import (
    Functions,
    GradientError,
    WeightedReference,
    elementwise_loss,
)
from nkilib.experimental.loss.skeletons.elementwise.results import Weighted
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class BceWithLogits:
    """The definition of the loss without a weight of positive examples."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 4

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that the derivatives need.

        The derivative for the target needs the input only.
        """
        return self.tensors if INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of |x|, in the type of x, and of [x > 0] - t."""
        size_sbuf, flag_sbuf, rest_sbuf = piece.like(INPUT), piece.bfloat16(), piece.float32()
        transform(flag_sbuf, piece[INPUT], nl.greater, 0.0)
        transform(size_sbuf, piece[INPUT], nl.abs, None)
        subtract_on_gpsimd(rest_sbuf, flag_sbuf, piece[TARGET])
        return size_sbuf, rest_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses softplus(-|x|) + x ([x > 0] - t)."""
        size_sbuf, rest_sbuf = prepared
        losses.activation_and_combination(
            Activation(nl.softplus, size_sbuf, -1.0, piece.float32()),
            Combination(piece[INPUT], nl.multiply, 1.0, nl.multiply, rest_sbuf),
        )

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives sigmoid(x) - t for the input and -x for the target."""
        derivatives = {TARGET: Derivative(piece[INPUT], -1.0)}
        if INPUT in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.sigmoid, data=piece[INPUT])
            difference(slope_sbuf, slope_sbuf, piece[TARGET])
            derivatives[INPUT] = Derivative(slope_sbuf, on_scalar=True)
        return derivatives


@dataclass(frozen=True)
class BceWithPositiveWeight:
    """The definition of the loss with a weight p of positive examples; w = p t + (1 - t)."""

    tensors = (INPUT, TARGET, POSITIVE_WEIGHT)
    scratch_tiles = 5

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that the derivatives need.

        The derivative for the target does not need the target.
        """
        return self.tensors if INPUT in wanted else (INPUT, POSITIVE_WEIGHT)

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of softplus(-|x|), p t, 1 - t and w."""
        size_sbuf, soft_sbuf = piece.like(INPUT), piece.float32()
        transform(size_sbuf, piece[INPUT], nl.abs, None)
        nisa.activation(dst=soft_sbuf, op=nl.softplus, data=size_sbuf, scale=-1.0)
        shares = _Shares.of(piece)
        return soft_sbuf, shares.positive_sbuf, shares.negative_sbuf, shares.weight_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0); one of the last two terms is 0."""
        soft_sbuf, positive_sbuf, negative_sbuf, weight_sbuf = prepared
        combine(positive_sbuf, piece[INPUT], nl.minimum, 0.0, nl.multiply, positive_sbuf)
        combine(negative_sbuf, piece[INPUT], nl.maximum, 0.0, nl.multiply, negative_sbuf)
        product(soft_sbuf, soft_sbuf, weight_sbuf)
        difference(soft_sbuf, soft_sbuf, positive_sbuf)
        losses.scalar_tensor_tensor(soft_sbuf, nl.add, 0.0, nl.add, negative_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives (1 - t) - w sigmoid(-x) for the input and (p - 1) softplus(-x) - x for the target."""
        derivatives = {}
        if INPUT in wanted:
            sigmoid_sbuf = piece.float32()
            shares = _Shares.of(piece)
            nisa.activation(dst=sigmoid_sbuf, op=nl.sigmoid, data=piece[INPUT], scale=-1.0)
            product(shares.weight_sbuf, shares.weight_sbuf, sigmoid_sbuf)
            difference(shares.negative_sbuf, shares.negative_sbuf, shares.weight_sbuf)
            derivatives[INPUT] = Derivative(shares.negative_sbuf, on_scalar=True)
        if TARGET in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.softplus, data=piece[INPUT], scale=-1.0)
            combine(slope_sbuf, piece[POSITIVE_WEIGHT], nl.subtract, 1.0, nl.multiply, slope_sbuf)
            difference(slope_sbuf, slope_sbuf, piece[INPUT])
            derivatives[TARGET] = Derivative(slope_sbuf)
        return derivatives


@dataclass(frozen=True)
class _Shares:
    """Tiles of p t, of 1 - t, and of their sum w."""

    positive_sbuf: nl.NkiTensor
    negative_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor

    @classmethod
    def of(cls, piece: Piece) -> _Shares:
        """Compute the tiles on GpSimd and Scalar, because Vector has enough other work."""
        shares = cls(piece.float32(), piece.float32(), piece.float32())
        multiply_on_gpsimd(shares.positive_sbuf, piece[POSITIVE_WEIGHT], piece[TARGET])
        one_sbuf = piece.constant(1.0)
        nisa.activation(dst=shares.negative_sbuf, op=nl.copy, data=piece[TARGET], scale=-1.0, bias=one_sbuf)
        add_on_gpsimd(shares.weight_sbuf, shares.positive_sbuf, shares.negative_sbuf)
        return shares


ERROR: Final = TermError(1.5, {"softplus": 1.0})
ERROR_WITH_POSITIVE_WEIGHT: Final = TermError(2.5, {"softplus": 1.0}, form="with pos_weight")


@dataclass(frozen=True)
class BceWithLogitsReference:
    """The float64 reference, ``F.binary_cross_entropy_with_logits(input.double(), target.double())`` of PyTorch."""

    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses softplus(-|x|) + x ([x > 0] - t) and their errors."""
        x, t = tensors[INPUT], tensors[TARGET]
        soft, rest = _softplus(-np.abs(x)), x * ((x > 0.0) - t)
        loss, size = soft + rest, np.abs(rest)
        own = 0.5 * (soft + size + (x > 0.0) * size + np.abs(loss))
        return Derived.of_units(loss, (soft, rest), own, {"softplus": soft})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives sigmoid(x) - t for the input and -x for the target, with their errors."""
        x, t = tensors[INPUT], tensors[TARGET]
        slope = _sigmoid(x) - t
        error = UNIT * (functions.sigmoid * _sigmoid(x) + 0.5 * np.abs(slope))
        return {INPUT: Exact(slope, error), TARGET: Exact(-x, np.zeros_like(x))}


@dataclass(frozen=True)
class BceWithPositiveWeightReference:
    """The float64 reference of the loss with a weight p of positive examples; w = p t + (1 - t)."""

    stated: ClassVar[TermError] = ERROR_WITH_POSITIVE_WEIGHT

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0), and their errors."""
        x, t, p = tensors[INPUT], tensors[TARGET], tensors[POSITIVE_WEIGHT]
        soft, positive, negative = _softplus(-np.abs(x)), p * t, 1.0 - t
        weighted = (positive + negative) * soft
        below, above = positive * np.minimum(x, 0.0), negative * np.maximum(x, 0.0)
        loss = weighted - below + above
        shares = 0.5 * (np.abs(positive) + np.abs(negative)) * soft
        own = 1.5 * np.abs(weighted) + shares + np.abs(below) + np.abs(above) + 0.5 * np.abs(loss)
        return Derived.of_units(loss, (weighted, below, above), own, {"softplus": weighted})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives and their errors.

        They are (1 - t) - w sigmoid(-x) for the input and (p - 1) softplus(-x) - x for the target.
        """
        x, t, p = tensors[INPUT], tensors[TARGET], tensors[POSITIVE_WEIGHT]
        positive, negative, sigmoid = p * t, 1.0 - t, _sigmoid(-x)
        weighted, soft = (positive + negative) * sigmoid, (p - 1.0) * _softplus(-x)
        slope, by_target = negative - weighted, soft - x
        shares = 0.5 * (np.abs(positive) + np.abs(negative) + np.abs(positive + negative)) * sigmoid
        of_weighted = (functions.sigmoid + 0.5) * np.abs(weighted)
        error = UNIT * (of_weighted + shares + 0.5 * np.abs(negative) + 0.5 * np.abs(slope))
        of_target = UNIT * ((functions.softplus + 1.0) * np.abs(soft) + 0.5 * np.abs(by_target))
        return {INPUT: Exact(slope, error), TARGET: Exact(by_target, of_target)}


def _softplus(x: Float64Array) -> Float64Array:
    result: Float64Array = np.logaddexp(0.0, x)
    return result


def _sigmoid(x: Float64Array) -> Float64Array:
    result: Float64Array = np.exp(-np.logaddexp(0.0, -x))
    return result


def binary_cross_entropy_with_logits_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    pos_weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the binary cross-entropy of logits x and targets t, elementwise: ``(1 - t) x + (1 + (p - 1) t) log(1 +
    exp(-x))``, times a weight if there is one. p is the weight of positive examples, 1 if there is none.

    Equivalent to ``F.binary_cross_entropy_with_logits(input, target, weight, pos_weight=pos_weight,
    reduction=reduction)`` in PyTorch, computed in float32; confident logits keep their small loss. Launch with
    ``binary_cross_entropy_with_logits_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, logits, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the input's shape, in any of these types.
        weight_hbm: the weight of each element, of the input's shape; or for an input [R, C] one weight per row,
            [R, 1], or per column, [1, C], which is not expanded in memory; in any of these types; None: 1.
        pos_weight_hbm: p, the weight of positive examples per element, per row or per column, like ``weight_hbm``;
            None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "binary_cross_entropy_with_logits_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm, POSITIVE_WEIGHT: pos_weight_hbm}
    return run_forward(
        function, _definition(function, weight_hbm, pos_weight_hbm), tensors_hbm, reduction, dtype, columns, buffers
    )


def binary_cross_entropy_with_logits_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    pos_weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the binary cross-entropy of logits x and targets t, times the weight and the upstream
    gradient. They are ``sigmoid(x) - t`` with respect to the input and ``-x`` with respect to the target. With a weight
    p of positive examples they are ``(1 - t) - (1 + (p - 1) t) sigmoid(-x)`` and ``(p - 1) log(1 + exp(-x)) - x``.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch it like the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, pos_weight_hbm, reduction: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: for ``"none"`` of the input's shape, bfloat16, float16 or float32; else
            [1], float32, read on the device.
        grad_input_wanted, grad_target_wanted: whether to compute each gradient; at least one is True.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: the tiling, see the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: the requested gradients, each of the shape and type of its tensor; with
            ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "binary_cross_entropy_with_logits_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm, POSITIVE_WEIGHT: pos_weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    definition = _definition(function, weight_hbm, pos_weight_hbm)
    return run_backward(function, definition, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _definition(function: str, weight_hbm: nl.NkiTensor | None, pos_weight_hbm: nl.NkiTensor | None) -> LossDefinition:
    definition: LossDefinition = BceWithLogits() if pos_weight_hbm is None else BceWithPositiveWeight()
    return definition if weight_hbm is None else Weighted(definition)


_SAMPLES: Final = {INPUT: Sample.LOGITS, TARGET: Sample.PROBABILITIES}
_BALANCED: Final = {**_SAMPLES, POSITIVE_WEIGHT: Sample.POSITIVE}
BCE_WITH_LOGITS: Final = elementwise_loss(
    "binary_cross_entropy_with_logits",
    "BCEWithLogitsLoss",
    binary_cross_entropy_with_logits_forward,
    binary_cross_entropy_with_logits_backward,
    formula="(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))",
    derivative="sigmoid(x) - t; (1 - t) - (1 + (p - 1) t) sigmoid(-x)",
    errors=(ERROR, ERROR_WITH_POSITIVE_WEIGHT),
    gradient_error=GradientError(
        "2 u times the larger of sigmoid(x) and t; with pos_weight, 3.5 u times the sum of the terms' magnitudes",
        {"sigmoid": 1.0, "softplus": 1.0},
    ),
    functions=Functions(forward=1, backward=1),
    time_limits=((1.32, 1.35), (1.05, 1.05)),
    forms=(
        Form(BceWithLogitsReference(), _SAMPLES),
        Form(BceWithPositiveWeightReference(), _BALANCED, label=", pos_weight"),
        Form(
            WeightedReference(BceWithPositiveWeightReference()),
            {**_SAMPLES, WEIGHT: Sample.POSITIVE, POSITIVE_WEIGHT: Sample.POSITIVE},
            label=", both weights",
        ),
    ),
    edges="infinite logits give PyTorch's losses, except x = -inf with t > 0: the loss is infinite, the limit, "
    "where PyTorch's is NaN",
    differences="the loss of confident logits does not vanish: at x = -20, t = 0 it is 2.06e-9, where PyTorch's "
    "float32 loss is 0; pos_weight must be finite: an infinite one makes the loss of t > 0 NaN",
)
