# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Binary cross-entropy of probabilities x and targets t, ``torch.nn.functional.binary_cross_entropy(x, t)``.

The loss is ``-(t A + (1 - t) B)``, with A = max(log x, -100) and B = max(log(1 - x), -100). The
derivatives are ``(x - t) / max(x (1 - x), 1e-12)``, like PyTorch's, and ``B - A``.

NKI documents ``log`` on [2^-64, 2^64] only. A number below 2^-32 is multiplied by 2^81 first, and A is the logarithm of
x + exp(-100): this is -100 at 0, and within float32 the logarithm of x for every normal number. The rounding error of y
= 1 - x is computed as (y - 1) + x and subtracted from log y, so that small probabilities keep their loss at t = 0.

The file has the definition in instructions (:class:`Bce`), the float64 reference (:class:`BceReference`), the kernels
(``binary_cross_entropy_...``) and the registry entry (:data:`BCE`).

Errors of float32 arithmetic, with u = 2^-23.

The targets are in [0, 1].

A. A logarithm has an error of u / 2 of itself. A number below 2^-32 is multiplied by 2^81, and log(2^81) = 56.1 is
subtracted from the logarithm: the sum of the number and exp(-100) rounds once, which moves the logarithm by u / 2; the
logarithm adds u / 2 of A + 56.1; the constant 56.1 is off by 10.8 u; the difference rounds. Using x + exp(-100) in
place of x adds exp(-100) / x, which matters near 2^-126 only.

B. y = 1 - x has an error of at most r = min(x, u / 4), and none from x = 1/2 on. Its logarithm adds u / 2 of at most
|B| + r; after the correction, r x / (1 - x) of the error of y remains; the difference rounds. x = 1 gives log(exp(-36))
- 64.

    |error| <= t |error of A| + (1 - t) |error of B| + u (t |A| + (1 - t) |B| + [t < 1/2] |B| / 2 + loss) / 2

An additional error of u in log adds u (t |A or A + 56.1| + (1 - t) (|B| + r)).

In the derivative, 1 - x, the product with x, x - t, the square of the inverse root and the product with it round once,
u / 2 each, and the error of the inverse root counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar, Final, NamedTuple

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import combine, difference, subtract_on_gpsimd, transform
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, Float64Array, FunctionErrors, Tensors
from nkilib.core.host.loss import Form, Sample
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    INPUT,
    TARGET,
    WEIGHT,
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

# The least logarithm, and the least denominator of the derivative.
LEAST_LOG, LEAST_PRODUCT = -100.0, 1e-12
# Numbers below SMALL are multiplied by RAISED; _FLOOR is exp(LEAST_LOG), raised.
SMALL, RAISED = 2.0**-32, 2.0**81
_LOG_RAISED = log(RAISED)
_FLOOR = exp(LEAST_LOG + _LOG_RAISED)
# 1 - x is 0 or at least 2^-24, and 1 - x + exp(LEAST_LOG + LOWERED) equals it in float32, except at 0. LOWERED is a
# bfloat16.
LOWERED = 64.0
_FLOOR_OF_COMPLEMENT = exp(LEAST_LOG + LOWERED)


@dataclass(frozen=True)
class Bce:
    """The definition of the binary cross-entropy of probabilities; the head of the module defines x, t, A and B."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 6

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that the derivatives need.

        The derivative for the target needs the input only.
        """
        return self.tensors if INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of A and B, and two scratch tiles that may be reused.

        The instructions that GpSimd waits for are issued first.
        """
        columns = piece.shape[1]
        flags_sbuf = piece.float32().view(nl.bfloat16)
        complement_log_sbuf, spare_sbuf = _log_of_complement(piece, flags_sbuf[:, 0:columns])
        log_sbuf, other_spare_sbuf = _log(piece, flags_sbuf[:, columns : 2 * columns])
        return log_sbuf, complement_log_sbuf, spare_sbuf, other_spare_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses -(t A + (1 - t) B)."""
        log_sbuf, complement_log_sbuf, _, _ = prepared
        losses.two_combinations(
            Combination(piece[TARGET], nl.subtract, 1.0, nl.multiply, complement_log_sbuf),
            Combination(piece[TARGET], nl.multiply, -1.0, nl.multiply, log_sbuf),
        )

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives (x - t) / max(x (1 - x), 1e-12) for the input and B - A for the target."""
        derivatives = {}
        if TARGET in wanted:
            log_sbuf, complement_log_sbuf, inverse_sbuf, slope_sbuf = self.prepare(piece)
            difference(complement_log_sbuf, complement_log_sbuf, log_sbuf)
            derivatives[TARGET] = Derivative(complement_log_sbuf, on_scalar=True)
        else:
            inverse_sbuf, slope_sbuf = piece.float32(), piece.float32()
        if INPUT in wanted:
            subtract_on_gpsimd(slope_sbuf, piece[INPUT], piece[TARGET])
            # (x - 1) x
            combine(inverse_sbuf, piece[INPUT], nl.subtract, 1.0, nl.multiply, piece[INPUT])
            transform(inverse_sbuf, inverse_sbuf, nl.multiply, -1.0, nl.maximum, LEAST_PRODUCT)
            nisa.activation(dst=inverse_sbuf, op=nl.rsqrt, data=inverse_sbuf)
            nisa.activation(dst=inverse_sbuf, op=nl.square, data=inverse_sbuf)
            derivatives[INPUT] = Derivative(slope_sbuf, on_scalar=True, times_sbuf=inverse_sbuf)
        return derivatives


def _log(piece: Piece, raised_sbuf: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return a tile of A, and a scratch tile that the caller may reuse; ``raised_sbuf`` is scratch, too.

    A small x is multiplied by 2^81 before the logarithm; log(2^81) is subtracted afterwards.
    """
    log_sbuf, added_sbuf = piece.float32(), piece.float32()
    # 2^81 is a bfloat16, which Vector writes fast
    transform(raised_sbuf, piece[INPUT], nl.less, SMALL, nl.multiply, RAISED)
    # 1 + 2^81 is 2^81 in float32
    combine(log_sbuf, raised_sbuf, nl.add, 1.0, nl.multiply, piece[INPUT])
    nisa.activation(dst=added_sbuf, op=nl.copy, data=raised_sbuf, scale=_LOG_RAISED / RAISED)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf, bias=piece.constant(_FLOOR))
    subtract_on_gpsimd(log_sbuf, log_sbuf, added_sbuf)
    return log_sbuf, added_sbuf


def _log_of_complement(piece: Piece, lowered_sbuf: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return a tile of B, and a scratch tile that the caller may reuse; ``lowered_sbuf`` is scratch, too.

    A constant is added to 1 - x, so that the logarithm is finite at x = 1. There a subtraction makes the result -100.
    """
    log_sbuf, rounded_sbuf = piece.float32(), piece.float32()
    complement_sbuf = piece.float32()
    transform(lowered_sbuf, piece[INPUT], nl.greater_equal, 1.0, nl.multiply, LOWERED)
    nisa.activation(dst=complement_sbuf, op=nl.copy, data=piece[INPUT], scale=-1.0, bias=piece.constant(1.0))
    combine(rounded_sbuf, complement_sbuf, nl.subtract, 1.0, nl.add, piece[INPUT])
    nisa.activation(dst=log_sbuf, op=nl.log, data=complement_sbuf, bias=piece.constant(_FLOOR_OF_COMPLEMENT))
    subtract_on_gpsimd(log_sbuf, log_sbuf, rounded_sbuf)
    subtract_on_gpsimd(log_sbuf, log_sbuf, lowered_sbuf)
    return log_sbuf, rounded_sbuf


ERROR: Final = TermError(3.0, {"log": 2.0})

# The distance from log(RAISED) to its nearest float32, in u of 1.
_RAISED_LOG_UNITS = 10.8


class _Logarithm(NamedTuple):
    """The logarithm A or B, and the error of the kernel's float32 result.

    Attributes:
        value: the logarithm.
        units: the error in multiples of u = 2^-23, if the logarithm function has an error of u / 2 of its result.
        computed: the magnitude of what the logarithm function returns; for a small x, the logarithm of a scaled number.
    """

    value: Float64Array
    units: Float64Array
    computed: Float64Array

    def error(self, functions: FunctionErrors) -> Float64Array:
        """Return the absolute error of the logarithm, given the errors of the activation functions."""
        return UNIT * (self.units + functions.further("log") * self.computed)


@dataclass(frozen=True)
class BceReference:
    """The float64 reference, ``torch.nn.functional.binary_cross_entropy(input.double(), target.double())``."""

    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses -(t A + (1 - t) B) and their errors."""
        x, t = tensors[INPUT], tensors[TARGET]
        of_input, of_rest = _exact_log(x), _exact_log_of_complement(x)
        first, second = -t * of_input.value, (t - 1.0) * of_rest.value
        loss = first + second
        own = np.abs(t) * of_input.units + np.abs(1.0 - t) * of_rest.units
        own += 0.5 * (np.abs(first) + np.abs(second) + np.abs(loss)) + 0.25 * (t < 0.5) * np.abs(of_rest.value)
        computed = np.abs(t) * of_input.computed + np.abs(1.0 - t) * of_rest.computed
        return Derived.of_units(loss, (first, second), own, {"log": computed})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives (x - t) / max(x (1 - x), 1e-12) for the input and B - A for the target, with their
        errors.
        """
        x, t = tensors[INPUT], tensors[TARGET]
        slope = (x - t) / np.maximum(x * (1.0 - x), LEAST_PRODUCT)
        of_slope = (2.5 + 2.0 * functions.rsqrt) * UNIT * np.abs(slope)
        of_input, of_rest = _exact_log(x), _exact_log_of_complement(x)
        by_target = of_rest.value - of_input.value
        error = of_input.error(functions) + of_rest.error(functions) + 0.5 * UNIT * np.abs(by_target)
        return {INPUT: Exact(slope, of_slope), TARGET: Exact(by_target, error)}


def _exact_log(x: Float64Array) -> _Logarithm:
    """Return A and its error in float32."""
    with np.errstate(all="ignore"):
        value = np.maximum(np.log(x), LEAST_LOG)
        floor = np.where(x > 0.0, np.exp(LEAST_LOG) / x, 0.0)
    raised = np.abs(value + np.log(RAISED))
    units = 0.5 * raised + 0.5 + _RAISED_LOG_UNITS + 0.5 * np.abs(value)
    is_small = x < SMALL
    return _Logarithm(
        value,
        np.where(is_small, units, 0.5 * np.abs(value)) + floor / UNIT,
        np.where(is_small, raised, np.abs(value)),
    )


def _exact_log_of_complement(x: Float64Array) -> _Logarithm:
    """Return B and its error in float32."""
    with np.errstate(all="ignore"):
        value = np.maximum(np.log1p(-x), LEAST_LOG)
        rounded = np.where(x < 0.5, np.minimum(np.abs(x), 0.25 * UNIT), 0.0)
        remaining = np.where(x < 0.5, rounded / UNIT * np.abs(x) / (1.0 - x) + 0.5 * np.abs(value), 0.0)
    is_one, lowered = x >= 1.0, abs(LEAST_LOG + LOWERED)
    computed = np.where(is_one, lowered, np.abs(value) + rounded)
    units = 0.5 * computed + np.where(is_one, 0.5 + 0.5 * np.abs(value), remaining)
    return _Logarithm(value, units, computed)


def binary_cross_entropy_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the binary cross-entropy of probabilities x and targets t, elementwise: ``-(t log x + (1 - t) log(1 -
    x))``, with logarithms of at least -100, times a weight if there is one.

    Equivalent to ``F.binary_cross_entropy(input, target, weight, reduction=reduction)`` in PyTorch, computed in
    float32. Launch with ``binary_cross_entropy_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, in [0, 1], bfloat16, float16 or float32, of any dense shape, in HBM. A subnormal probability
            counts as 0.
        target_hbm: t, in [0, 1], of the input's shape, in any of these types.
        weight_hbm: the weight of each element, of the input's shape; or for an input [R, C] one weight per row, [R, 1],
            or per column, [1, C], which is not expanded in memory; in any of these types; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "binary_cross_entropy_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    return run_forward(function, _definition(function, weight_hbm), tensors_hbm, reduction, dtype, columns, buffers)


def binary_cross_entropy_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the binary cross-entropy of probabilities x and targets t: ``(x - t) / max(x (1 - x),
    1e-12)`` with respect to the input and ``log(1 - x) - log x`` with respect to the target, times the weight and the
    upstream gradient.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch it like the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction: the arguments of the forward.
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
    function = "binary_cross_entropy_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    definition = _definition(function, weight_hbm)
    return run_backward(function, definition, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _definition(function: str, weight_hbm: nl.NkiTensor | None) -> LossDefinition:
    return Bce() if weight_hbm is None else Weighted(Bce())


_PROBABILITIES: Final = {INPUT: Sample.PROBABILITIES, TARGET: Sample.PROBABILITIES}
BCE: Final = elementwise_loss(
    "binary_cross_entropy",
    "BCELoss",
    binary_cross_entropy_forward,
    binary_cross_entropy_backward,
    formula="-(t log x + (1 - t) log(1 - x))",
    derivative="(x - t) / max(x (1 - x), 1e-12)",
    errors=(ERROR,),
    gradient_error=GradientError(
        "input: 4.5 u times the gradient; target: 3.5 u (|log x| + |log(1 - x)|)",
        {"rsqrt": 2.0, "log": 2.0},
        "the gradient of the target is finite at x = 0 and x = 1, where the logarithms are -100",
    ),
    functions=Functions(forward=2, backward=1),
    time_limits=((3.8, 2.65), (1.65, 1.05)),
    forms=(
        Form(BceReference(), _PROBABILITIES),
        Form(WeightedReference(BceReference()), {**_PROBABILITIES, WEIGHT: Sample.POSITIVE}, label=", weighted"),
    ),
    edges="both logarithms are clamped to at least -100, as in PyTorch",
    differences="a subnormal probability may count as 0 or almost 0; "
    "the gradient of the target is finite at x = 0 and x = 1",
    notes="the bound does not cover subnormal probabilities, which may count as 0",
)
