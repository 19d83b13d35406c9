# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Margin ranking loss: ``max(margin - t (x1 - x2), 0)``, ``torch.nn.functional.margin_ranking_loss(x1, x2, t)``, for
the inputs x1 and x2 and the target t.

Where ``margin - t (x1 - x2)`` is 0 or more, the derivatives with respect to x1, x2 and t are ``-t``, ``t``
and ``-(x1 - x2)``; else they are 0.

The file has the definition in instructions (:class:`MarginRanking`), the float64 reference
(:class:`MarginRankingReference`), the kernels (``margin_ranking_loss_...``) and the registry entry
(:data:`MARGIN_RANKING`).

Errors of float32 arithmetic, with u = 2^-23.

With d = x1 - x2, d and p = t d round once each, which costs u / 2 of p, and z = margin - p rounds once, u / 2 of z.

|error| <= u |p| + u |z| / 2: at most 1.5 u of the largest of margin, p and z. The error of a derivative is 0, or u |d|
/ 2.

Where |z| is not larger than the error of z, a derivative may be its value for a positive z or 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import combine, product, subtract_on_gpsimd
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, Float64Array, FunctionErrors, Tensors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.core.rows.checks import require_option
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    TARGET,
    Derivative,
    LossDefinition,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.host import Functions, GradientError, elementwise_loss
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward
from nkilib.nki import nl

INPUT1, INPUT2 = "input1", "input2"


@dataclass(frozen=True)
class MarginRanking:
    """The definition of the margin ranking loss.

    Attributes:
        margin: a pair has no loss if t (x1 - x2), with the target t, is at least this; finite.
    """

    margin: float

    tensors = (INPUT1, INPUT2, TARGET)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of x1 - x2, computed on GpSimd, and of t (x1 - x2)."""
        difference_sbuf, product_sbuf = piece.float32(), piece.float32()
        subtract_on_gpsimd(difference_sbuf, piece[INPUT1], piece[INPUT2])
        product(product_sbuf, difference_sbuf, piece[TARGET])
        return difference_sbuf, product_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses max(margin - t (x1 - x2), 0)."""
        _, product_sbuf = prepared
        losses.activation(nl.relu, product_sbuf, scale=-1.0, bias_sbuf=piece.constant(self.margin))

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives -t for x1, t for x2 and -(x1 - x2) for t, each times [t (x1 - x2) <= margin]."""
        difference_sbuf, product_sbuf = self.prepare(piece)
        derivatives = {}
        if TARGET in wanted:
            self._where_below_margin(difference_sbuf, product_sbuf, difference_sbuf)
            derivatives[TARGET] = Derivative(difference_sbuf, -1.0, on_scalar=True)
        if INPUT1 in wanted or INPUT2 in wanted:
            target_sbuf = piece.float32()
            self._where_below_margin(target_sbuf, product_sbuf, piece[TARGET])
            derivatives[INPUT1] = Derivative(target_sbuf, -1.0, on_scalar=True)
            derivatives[INPUT2] = Derivative(target_sbuf, on_scalar=True)
        return derivatives

    def _where_below_margin(
        self, dst_sbuf: nl.NkiTensor, product_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor
    ) -> None:
        combine(dst_sbuf, product_sbuf, nl.less_equal, self.margin, nl.multiply, factor_sbuf)


ERROR: Final = TermError(1.5, terms="margin and t (x1 - x2)")


@dataclass(frozen=True)
class MarginRankingReference:
    """The float64 reference, ``torch.nn.functional.margin_ranking_loss(input1.double(), input2.double(),
    target.double(), margin)``.

    Attributes:
        margin: the margin of the loss; it is rounded to float32.
    """

    margin: float
    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses max(margin - t (x1 - x2), 0) and their errors."""
        product, reach = _product(tensors), self._reach(tensors)
        own = np.abs(product) + 0.5 * np.abs(reach)
        return Derived.of_units(np.maximum(reach, 0.0), (float(np.float32(self.margin)), product, reach), own)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives -t for x1, t for x2 and -(x1 - x2) for t, 0 where t (x1 - x2) > margin, with their
        errors.
        """
        reach = self._reach(tensors)
        error = self.value(tensors).own
        target, difference = tensors[TARGET], tensors[INPUT1] - tensors[INPUT2]
        counts = (reach >= 0.0).astype(np.float64)
        is_near = np.abs(reach) <= error
        of_target = np.where(is_near, np.abs(target), 0.0)
        of_difference = np.where(is_near, np.abs(difference), 0.5 * UNIT * np.abs(difference))
        return {
            INPUT1: Exact(-counts * target, of_target),
            INPUT2: Exact(counts * target, of_target),
            TARGET: Exact(-counts * difference, of_difference),
        }

    def _reach(self, tensors: Tensors) -> Float64Array:
        return float(np.float32(self.margin)) - _product(tensors)


def _product(tensors: Tensors) -> Float64Array:
    return tensors[TARGET] * (tensors[INPUT1] - tensors[INPUT2])


def margin_ranking_loss_forward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 0.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the margin ranking loss, elementwise: ``max(margin - t (x1 - x2), 0)`` for the inputs x1 and x2 and the
    target t.

    Equivalent to ``F.margin_ranking_loss(input1, input2, target, margin, reduction=reduction)`` in PyTorch, computed in
    float32.

    Dimensions:
        E: elements of input1, E > 0, of any shape.

    Args:
        input1_hbm: x1, bfloat16, float16 or float32, of any dense shape, in HBM.
        input2_hbm: x2, of the shape of input1, in any of these types.
        target_hbm: t, of the shape of input1, in any of these types: 1 where x1 should be larger than x2, -1 where x1
            should be smaller than x2.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        margin: a pair has no loss if ``t (x1 - x2)`` is at least this; finite.
        dtype: the type of the losses for ``"none"``; None: the type of input1.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the shape of input1, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "margin_ranking_loss_forward"
    tensors_hbm = {INPUT1: input1_hbm, INPUT2: input2_hbm, TARGET: target_hbm}
    return run_forward(function, _definition(function, margin), tensors_hbm, reduction, dtype, columns, buffers)


def margin_ranking_loss_backward(
    input1_hbm: HbmTensor,
    input2_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 0.0,
    grad_input1_wanted: bool = True,
    grad_input2_wanted: bool = False,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the margin ranking loss, each times the upstream gradient: ``-t`` with respect to
    input1, ``t`` with respect to input2 and ``x2 - x1`` with respect to the target. They are 0 where ``t (x1 - x2) >
    margin``.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of input1, E > 0, of any shape.

    Args:
        input1_hbm, input2_hbm, target_hbm, reduction, margin: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: for ``"none"`` of the shape of input1, bfloat16, float16 or float32; else
            [1], float32, read on the device.
        grad_input1_wanted, grad_input2_wanted, grad_target_wanted: whether to compute each gradient; at least one is
            True.
        inplace: write the gradient of input1 over ``input1_hbm``; else into a new tensor.
        columns, buffers: the tiling, see the forward.

    Returns:
        grad_input1_hbm, grad_input2_hbm, grad_target_hbm: the requested gradients, each of the shape and type of
            its tensor; with ``inplace`` the first is ``input1_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "margin_ranking_loss_backward"
    tensors_hbm = {INPUT1: input1_hbm, INPUT2: input2_hbm, TARGET: target_hbm}
    wanted = {INPUT1: grad_input1_wanted, INPUT2: grad_input2_wanted, TARGET: grad_target_wanted}
    return run_backward(
        function,
        _definition(function, margin),
        tensors_hbm,
        grad_loss_hbm,
        wanted,
        reduction,
        inplace,
        columns,
        buffers,
    )


def _definition(function: str, margin: float) -> LossDefinition:
    return MarginRanking(require_option(function, "margin", margin))


MARGIN_RANKING: Final = elementwise_loss(
    "margin_ranking_loss",
    "MarginRankingLoss",
    margin_ranking_loss_forward,
    margin_ranking_loss_backward,
    formula="max(margin - t (x1 - x2), 0)",
    derivative="-t where t (x1 - x2) <= margin, else 0",
    errors=(ERROR,),
    gradient_error=GradientError(
        "1.5 u times the gradient (where the loss is within its own error of 0, the gradient may be that of either "
        "side of the hinge)"
    ),
    functions=Functions(forward=1),
    time_limits=((1.05, 1.05), (1.05, 1.05)),
    forms=(
        Form(
            MarginRankingReference(0.3),
            {INPUT1: Sample.NUMBERS, INPUT2: Sample.NUMBERS, TARGET: Sample.SIGNS},
            {"margin": 0.3},
        ),
    ),
    edges="the gradient is -t, not 0, where margin - t (x1 - x2) is exactly 0",
    differences="margin must be finite",
    family=Family.EMBEDDING,
)
