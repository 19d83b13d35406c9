# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Hinge embedding loss: x where t is 1, ``max(margin - x, 0)`` where t is -1, and the sum of both elsewhere.

This is ``torch.nn.functional.hinge_embedding_loss(x, t)``, for inputs x and targets t. The sum is computed as ``max(x,
margin)``. The derivative is ``[t != -1] - [t != 1] [x <= margin]``. Terms are selected, not multiplied by 0, because 0
times infinity would be NaN.

The file has the definition in instructions (:class:`HingeEmbedding`), the float64 reference
(:class:`HingeEmbeddingReference`), the kernels (``hinge_embedding_loss_...``) and the registry entry
(:data:`HINGE_EMBEDDING`).

Errors of float32 arithmetic, with u = 2^-23.

``margin - x`` rounds once, u / 2 of itself; all other instructions select values, which is exact. Derivatives are
exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import combine, subtract_on_gpsimd, transform
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, Derived, Exact, FunctionErrors, Tensors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.core.rows.checks import require_option
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

_LOWEST = -(2.0**128) * (1.0 - 2.0**-24)


@dataclass(frozen=True)
class HingeEmbedding:
    """The definition of the hinge embedding loss.

    Attributes:
        margin: a dissimilar pair (target -1) has no loss if its input is at least the margin; finite.
    """

    margin: float

    tensors = (INPUT, TARGET)
    scratch_tiles = 6  # two more than a piece takes, so that Vector does not wait for the sums of Scalar

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of max(margin - x, 0), of the loss where t is not -1 (x or max(x, margin)), and of [t = -1]."""
        hinge_sbuf, other_sbuf = piece.float32(), piece.float32()
        floor_sbuf, is_unlike_sbuf = piece.bfloat16(), piece.bfloat16()
        nisa.activation(dst=hinge_sbuf, op=nl.relu, data=piece[INPUT], scale=-1.0, bias=piece.constant(self.margin))
        # minus infinity, to which the lowest float32 is rounded in bfloat16, or 0
        transform(floor_sbuf, piece[TARGET], nl.equal, 1.0, nl.multiply, _LOWEST)
        combine(other_sbuf, floor_sbuf, nl.add, self.margin, nl.maximum, piece[INPUT])
        unlike_sbuf = piece.constant(-1.0).broadcast(1, piece.shape[1])
        nisa.tensor_tensor(
            dst=is_unlike_sbuf, data1=piece[TARGET], data2=unlike_sbuf, op=nl.equal, engine=nisa.engine.gpsimd
        )
        return hinge_sbuf, other_sbuf, is_unlike_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Select the loss of each element from the tiles of :meth:`prepare`."""
        hinge_sbuf, other_sbuf, is_unlike_sbuf = prepared
        nisa.tensor_copy_predicated(dst=other_sbuf, src=hinge_sbuf, predicate=is_unlike_sbuf.view(nl.uint16))
        losses.activation(nl.copy, other_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivative [t != -1] - [t != 1] [x <= margin] for the input, which is exact in bfloat16."""
        near_sbuf, slope_sbuf = piece.bfloat16(), piece.bfloat16()
        transform(near_sbuf, piece[INPUT], nl.less_equal, self.margin)
        combine(near_sbuf, piece[TARGET], nl.not_equal, 1.0, nl.multiply, near_sbuf)
        transform(slope_sbuf, piece[TARGET], nl.not_equal, -1.0)
        subtract_on_gpsimd(slope_sbuf, slope_sbuf, near_sbuf)
        return {INPUT: Derivative(slope_sbuf, on_scalar=True)}


ERROR: Final = TermError(0.5)


@dataclass(frozen=True)
class HingeEmbeddingReference:
    """The float64 reference, ``torch.nn.functional.hinge_embedding_loss(input.double(), target.double(), margin)``.

    Attributes:
        margin: the margin of the loss; it is rounded to float32.
    """

    margin: float
    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses and their errors.

        The losses are x where t is 1, max(margin - x, 0) where t is -1, and max(x, margin) elsewhere.
        """
        x, t, margin = tensors[INPUT], tensors[TARGET], float(np.float32(self.margin))
        hinge = np.maximum(margin - x, 0.0)
        loss = np.where(t == -1.0, hinge, np.where(t == 1.0, x, np.maximum(x, margin)))
        return Derived.of_units(loss, (), np.where(t == -1.0, 0.5 * hinge, 0.0))

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivative [t != -1] - [t != 1] [x <= margin] for the input, which is exact."""
        x, t, margin = tensors[INPUT], tensors[TARGET], float(np.float32(self.margin))
        slope = (t != -1.0).astype(np.float64) - ((t != 1.0) & (x <= margin))
        return {INPUT: Exact(slope, np.zeros_like(slope))}


def hinge_embedding_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 1.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the hinge embedding loss of inputs x and targets t, elementwise: x where t is 1, ``max(margin - x, 0)``
    where t is -1, and the sum of both elsewhere.

    Equivalent to ``F.hinge_embedding_loss(input, target, margin, reduction=reduction)`` in PyTorch, computed in
    float32.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        margin: a dissimilar pair (t = -1) has no loss if x is at least this; finite.
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "hinge_embedding_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    return run_forward(function, _definition(function, margin), tensors_hbm, reduction, dtype, columns, buffers)


def hinge_embedding_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    margin: float = 1.0,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradient of the hinge embedding loss with respect to the input x, for the target t: ``[t != -1] - [t
    != 1] [x <= margin]``, times the upstream gradient.

    Equivalent to the gradient of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, reduction, margin: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: for ``"none"`` of the input's shape, bfloat16, float16 or float32; else
            [1], float32, read on the device.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: the tiling, see the forward.

    Returns:
        grad_input_hbm: the gradient, of the shape and type of the input; with ``inplace`` it is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "hinge_embedding_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    wanted = {INPUT: True}
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
    return HingeEmbedding(require_option(function, "margin", margin))


HINGE_EMBEDDING: Final = elementwise_loss(
    "hinge_embedding_loss",
    "HingeEmbeddingLoss",
    hinge_embedding_loss_forward,
    hinge_embedding_loss_backward,
    formula="x where t = 1, max(margin - x, 0) where t = -1, their sum elsewhere",
    derivative="[t != -1] - [t != 1] [x <= margin]",
    errors=(ERROR,),
    gradient_error=GradientError("u times the gradient", notes="the target has no gradient"),
    functions=Functions(forward=1),
    time_limits=((1.9, 1.3), (1.05, 1.05)),
    forms=(Form(HingeEmbeddingReference(0.8), {INPUT: Sample.NUMBERS, TARGET: Sample.SIMILARITIES}, {"margin": 0.8}),),
    edges="a target other than 1 and -1 gives the sum of both terms",
    differences="the sum of both terms is max(x, margin), which is margin where x is -inf (PyTorch: NaN); margin "
    "must be finite",
    family=Family.EMBEDDING,
)
