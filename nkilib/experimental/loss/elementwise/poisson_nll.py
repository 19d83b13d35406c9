# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Negative log-likelihood of the Poisson distribution, ``torch.nn.functional.poisson_nll_loss(x, t)``, with targets t.

The loss is ``exp(x) - t x`` if x is the logarithm of the rate, or ``x - t log(x + eps)`` if x is the rate itself; with
``full`` it includes Stirling's ``t log t - t + log(2 pi t) / 2``, an approximation of ``log t!``, where t > 1. The
derivatives are ``exp(x) - t`` and ``-x``, or ``1 - t / (x + eps)`` and ``-log(x + eps)``; ``full`` adds
``log t + 1 / (2 t)`` to the derivative with respect to the target, where t > 1.

The file has the definition in instructions (:class:`PoissonOfLogRate` and :class:`PoissonOfRate`), the float64
reference (:class:`PoissonReference`), the kernels (``poisson_nll_loss_...``) and the registry entry
(:data:`POISSON_NLL`).

Errors of float32 arithmetic, with u = 2^-23.

Products and sums round once, u / 2 each; exponentials and logarithms have an error of u / 2.

    exp(x) - t x         |error| <= u (exp(x) + |t x| + loss) / 2                  u more in exp: + u exp(x)
    x - t log(x + eps)   |error| <= u (2 |t log(x + eps)| + |t| + loss) / 2        u more in log: + u |t log(x + eps)|

The rounding of x + eps adds u t / 2 to the error of t log(x + eps), which is the term |t|. In Stirling's approximation,
where t > 1, let S = (t + 1/2) log t and c = log(2 pi) / 2, which is a rounded number: S has a relative error of 3 u /
2, and with three more sums

    |error| <= the above + u (3 S + c + (S + c) + estimate + loss) / 2             u more in log: + u S

"u more in exp" is what an additional error of u in the exponential adds. The errors of the derivatives are derived
likewise, with the error of a reciprocal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import (
    combine,
    difference,
    multiply_in_turns,
    multiply_on_gpsimd,
    product,
    subtract_on_gpsimd,
    total,
    transform,
)
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, Float64Array, FunctionErrors, Tensors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.core.rows.checks import LEAST_ARGUMENT_OF_LOG, require_flag, require_option
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    INPUT,
    TARGET,
    Derivative,
    LossDefinition,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.host import Functions, GradientError, elementwise_loss
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class PoissonOfLogRate:
    """The definition of the loss for inputs that are logarithms of rates.

    Attributes:
        full: whether to add Stirling's approximation of log t!.
    """

    full: bool
    tensors = (INPUT, TARGET)
    scratch_tiles = 5

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that the derivatives need.

        The derivative for the target needs the target for ``full`` only.
        """
        return self.tensors if self.full or INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of exp(x) and t x; for ``full`` of exp(x) - t x and log max(t, 1)."""
        rate_sbuf, product_sbuf = piece.float32(), piece.float32()
        nisa.activation(dst=rate_sbuf, op=nl.exp, data=piece[INPUT])
        if not self.full:
            multiply_in_turns(piece.number, product_sbuf, piece[TARGET], piece[INPUT])
            return rate_sbuf, product_sbuf
        multiply_on_gpsimd(product_sbuf, piece[TARGET], piece[INPUT])
        subtract_on_gpsimd(rate_sbuf, rate_sbuf, product_sbuf)
        return rate_sbuf, _log_target(piece)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses exp(x) - t x, plus Stirling's approximation for ``full``."""
        rate_sbuf, other_sbuf = prepared
        if self.full:
            losses.scalar_tensor_tensor(rate_sbuf, nl.add, 0.0, nl.add, stirling(piece, other_sbuf))
        else:
            losses.scalar_tensor_tensor(rate_sbuf, nl.add, 0.0, nl.subtract, other_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives exp(x) - t for x and -x for t.

        For ``full`` the slope of Stirling's approximation is added to the derivative for t.
        """
        derivatives = {}
        if INPUT in wanted:
            rate_sbuf = piece.float32()
            nisa.activation(dst=rate_sbuf, op=nl.exp, data=piece[INPUT])
            difference(rate_sbuf, rate_sbuf, piece[TARGET])
            derivatives[INPUT] = Derivative(rate_sbuf, on_scalar=True)
        if TARGET in wanted and not self.full:
            derivatives[TARGET] = Derivative(piece[INPUT], -1.0)
        elif TARGET in wanted:
            slope_sbuf = stirling_slope(piece)
            difference(slope_sbuf, slope_sbuf, piece[INPUT])
            derivatives[TARGET] = Derivative(slope_sbuf)
        return derivatives


@dataclass(frozen=True)
class PoissonOfRate:
    """The definition of the loss for inputs that are rates.

    Attributes:
        full: whether to add Stirling's approximation of log t!.
        eps: the number that is added to the rate before its logarithm is computed.
    """

    full: bool
    eps: float
    tensors = (INPUT, TARGET)
    scratch_tiles = 5

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the tensors that the derivatives need.

        The derivative for the target needs the target for ``full`` only.
        """
        return self.tensors if self.full or INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """Return a tile of t log(x + eps); for ``full`` tiles of x - t log(x + eps) and log max(t, 1)."""
        log_sbuf = self._logarithm(piece)
        if not self.full:
            multiply_in_turns(piece.number, log_sbuf, log_sbuf, piece[TARGET])
            return (log_sbuf,)
        multiply_on_gpsimd(log_sbuf, log_sbuf, piece[TARGET])
        subtract_on_gpsimd(log_sbuf, piece[INPUT], log_sbuf)
        return log_sbuf, _log_target(piece)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses x - t log(x + eps), plus Stirling's approximation for ``full``."""
        first_sbuf, *others_sbuf = prepared
        if self.full:
            losses.scalar_tensor_tensor(first_sbuf, nl.add, 0.0, nl.add, stirling(piece, others_sbuf[0]))
        else:
            losses.scalar_tensor_tensor(piece[INPUT], nl.add, 0.0, nl.subtract, first_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives 1 - t / (x + eps) for x and -log(x + eps) for t.

        For ``full`` the slope of Stirling's approximation is added to the derivative for t.
        """
        derivatives = {}
        if INPUT in wanted:
            share_sbuf = piece.float32()
            nisa.activation(dst=share_sbuf, op=nl.copy, data=piece[INPUT], bias=piece.constant(self.eps))
            # Vector's reciprocal takes eight times as long as another instruction
            nisa.activation(dst=share_sbuf, op=nl.reciprocal, data=share_sbuf)
            product(share_sbuf, share_sbuf, piece[TARGET])
            transform(share_sbuf, share_sbuf, nl.subtract, 1.0)
            derivatives[INPUT] = Derivative(share_sbuf, -1.0, on_scalar=True)
        if TARGET in wanted:
            log_sbuf = self._logarithm(piece)
            if self.full:
                difference(log_sbuf, log_sbuf, stirling_slope(piece))
            derivatives[TARGET] = Derivative(log_sbuf, -1.0)
        return derivatives

    def _logarithm(self, piece: Piece) -> nl.NkiTensor:
        log_sbuf = piece.float32()
        nisa.activation(dst=log_sbuf, op=nl.log, data=piece[INPUT], bias=piece.constant(self.eps))
        return log_sbuf


def stirling(piece: Piece, log_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return Stirling's ``(t + 1/2) log t - t + log(2 pi) / 2`` where t > 1, else 0, written over ``log_sbuf``.

    Args:
        piece: the piece with the target t.
        log_sbuf: a tile of log max(t, 1).
    """
    combine(log_sbuf, piece[TARGET], nl.add, 0.5, nl.multiply, log_sbuf)
    combine(log_sbuf, log_sbuf, nl.add, 0.5 * log(2.0 * pi), nl.subtract, piece[TARGET])
    _keep_above_one(log_sbuf, piece)
    return log_sbuf


def stirling_slope(piece: Piece) -> nl.NkiTensor:
    """Return ``log t + 1 / (2 t)``, the derivative of Stirling's approximation, where t > 1, else 0."""
    inverse_sbuf, log_sbuf = piece.float32(), _log_target(piece)
    transform(inverse_sbuf, piece[TARGET], nl.maximum, 1.0, nl.multiply, 2.0)
    nisa.reciprocal(dst=inverse_sbuf, data=inverse_sbuf)
    total(log_sbuf, log_sbuf, inverse_sbuf)
    _keep_above_one(log_sbuf, piece)
    return log_sbuf


def _log_target(piece: Piece) -> nl.NkiTensor:
    log_sbuf, raised_sbuf = piece.float32(), piece.like(TARGET)
    transform(raised_sbuf, piece[TARGET], nl.maximum, 1.0)
    nisa.activation(dst=log_sbuf, op=nl.log, data=raised_sbuf)
    return log_sbuf


def _keep_above_one(values_sbuf: nl.NkiTensor, piece: Piece) -> None:
    combine(values_sbuf, piece[TARGET], nl.greater, 1.0, nl.multiply, values_sbuf)


LOG_RATE_ERROR: Final = TermError(1.0, {"exp": 1.0}, "exp(x) and t x", "with log_input")
RATE_ERROR: Final = TermError(2.0, {"log": 1.0}, "x, t log(x + eps) and t", "without log_input")
FULL_LOG_RATE_ERROR: Final = TermError(
    4.0, {"exp": 1.0, "log": 1.0}, "exp(x), t x, (t + 1/2) log t and t", "full, with log_input"
)
FULL_RATE_ERROR: Final = TermError(
    4.5, {"log": 2.0}, "x, t log(x + eps), (t + 1/2) log t and t", "full, without log_input"
)

_STATED = {
    (True, False): LOG_RATE_ERROR,
    (False, False): RATE_ERROR,
    (True, True): FULL_LOG_RATE_ERROR,
    (False, True): FULL_RATE_ERROR,
}
_HALF_LOG_TAU = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class PoissonReference:
    """The float64 reference, ``torch.nn.functional.poisson_nll_loss(input.double(), target.double())``.

    Attributes:
        log_input, full, eps: the options of the function.
    """

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8

    @property
    def stated(self) -> TermError:
        """The error that the guarantee states for these options."""
        return _STATED[self.log_input, self.full]

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses and their errors.

        The losses are exp(x) - t x with ``log_input``, else x - t log(x + eps); plus Stirling's approximation for
        ``full``.
        """
        loss = self._plain(tensors)
        return _with_estimate(loss, tensors[TARGET]) if self.full else loss

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives for the input x and the target t, with their errors.

        They are exp(x) - t and -x with ``log_input``, else 1 - t / (x + eps) and -log(x + eps). For ``full`` the slope
        of Stirling's approximation is added to the derivative for t.
        """
        x, t = tensors[INPUT], tensors[TARGET]
        if self.log_input:
            slope, by_target = np.exp(x) - t, -x
            error, of_target = functions.exp * np.exp(x) + 0.5 * np.abs(slope), np.zeros_like(x)
        else:
            share = t / (x + self._eps)
            slope, by_target = 1.0 - share, -self._log(x)
            error = (functions.reciprocal + 1.0) * np.abs(share) + 0.5 * np.abs(slope)
            of_target = functions.log * np.abs(by_target) + 0.5
        if self.full:
            above, logs = t > 1.0, np.log(np.maximum(t, 1.0))
            estimate = np.where(above, logs + 0.5 / np.maximum(t, 1.0), 0.0)
            by_target = by_target + estimate
            of_estimate = np.where(above, functions.log * logs + (functions.reciprocal + 0.5) * 0.5, 0.0)
            of_target = of_target + of_estimate + 0.5 * np.abs(estimate) + 0.5 * np.abs(by_target)
        return {INPUT: Exact(slope, UNIT * error), TARGET: Exact(by_target, UNIT * of_target)}

    def _plain(self, tensors: Tensors) -> Derived:
        """Return the losses without Stirling's approximation, and their errors."""
        x, t = tensors[INPUT], tensors[TARGET]
        if self.log_input:
            rate, product = np.exp(x), t * x
            loss = rate - product
            own = 0.5 * (rate + np.abs(product) + np.abs(loss))
            return Derived.of_units(loss, (rate, product), own, {"exp": rate})
        product = t * self._log(x)
        loss = x - product
        own = np.abs(product) + 0.5 * (np.abs(t) + np.abs(loss))
        return Derived.of_units(loss, (x, product, t), own, {"log": product})

    @property
    def _eps(self) -> float:
        return float(np.float32(self.eps))

    def _log(self, x: Float64Array) -> Float64Array:
        result: Float64Array = np.log(x + self._eps)
        return result


def _with_estimate(plain: Derived, t: Float64Array) -> Derived:
    """Return the losses ``plain`` plus Stirling's approximation for the targets t, and their errors."""
    above, logs = t > 1.0, np.log(np.maximum(t, 1.0))
    product = np.where(above, (t + 0.5) * logs, 0.0)
    with_constant = np.where(above, product + _HALF_LOG_TAU, 0.0)
    estimate = np.where(above, with_constant - t, 0.0)
    loss = plain.value + estimate
    constant = above * _HALF_LOG_TAU
    units = 0.5 * (3.0 * product + constant + with_constant + np.abs(estimate) + np.abs(loss))
    largest = np.max([plain.largest, product, above * np.abs(t), np.abs(loss)], axis=0)
    logarithm = plain.functions.get("log", 0.0) + UNIT * product
    functions = {**plain.functions, "log": logarithm}
    return Derived(loss, largest, plain.own + UNIT * units, functions, plain.beside)


def poisson_nll_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the negative log-likelihood of counts t under Poisson distributions, elementwise: ``exp(x) - t x`` for
    log rates x, or without ``log_input`` ``x - t log(x + eps)`` for rates x.

    Equivalent to ``F.poisson_nll_loss(input, target, log_input=log_input, full=full, eps=eps, reduction=reduction)`` in
    PyTorch, computed in float32. Launch with ``poisson_nll_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, the rate or its logarithm, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, counts, of the input's shape, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        log_input: whether the input is the logarithm of the rate.
        full: whether to add Stirling's approximation of ``log t!`` where t > 1.
        eps: the number that is added to a rate before the logarithm, at least 2^-64, the least argument for which NKI
            documents ``log``.
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "poisson_nll_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    return run_forward(
        function, _definition(function, log_input, full, eps), tensors_hbm, reduction, dtype, columns, buffers
    )


def poisson_nll_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the Poisson negative log-likelihood, each times the upstream gradient.

    They are ``exp(x) - t`` with respect to the input x and ``-x`` with respect to the target t, or without
    ``log_input`` ``1 - t / (x + eps)`` and ``-log(x + eps)``. ``full`` adds ``log t + 1 / (2 t)`` to the gradient of
    the target where t > 1.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch it like the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, reduction, log_input, full, eps: the arguments of the forward.
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
    function = "poisson_nll_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    definition = _definition(function, log_input, full, eps)
    return run_backward(function, definition, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _definition(function: str, log_input: bool, full: bool, eps: float) -> LossDefinition:
    for name, flag in (("log_input", log_input), ("full", full)):
        require_flag(function, name, flag)
    require_option(function, "eps", eps, least=LEAST_ARGUMENT_OF_LOG)
    return PoissonOfLogRate(full) if log_input else PoissonOfRate(full, eps)


_EPS: Final = 1e-4


def _form(log_input: bool, full: bool) -> Form:
    samples = {INPUT: Sample.NUMBERS if log_input else Sample.POSITIVE, TARGET: Sample.POSITIVE}
    label = f"{'' if log_input else ', log_input=False'}{', full' if full else ''}"
    options = {"log_input": log_input, "full": full, "eps": _EPS}
    return Form(PoissonReference(log_input, full, _EPS), samples, options, label)


POISSON_NLL: Final = elementwise_loss(
    "poisson_nll_loss",
    "PoissonNLLLoss",
    poisson_nll_loss_forward,
    poisson_nll_loss_backward,
    formula="exp(x) - t x; x - t log(x + eps) without log_input",
    derivative="exp(x) - t; 1 - t / (x + eps)",
    errors=(LOG_RATE_ERROR, RATE_ERROR, FULL_LOG_RATE_ERROR, FULL_RATE_ERROR),
    gradient_error=GradientError(
        "2 u times the larger of exp(x) and t; without log_input, and for the target, 3 u times the sum of 1 "
        "and the terms' magnitudes",
        {"exp": 1.0, "reciprocal": 1.0, "log": 1.0},
    ),
    functions=Functions(forward=1, backward=1),
    time_limits=((1.05, 1.05), (1.05, 1.05)),
    forms=(_form(True, False), _form(True, True), _form(False, False), _form(False, True)),
    edges="full adds Stirling's approximation of log t! only where t > 1",
    differences="eps must be at least 2^-64; with full, the gradient of a target of at most 1 is not NaN",
    family=Family.REGRESSION,
)
