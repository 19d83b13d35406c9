# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Binary cross-entropy of logits, ``torch.nn.functional.binary_cross_entropy_with_logits(x, t)``.

``softplus(-|x|) + x ([x > 0] - t)``, which is PyTorch's ``(1 - t) x + softplus(-x)``: of the two exponentials the
small one is taken, so that a confident logit keeps its small loss. At t = 0 and t = 1 nothing cancels at all.
Derivatives ``sigmoid(x) - t`` and ``-x``.

With a weight p of positive examples ``w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0)`` for ``w = p t + (1 - t)``;
derivatives ``(1 - t) - w sigmoid(-x)`` and ``(p - 1) softplus(-x) - x``.

Errors of float32 arithmetic.

Binary cross-entropy of logits, with s = softplus(-|x|), to u / 2.

Without a weight: r = [x > 0] - t rounds once where x > 0, so do its product with x, and the sum:

    |error| <= u (s / 2 + |x r| / 2 + [x > 0] |x r| / 2 + loss / 2)        u more of softplus: u s

With a weight p: p t, 1 - t and their sum w round once, the three products likewise, and two sums, of which one adds 0:

    |error| <= u (3 w s / 2 + (|p t| + |1 - t|) s / 2 + |p t min(x, 0)| + |(1 - t) max(x, 0)| + loss / 2)

and u w s for u more of softplus. Of the derivatives: the errors of sigmoid or softplus, and the roundings of products
and sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.hbm import HbmTensor
from nkilib.core.host.exact import Derived, Exact, Float64Array, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.loss import Form
from nkilib.core.host.rounding import UNIT
from nkilib.core.host.samples import Sample
from nkilib.core.rows.arithmetic import (
    add_on_gpsimd,
    combine,
    difference,
    multiply_on_gpsimd,
    product,
    subtract_on_gpsimd,
    transform,
)
from nkilib.experimental.loss.skeletons.elementwise.host.row import Functions, GradientError, elementwise_loss
from nkilib.experimental.loss.skeletons.elementwise.host.truth import WeightedTruth
from nkilib.experimental.loss.skeletons.elementwise.kind import (
    INPUT,
    POSITIVE_WEIGHT,
    TARGET,
    WEIGHT,
    Activation,
    Combination,
    Derivative,
    Kind,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward
from nkilib.experimental.loss.skeletons.elementwise.weighted import Weighted
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class BceWithLogits:
    """The loss without a weight of positive examples."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 4

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The target is needed for the gradient of the input alone."""
        return self.tensors if INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """|x| in the type of x, and [x > 0] - t. A flag is a bfloat16, which Vector writes fast."""
        size_sbuf, flag_sbuf, rest_sbuf = piece.like(INPUT), piece.bfloat16(), piece.float32()
        transform(flag_sbuf, piece[INPUT], nl.greater, 0.0)
        transform(size_sbuf, piece[INPUT], nl.abs, None)
        subtract_on_gpsimd(rest_sbuf, flag_sbuf, piece[TARGET])
        return size_sbuf, rest_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """softplus(-|x|), and x ([x > 0] - t)."""
        size_sbuf, rest_sbuf = prepared
        losses.activation_and_combination(
            Activation(nl.softplus, size_sbuf, -1.0, piece.float32()),
            Combination(piece[INPUT], nl.multiply, 1.0, nl.multiply, rest_sbuf),
        )

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """sigmoid(x) - t, -x."""
        found = {TARGET: Derivative(piece[INPUT], -1.0)}
        if INPUT in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.sigmoid, data=piece[INPUT])
            difference(slope_sbuf, slope_sbuf, piece[TARGET])
            found[INPUT] = Derivative(slope_sbuf, on_scalar=True)
        return found


@dataclass(frozen=True)
class BceWithPositiveWeight:
    """The loss with a weight of positive examples for each element."""

    tensors = (INPUT, TARGET, POSITIVE_WEIGHT)
    scratch_tiles = 5

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The target is needed for the gradient of the input alone."""
        return self.tensors if INPUT in wanted else (INPUT, POSITIVE_WEIGHT)

    def prepare(self, piece: Piece) -> Prepared:
        """softplus(-|x|), p t, 1 - t and their sum w."""
        size_sbuf, soft_sbuf = piece.like(INPUT), piece.float32()
        transform(size_sbuf, piece[INPUT], nl.abs, None)
        nisa.activation(dst=soft_sbuf, op=nl.softplus, data=size_sbuf, scale=-1.0)
        shares = _Shares.of(piece)
        return soft_sbuf, shares.positive_sbuf, shares.negative_sbuf, shares.weight_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """(w softplus(-|x|) - p t min(x, 0)) + (1 - t) max(x, 0): of the last two terms one is 0."""
        soft_sbuf, positive_sbuf, negative_sbuf, weight_sbuf = prepared
        combine(positive_sbuf, piece[INPUT], nl.minimum, 0.0, nl.multiply, positive_sbuf)
        combine(negative_sbuf, piece[INPUT], nl.maximum, 0.0, nl.multiply, negative_sbuf)
        product(soft_sbuf, soft_sbuf, weight_sbuf)
        difference(soft_sbuf, soft_sbuf, positive_sbuf)
        losses.scalar_tensor_tensor(soft_sbuf, nl.add, 0.0, nl.add, negative_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """(1 - t) - w sigmoid(-x), (p - 1) softplus(-x) - x."""
        found = {}
        if INPUT in wanted:
            sigmoid_sbuf = piece.float32()
            shares = _Shares.of(piece)
            nisa.activation(dst=sigmoid_sbuf, op=nl.sigmoid, data=piece[INPUT], scale=-1.0)
            product(shares.weight_sbuf, shares.weight_sbuf, sigmoid_sbuf)
            difference(shares.negative_sbuf, shares.negative_sbuf, shares.weight_sbuf)
            found[INPUT] = Derivative(shares.negative_sbuf, on_scalar=True)
        if TARGET in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.softplus, data=piece[INPUT], scale=-1.0)
            combine(slope_sbuf, piece[POSITIVE_WEIGHT], nl.subtract, 1.0, nl.multiply, slope_sbuf)
            difference(slope_sbuf, slope_sbuf, piece[INPUT])
            found[TARGET] = Derivative(slope_sbuf)
        return found


@dataclass(frozen=True)
class _Shares:
    """p t, 1 - t and their sum w.

    Attributes:
        positive_sbuf, negative_sbuf, weight_sbuf: these.
    """

    positive_sbuf: nl.NkiTensor
    negative_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor

    @classmethod
    def of(cls, piece: Piece) -> _Shares:
        """On GpSimd and Scalar: Vector has enough to do."""
        found = cls(piece.float32(), piece.float32(), piece.float32())
        multiply_on_gpsimd(found.positive_sbuf, piece[POSITIVE_WEIGHT], piece[TARGET])
        one_sbuf = piece.constant(1.0)
        nisa.activation(dst=found.negative_sbuf, op=nl.copy, data=piece[TARGET], scale=-1.0, bias=one_sbuf)
        add_on_gpsimd(found.weight_sbuf, found.positive_sbuf, found.negative_sbuf)
        return found


ERROR: Final = TermError(1.5, {"softplus": 1.0})
ERROR_WITH_POSITIVE_WEIGHT: Final = TermError(2.5, {"softplus": 1.0}, form="with pos_weight")


@dataclass(frozen=True)
class BceWithLogitsTruth:
    """``torch.nn.functional.binary_cross_entropy_with_logits(input.double(), target.double())``."""

    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """softplus(-|x|) + x ([x > 0] - t)."""
        x, t = tensors[INPUT], tensors[TARGET]
        soft, rest = _softplus(-np.abs(x)), x * ((x > 0.0) - t)
        loss, size = soft + rest, np.abs(rest)
        own = 0.5 * (soft + size + (x > 0.0) * size + np.abs(loss))
        return Derived.of_units(loss, (soft, rest), own, {"softplus": soft})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """sigmoid(x) - t and -x."""
        x, t = tensors[INPUT], tensors[TARGET]
        slope = _sigmoid(x) - t
        error = UNIT * (functions.sigmoid * _sigmoid(x) + 0.5 * np.abs(slope))
        return {INPUT: Exact(slope, error), TARGET: Exact(-x, np.zeros_like(x))}


@dataclass(frozen=True)
class BceWithPositiveWeightTruth:
    """The same with ``pos_weight``."""

    stated: ClassVar[TermError] = ERROR_WITH_POSITIVE_WEIGHT

    def value(self, tensors: Tensors) -> Derived:
        """w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0)."""
        x, t, p = tensors[INPUT], tensors[TARGET], tensors[POSITIVE_WEIGHT]
        soft, positive, negative = _softplus(-np.abs(x)), p * t, 1.0 - t
        weighted = (positive + negative) * soft
        below, above = positive * np.minimum(x, 0.0), negative * np.maximum(x, 0.0)
        loss = weighted - below + above
        shares = 0.5 * (np.abs(positive) + np.abs(negative)) * soft
        own = 1.5 * np.abs(weighted) + shares + np.abs(below) + np.abs(above) + 0.5 * np.abs(loss)
        return Derived.of_units(loss, (weighted, below, above), own, {"softplus": weighted})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """(1 - t) - w sigmoid(-x) and (p - 1) softplus(-x) - x."""
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
    found: Float64Array = np.logaddexp(0.0, x)
    return found


def _sigmoid(x: Float64Array) -> Float64Array:
    found: Float64Array = np.exp(-np.logaddexp(0.0, -x))
    return found


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
    """Binary cross-entropy of logits, element by element: ``(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))``, p being the
    weight of positive examples, 1 if there is none; times a weight if there is one.

    Equivalent to ``F.binary_cross_entropy_with_logits(input, target, weight, pos_weight=pos_weight,
    reduction=reduction)`` in PyTorch, computed in float32; confident logits keep their small loss. Launch with
    ``binary_cross_entropy_with_logits_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, logits, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the input's shape, in any of these types.
        weight_hbm: of each element, likewise; or of an input [R, C] one of rows, [R, 1], or of columns, [1, C], without
            a copy; None: 1.
        pos_weight_hbm: p, of each element, of rows or of columns, likewise; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "binary_cross_entropy_with_logits_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm, POSITIVE_WEIGHT: pos_weight_hbm}
    return run_forward(
        function, _kind(function, weight_hbm, pos_weight_hbm), tensors_hbm, reduction, dtype, columns, buffers
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
    """Gradients of binary cross-entropy of logits: ``sigmoid(x) - t`` by the input and ``-x`` by the target, or with a
    weight p ``(1 - t) - (1 + (p - 1) t) sigmoid(-x)`` and ``(p - 1) log(1 + exp(-x)) - x``; times the weight and the
    upstream gradient.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch as the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, pos_weight_hbm, reduction: what the forward
            was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted: which gradients are
            computed, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: those that are wanted, of shape and type of their tensor; with
        ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "binary_cross_entropy_with_logits_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm, POSITIVE_WEIGHT: pos_weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    kind = _kind(function, weight_hbm, pos_weight_hbm)
    return run_backward(function, kind, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _kind(function: str, weight_hbm: nl.NkiTensor | None, pos_weight_hbm: nl.NkiTensor | None) -> Kind:
    kind: Kind = BceWithLogits() if pos_weight_hbm is None else BceWithPositiveWeight()
    return kind if weight_hbm is None else Weighted(kind)


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
        "2 u of the larger one of sigmoid(x) and t; with pos_weight 3.5 u of the terms",
        {"sigmoid": 1.0, "softplus": 1.0},
    ),
    functions=Functions(forward=1, backward=1),
    held=((1.32, 1.35), (1.05, 1.05)),
    forms=(
        Form(BceWithLogitsTruth(), _SAMPLES),
        Form(BceWithPositiveWeightTruth(), _BALANCED, label=", pos_weight"),
        Form(
            WeightedTruth(BceWithPositiveWeightTruth()),
            {**_SAMPLES, WEIGHT: Sample.POSITIVE, POSITIVE_WEIGHT: Sample.POSITIVE},
            label=", both weights",
        ),
    ),
    edges="infinite logits as PyTorch, but for x = -inf, t = 1, where the loss is infinite and not NaN",
    differences="confident logits keep their loss: at x = -20, t = 0 it is 2.06e-9, where PyTorch's float32 has 0",
)
