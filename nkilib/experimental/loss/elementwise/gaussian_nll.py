# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Negative log-likelihood of the normal distribution, ``torch.nn.functional.gaussian_nll_loss(x, t, var)``.

With means x, targets t, ``s = 1 / sqrt(max(var, eps))`` and ``q = (x - t) s``, the loss is ``q^2 / 2 - log s``: the
logarithm and the quotient need a single inverse root; ``full`` adds ``log(2 pi) / 2``. The derivatives for x, t and
``var`` are ``q s``, ``-q s`` and ``s^2 (1 - q^2) / 2``. The last one is computed as if ``var`` were ``max(var, eps)``,
as in PyTorch.

The file has the definition in instructions (:class:`GaussianNll`), the float64 reference (:class:`GaussianReference`),
the kernels (``gaussian_nll_loss_...``) and the registry entry (:data:`GAUSSIAN_NLL`).

Errors of float32 arithmetic, with u = 2^-23.

Let v = max(var, eps), s = 1 / sqrt(v), whose relative error is u / 2, and q = (x - t) s.

x - t, its product with s and the square round once each, and the error of s counts twice in q^2: q^2 / 2 has an error
of 7 u / 2 of itself. The error of s moves log s by u / 2; the error of the constant of ``full``, and of its product
with s, moves it by u more; the logarithm has an error of u / 2:

    |error| <= u (7 q^2 / 4 + |log s| / 2 + 1 / 2 + loss / 2), and u more for ``full``

An additional error of u in the inverse root adds u (q^2 + 1), and one in the logarithm u |log s|. In the derivatives, q
s has a relative error of 1.5 u plus twice the error e of the inverse root. s^2 (1 - q^2) / 2 has the errors of its
products and sums, and e counts twice in s^2 and in q^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import combine, multiply_on_gpsimd, product, subtract_on_gpsimd, transform
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, FunctionErrors, Tensors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.core.rows.checks import LEAST_ARGUMENT_OF_LOG, require_flag, require_option
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    INPUT,
    TARGET,
    VARIANCE,
    Derivative,
    LossDefinition,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.host import (
    NUMBERS,
    Functions,
    GradientError,
    elementwise_loss,
)
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class GaussianNll:
    """The definition of the Gaussian negative log-likelihood; the head of the module defines s and q.

    Attributes:
        full: whether to add the constant log(2 pi) / 2.
        eps: the lower limit of the variance.
    """

    full: bool
    eps: float
    tensors = (INPUT, TARGET, VARIANCE)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of q and log(s k).

        For ``full``, k = 1 / sqrt(2 pi), which adds log(2 pi) / 2 to the loss; else k is 1.
        """
        quotient_sbuf, inverse_sbuf = self._quotient(piece)
        log_sbuf = piece.float32()
        scale = 1.0 / sqrt(2.0 * pi) if self.full else 1.0
        nisa.activation(dst=log_sbuf, op=nl.log, data=inverse_sbuf, scale=scale)
        return quotient_sbuf, log_sbuf

    def _quotient(self, piece: Piece) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        """Return tiles of q and s."""
        quotient_sbuf, inverse_sbuf = piece.float32(), piece.float32()
        transform(inverse_sbuf, piece[VARIANCE], nl.maximum, self.eps)
        nisa.activation(dst=inverse_sbuf, op=nl.rsqrt, data=inverse_sbuf)
        subtract_on_gpsimd(quotient_sbuf, piece[INPUT], piece[TARGET])
        multiply_on_gpsimd(quotient_sbuf, quotient_sbuf, inverse_sbuf)
        return quotient_sbuf, inverse_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses q^2 / 2 - log(s k), with k of :meth:`prepare`."""
        square_sbuf, log_sbuf = prepared
        product(square_sbuf, square_sbuf, square_sbuf)
        losses.scalar_tensor_tensor(square_sbuf, nl.multiply, 0.5, nl.subtract, log_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives: q s for the input, -q s for the target and s^2 (1 - q^2) / 2 for the variance."""
        quotient_sbuf, inverse_sbuf = self._quotient(piece)
        derivatives = {}
        if VARIANCE in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.square, data=quotient_sbuf)
            combine(slope_sbuf, slope_sbuf, nl.subtract, 1.0, nl.multiply, inverse_sbuf)
            product(slope_sbuf, slope_sbuf, inverse_sbuf)
            derivatives[VARIANCE] = Derivative(slope_sbuf, -0.5, on_scalar=True)
        times_sbuf: nl.NkiTensor | None = inverse_sbuf
        if INPUT in wanted and TARGET in wanted:
            product(quotient_sbuf, quotient_sbuf, inverse_sbuf)
            times_sbuf = None
        derivatives[INPUT] = Derivative(quotient_sbuf, 1.0, on_scalar=True, times_sbuf=times_sbuf)
        derivatives[TARGET] = Derivative(quotient_sbuf, -1.0, on_scalar=True, times_sbuf=times_sbuf)
        return derivatives


ERROR: Final = TermError(4.5, {"rsqrt": 3.0, "log": 1.0}, "(x - t)^2 / (2 v), log(v) / 2 and 1")
FULL_ERROR: Final = TermError(5.5, {"rsqrt": 3.0, "log": 1.0}, "(x - t)^2 / (2 v), log(2 pi v) / 2 and 1", "full")


@dataclass(frozen=True)
class GaussianReference:
    """The float64 reference, ``torch.nn.functional.gaussian_nll_loss(input.double(), target.double(), var.double())``.

    Attributes:
        full, eps: the options of the function.
    """

    full: bool = False
    eps: float = 1e-6

    @property
    def stated(self) -> TermError:
        """The error that the guarantee states for these options."""
        return FULL_ERROR if self.full else ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses (log v + (x - t)^2 / v) / 2, plus log(2 pi) / 2 for ``full``, and their errors; v =
        max(var, eps).
        """
        variance = self._variance(tensors)
        square = 0.5 * (tensors[INPUT] - tensors[TARGET]) ** 2 / variance
        logs = 0.5 * np.log(variance) + (0.5 * np.log(2.0 * np.pi) if self.full else 0.0)
        loss = square + logs
        own = 3.5 * square + 0.5 * (np.abs(logs) + np.abs(loss)) + (1.5 if self.full else 0.5)
        functions = {"rsqrt": 2.0 * square + 1.0, "log": logs}
        return Derived.of_units(loss, (square, logs, 1.0), own, functions)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives for the input, the target and the variance, with their errors.

        They are (x - t) / v, its negative, and (1 / v - (x - t)^2 / v^2) / 2, with v = max(var, eps).
        """
        variance = self._variance(tensors)
        distance = tensors[INPUT] - tensors[TARGET]
        slope = distance / variance
        share, square = 0.5 / variance, 0.5 * distance**2 / variance**2
        of_inverse = 2.0 * functions.rsqrt
        error = (1.5 + of_inverse) * UNIT * np.abs(slope)
        of_square = (2.5 + of_inverse) * square
        by_variance = UNIT * (of_square + (0.5 + of_inverse + 1.0) * (share + square))
        return {
            INPUT: Exact(slope, error),
            TARGET: Exact(-slope, error),
            VARIANCE: Exact(share - square, by_variance),
        }

    def _variance(self, tensors: Tensors) -> np.ndarray:
        return np.maximum(tensors[VARIANCE], float(np.float32(self.eps)))


def gaussian_nll_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    var_hbm: HbmTensor,
    reduction: str = "mean",
    full: bool = False,
    eps: float = 1e-6,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the negative log-likelihood of targets t under normal distributions of means x, elementwise: ``(log v +
    (x - t)^2 / v) / 2`` for ``v = max(var, eps)``.

    Equivalent to ``F.gaussian_nll_loss(input, target, var, full=full, eps=eps, reduction=reduction)`` in PyTorch,
    computed in float32. Launch with ``gaussian_nll_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, means, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the input's shape, in any of these types.
        var_hbm: the variances, of the input's shape, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        full: whether to add ``log(2 pi) / 2``.
        eps: the lower limit of the variance, at least 2^-64.
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "gaussian_nll_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, VARIANCE: var_hbm}
    return run_forward(function, _definition(function, full, eps), tensors_hbm, reduction, dtype, columns, buffers)


def gaussian_nll_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    var_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    full: bool = False,
    eps: float = 1e-6,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_var_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the Gaussian negative log-likelihood: ``(x - t) / v`` with respect to the input x, its
    negative with respect to the target t, and ``(1 / v - (x - t)^2 / v^2) / 2`` with respect to the variance, each
    times the upstream gradient, with ``v = max(var, eps)``. A variance below ``eps`` gets this gradient too.

    Equivalent to the gradients of the forward's expression in PyTorch. Launch it like the forward.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, var_hbm, reduction, full, eps: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: for ``"none"`` of the input's shape, bfloat16, float16 or float32; else
            [1], float32, read on the device.
        grad_input_wanted, grad_target_wanted, grad_var_wanted: whether to compute each gradient; at least one is True.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: the tiling, see the forward.

    Returns:
        grad_input_hbm, grad_target_hbm, grad_var_hbm: the requested gradients, each of the shape and type of its
            tensor; with ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "gaussian_nll_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, VARIANCE: var_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted, VARIANCE: grad_var_wanted}
    definition = _definition(function, full, eps)
    return run_backward(function, definition, tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers)


def _definition(function: str, full: bool, eps: float) -> LossDefinition:
    require_flag(function, "full", full)
    require_option(function, "eps", eps, least=LEAST_ARGUMENT_OF_LOG)
    return GaussianNll(full, eps)


_SAMPLES: Final = {**NUMBERS, VARIANCE: Sample.POSITIVE}
GAUSSIAN_NLL: Final = elementwise_loss(
    "gaussian_nll_loss",
    "GaussianNLLLoss",
    gaussian_nll_loss_forward,
    gaussian_nll_loss_backward,
    formula="(log v + (x - t)^2 / v) / 2, v = max(var, eps)",
    derivative="(x - t) / v",
    errors=(ERROR, FULL_ERROR),
    gradient_error=GradientError(
        "input and target: 3.5 u times (x - t) / v; variance: 3.5 u times 1 / (2 v), plus 7 u times "
        "(x - t)^2 / (2 v^2)",
        {"rsqrt": 4.0},
    ),
    functions=Functions(forward=3, backward=1),
    time_limits=((1.7, 1.05), (1.3, 1.05)),
    forms=(
        Form(GaussianReference(), _SAMPLES),
        Form(GaussianReference(full=True, eps=0.25), _SAMPLES, {"full": True, "eps": 0.25}, ", full"),
    ),
    edges="the gradient of var is the gradient of v, even where var < eps",
    differences="eps must be at least 2^-64",
    family=Family.REGRESSION,
)
