# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kullback-Leibler divergence, elementwise: the input x is a log-probability, the target t a probability or its
logarithm.

The loss is ``t * (log t - x)``, or ``exp(t) * (t - x)`` for ``log_target``: ``torch.nn.functional.kl_div(x, t)``.
PyTorch computes a difference of products; here the common factor is taken out, which cancels less.

The loss uses log(t + 2^-64). From t = 2^-40 on, the sum t + 2^-64 is t in float32; at 0 the logarithm is finite; and
``t * log t`` changes by at most 2^-64. NKI documents ``log`` on [2^-64, 2^64] only.

The file has the definition in instructions (:class:`KlDiv`, and :class:`KlDivOfLogTarget` for ``log_target``), the
float64 reference (:class:`KlDivReference`), the kernels (``kl_div_...``) and the registry entry (:data:`KL_DIV`).

Errors of float32 arithmetic, with u = 2^-23.

Let l = log t, whose relative error is u / 2. The difference and the product round once each.

    t (l - x)       |error| <= u t (|l| / 2 + |l - x|) + 2^-63    adding 2^-64 to t moves t l by at most 2^-64
    e^t (t - x)     |error| <= 3 u / 2 of the loss                the exponential, the difference and the product

An additional error of u in log adds u |t l|; an additional error of u in exp adds u of the loss. In log t
+ 1 - x, the addition and the subtraction round once, u / 2 each. To compute log t for a target below 2^-32, log(2^64)
is subtracted from log(2^64 t); the magnitude of both is at most 2 |l|.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final, NamedTuple

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import add_on_gpsimd, combine, subtract_in_turns, subtract_on_gpsimd, transform
from nkilib.core.hardware import LIMIT_OF_LOG, HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, Float64Array, FunctionErrors, Tensors
from nkilib.core.host.loss import Form, Sample
from nkilib.core.rows.checks import require_flag
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    INPUT,
    TARGET,
    Derivative,
    LossDefinition,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.host import (
    Functions,
    GradientError,
    elementwise_loss,
    launch_of,
)
from nkilib.experimental.loss.skeletons.elementwise.run import BATCHMEAN, run_backward, run_forward
from nkilib.nki import nisa, nl

# Added to a target before its logarithm is taken.
LEAST_TARGET = 1.0 / LIMIT_OF_LOG
# A target below _SMALL is multiplied by 2^64 before its logarithm is computed exactly.
_SMALL, _RAISED = 2.0**-32, LIMIT_OF_LOG


def needed_tensors(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the needed tensors; the derivative for the input needs the target only."""
    return (INPUT, TARGET) if TARGET in wanted else (TARGET,)


@dataclass(frozen=True)
class KlDiv:
    """The definition of the divergence for targets that are probabilities."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 4

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return needed_tensors(wanted)

    def prepare(self, piece: Piece) -> Prepared:
        """Return a tile of log(t + 2^-64) - x."""
        log_sbuf = piece.float32()
        nisa.activation(dst=log_sbuf, op=nl.log, data=piece[TARGET], bias=piece.constant(LEAST_TARGET))
        subtract_in_turns(piece.number, log_sbuf, log_sbuf, piece[INPUT])
        return (log_sbuf,)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses t * (log t - x); NaN where t is 0 and x infinite, as in PyTorch."""
        (log_sbuf,) = prepared
        losses.product(log_sbuf, piece[TARGET])

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives -t for the input, and log t + 1 - x for the target; the derivative for the target is
        NaN at t = 0, as in PyTorch.
        """
        derivatives = {INPUT: Derivative(piece[TARGET], -1.0)}
        if TARGET in wanted:
            log_sbuf = _logarithm(piece)
            combine(log_sbuf, log_sbuf, nl.add, 1.0, nl.subtract, piece[INPUT])
            derivatives[TARGET] = Derivative(log_sbuf, on_scalar=True)
        return derivatives


def _logarithm(piece: Piece) -> nl.NkiTensor:
    """Return log t, or NaN where t is 0.

    Small targets are scaled into the range for which ``log`` is documented.
    """
    target_sbuf = piece[TARGET]
    raised_sbuf, log_sbuf, none_sbuf = piece.bfloat16(), piece.float32(), piece.float32()
    # 2^64 is a bfloat16, which Vector writes fast
    transform(raised_sbuf, target_sbuf, nl.less, _SMALL, nl.multiply, _RAISED)
    # 1 + 2^64 is 2^64 in float32
    combine(log_sbuf, raised_sbuf, nl.add, 1.0, nl.multiply, target_sbuf)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf)
    nisa.activation(dst=none_sbuf, op=nl.copy, data=log_sbuf, scale=0.0)
    combine(log_sbuf, raised_sbuf, nl.multiply, -log(_RAISED) / _RAISED, nl.add, log_sbuf)
    add_on_gpsimd(log_sbuf, log_sbuf, none_sbuf)
    return log_sbuf


@dataclass(frozen=True)
class KlDivOfLogTarget:
    """The definition of the divergence for targets that are log-probabilities."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return needed_tensors(wanted)

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of exp(t), computed on Scalar, and of t - x, computed mostly on GpSimd."""
        exponential_sbuf, difference_sbuf = piece.float32(), piece.float32()
        nisa.activation(dst=exponential_sbuf, op=nl.exp, data=piece[TARGET])
        subtract_in_turns(piece.number, difference_sbuf, piece[TARGET], piece[INPUT])
        return exponential_sbuf, difference_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses exp(t) * (t - x); NaN where t is -inf, as in PyTorch.

        Vector adds up the losses, because Scalar computes the exponentials.
        """
        exponential_sbuf, difference_sbuf = prepared
        losses.scalar_tensor_tensor(difference_sbuf, nl.multiply, 1.0, nl.multiply, exponential_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives -exp(t) for the input, and exp(t) * (t - x + 1) for the target."""
        exponential_sbuf = piece.float32()
        nisa.activation(dst=exponential_sbuf, op=nl.exp, data=piece[TARGET])
        derivatives = {INPUT: Derivative(exponential_sbuf, -1.0)}
        if TARGET in wanted:
            sum_sbuf = piece.float32()
            subtract_on_gpsimd(sum_sbuf, piece[TARGET], piece[INPUT])
            combine(sum_sbuf, sum_sbuf, nl.add, 1.0, nl.multiply, exponential_sbuf)
            derivatives[TARGET] = Derivative(sum_sbuf, on_scalar=True)
        return derivatives


class KlDivGradients(NamedTuple):
    """The gradients with respect to the input and the target, before the multiplication by the upstream gradient."""

    input: Float64Array
    target: Float64Array


def kl_div_reference(input: np.ndarray, target: np.ndarray, log_target: bool) -> Float64Array:
    """Return the divergence of each element in float64.

    PyTorch equivalent: ``F.kl_div(input.double(), target.double(), reduction="none", log_target=log_target)``.
    """
    x, t = input.astype(np.float64), target.astype(np.float64)
    with np.errstate(all="ignore"):
        if log_target:
            return np.exp(t) * (t - x)
        return np.where(t == 0.0, 0.0, t * np.log(t)) - t * x


def kl_div_gradients_reference(input: np.ndarray, target: np.ndarray, log_target: bool) -> KlDivGradients:
    """Return the derivatives of the divergence of each element.

    Without ``log_target``, the derivative for a target of 0 is NaN, as in PyTorch.
    """
    x, t = input.astype(np.float64), target.astype(np.float64)
    with np.errstate(all="ignore"):
        if log_target:
            return KlDivGradients(-np.exp(t), np.exp(t) * (t - x + 1.0))
        return KlDivGradients(-t, np.where(t == 0.0, np.nan, np.log(t) + 1.0 - x))


ERROR: Final = TermError(1.5, {"log": 1.0}, "t log t and t x", "without log_target", "2^-63")
ERROR_OF_LOG_TARGET: Final = TermError(1.5, {"exp": 1.0}, form="with log_target")


@dataclass(frozen=True)
class KlDivReference:
    """The float64 reference, ``torch.nn.functional.kl_div(input.double(), target.double(), log_target=log_target)``.

    Attributes:
        log_target: whether the target is a log-probability.
    """

    log_target: bool = False

    @property
    def stated(self) -> TermError:
        """The error that the guarantee states for this option."""
        return ERROR_OF_LOG_TARGET if self.log_target else ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses t (log t - x), or exp(t) (t - x) for ``log_target``, and their errors."""
        x, t = tensors[INPUT], tensors[TARGET]
        loss = kl_div_reference(x, t, self.log_target)
        if self.log_target:
            return Derived.of_units(loss, (), 1.5 * np.abs(loss), {"exp": loss})
        log, size = np.log(t + LEAST_TARGET), np.abs(t)
        own = size * (0.5 * np.abs(log) + np.abs(log - x))
        return Derived.of_units(loss, (t * log, t * x), own, {"log": t * log}, beside=2.0 * LEAST_TARGET / UNIT)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives for the input and the target, with their errors.

        They are -t and log t + 1 - x; for ``log_target``, -exp(t) and exp(t) (t - x + 1).
        """
        x, t = tensors[INPUT], tensors[TARGET]
        exact = kl_div_gradients_reference(x, t, self.log_target)
        if self.log_target:
            of_input = functions.exp * np.abs(exact.input)
            of_target = (functions.exp + 1.5) * np.exp(t) * (np.abs(t - x) + 1.0)
        else:
            log = np.abs(np.log(t))
            of_input = np.zeros_like(exact.input)
            of_target = (2.0 * functions.log + 1.0) * log + 0.5 * (1.0 + log) + 0.5 * np.abs(exact.target)
        return {INPUT: Exact(exact.input, UNIT * of_input), TARGET: Exact(exact.target, UNIT * of_target)}


def kl_div_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    log_target: bool = False,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the Kullback-Leibler divergence of log-probabilities x from targets t, elementwise: ``t * (log t - x)``,
    or for ``log_target`` ``exp(t) * (t - x)``.

    Equivalent to ``F.kl_div(input, target, reduction=reduction, log_target=log_target)`` in PyTorch, computed in
    float32. Launch with ``kl_div_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, log-probabilities, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types. A probability of 0 gives the loss 0; log t is
            computed as log(t + 2^-64).
        log_target: whether the target holds log-probabilities.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` (over elements) or ``"batchmean"`` (the sum divided by the size of
            the first dimension).
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "kl_div_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    definition = _definition(function, log_target)
    return run_forward(function, definition, tensors_hbm, reduction, dtype, columns, buffers, further=(BATCHMEAN,))


def kl_div_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    log_target: bool = False,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the divergence, times the upstream gradient: ``-t`` for the input x and ``log t + 1 -
    x`` for the target t; with ``log_target``, ``-exp(t)`` and ``exp(t) * (t - x + 1)``.

    Equivalent to the gradients of ``F.kl_div(input, target, reduction=reduction, log_target=log_target)`` in
    PyTorch. Launch it like the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, log_target, reduction: the arguments of the forward. Only the gradient of the target
            reads the input.
        grad_loss_hbm: the upstream gradient: for ``"none"`` of the input's shape, bfloat16, float16 or float32; else
            [1], float32, read on the device.
        grad_input_wanted, grad_target_wanted: whether to compute each gradient; at least one is True.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: the tiling, see the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: the requested gradients, each of the shape and type of its tensor; with
            ``inplace`` the first is ``input_hbm``. At a probability of 0 the gradient of the target is NaN, as
            in PyTorch.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "kl_div_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    definition, wanted = _definition(function, log_target), {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    return run_backward(
        function,
        definition,
        tensors_hbm,
        grad_loss_hbm,
        wanted,
        reduction,
        inplace,
        columns,
        buffers,
        further=(BATCHMEAN,),
    )


def _definition(function: str, log_target: bool) -> LossDefinition:
    require_flag(function, "log_target", log_target)
    return KlDivOfLogTarget() if log_target else KlDiv()


_BY_TARGET: Final = {"grad_input_wanted": False, "grad_target_wanted": True}
KL_DIV: Final = elementwise_loss(
    "kl_div",
    "KLDivLoss",
    kl_div_forward,
    kl_div_backward,
    formula="t (log t - x); exp(t) (t - x) with log_target",
    derivative="-t; -exp(t)",
    errors=(ERROR, ERROR_OF_LOG_TARGET),
    gradient_error=GradientError(
        "input: u times -t, or with log_target 1.5 u times -exp(t); target: 4 u times the sum of the terms' magnitudes",
        {"exp": 1.0, "log": 2.0},
    ),
    functions=Functions(1, backward=1, flags=("log_target", "grad_target_wanted"), needed=needed_tensors),
    time_limits=((1.05, 1.05), (1.05, 1.05)),
    forms=(
        Form(KlDivReference(), {INPUT: Sample.LOG_PROBABILITIES, TARGET: Sample.PROBABILITIES}),
        Form(
            KlDivReference(log_target=True),
            dict.fromkeys((INPUT, TARGET), Sample.LOG_PROBABILITIES),
            {"log_target": True},
            ", log_target",
        ),
    ),
    further_launches=(
        launch_of("forward, none", kl_div_forward, (1.05, 1.05), reduction="none"),
        launch_of("backward, gradient of the target", kl_div_backward, (3.6, 1.95), **_BY_TARGET),
        launch_of("forward, mean, log_target", kl_div_forward, (1.15, 1.05), log_target=True),
        launch_of("backward, mean, log_target", kl_div_backward, (1.05, 1.05), log_target=True),
        launch_of(
            "backward, gradient of the target, log_target", kl_div_backward, (1.05, 1.05), log_target=True, **_BY_TARGET
        ),
    ),
    edges="t = 0 gives 0, or NaN where x is infinite",
    differences='reduction="mean" gives no warning; log t is computed as log(t + 2^-64); t = inf gives inf, not NaN',
)
