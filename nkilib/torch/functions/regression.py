# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Regression losses, each with its module: ``l1_loss``, ``mse_loss``, ``smooth_l1_loss`` and ``huber_loss``."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_float, hides_unknown, refuse_unknown
from nkilib.core.rows.checks import LEAST_NORMAL
from nkilib.torch.losses.checks import finite_number
from nkilib.torch.losses.elementwise import elementwise_loss, loss_of_pair
from nkilib.torch.losses.modules import LossModule

L1_LOSS: Final = elementwise_loss(
    "l1_loss",
    "predictions",
    optional=("weight",),
    integers=("input", "target", "weight"),
    bools=("weight",),
    takes_integers_alone=True,
)


@hides_unknown
def l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    weight: Tensor | None = None,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the absolute error ``|input - target|`` with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.l1_loss(input, target, reduction=reduction, weight=weight)``, computed in
    float32 with float32 sums. Gradients at 0 and at NaN are 0, as in PyTorch. Tensor values are never read, so the call
    does not wait for the device.

    Args:
        input: predictions, bfloat16, float16, float32 or integers, of any shape.
        target: targets in one of these types, of a shape that broadcasts with the input's; if the shapes differ, there
            is a warning. It may require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: a tensor of the shape of the input. The losses are multiplied by it, and a mean divides by its sum. It
            may require grad.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a weight of another shape; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(l1_loss, unknown)
    return loss_of_pair(L1_LOSS, input, target, reduction, inplace, weight, divides_by_weight=True)


class L1Loss(LossModule):
    """Absolute error as a module, in place of ``torch.nn.L1Loss``: :func:`l1_loss`, computed by the kernels.

    Call the module with ``(input, target)``: predictions of any shape, and targets of a shape that broadcasts with the
    input's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast shape. The module keeps
    its options, and has neither parameters nor buffers.

    Args:
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return l1_loss(input, target, self.reduction, inplace=self.inplace)


MSE_LOSS: Final = elementwise_loss(
    "mse_loss",
    "predictions",
    optional=("weight",),
    integers=("input", "target", "weight"),
    bools=("input", "target", "weight"),
)


@hides_unknown
def mse_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    weight: Tensor | None = None,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the squared error ``(input - target)^2`` with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.mse_loss(input, target, reduction=reduction, weight=weight)``, computed in
    float32 with float32 sums. Tensor values are never read, so the call does not wait for the device.

    Args:
        input: predictions, bfloat16, float16 or float32, of any shape; or integers or bool, if another tensor is
            floating.
        target: targets in one of these types, of a shape that broadcasts with the input's; if the shapes differ, there
            is a warning. It may require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: a tensor of the shape of the input. The losses are multiplied by it, and a mean divides by its sum. It
            may require grad.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a weight of another shape; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: integers alone; an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode
            differentiation.
    """
    if unknown:
        refuse_unknown(mse_loss, unknown)
    return loss_of_pair(MSE_LOSS, input, target, reduction, inplace, weight, divides_by_weight=True)


class MSELoss(LossModule):
    """Squared error as a module, in place of ``torch.nn.MSELoss``: :func:`mse_loss`, computed by the kernels.

    Call the module with ``(input, target)``: predictions of any shape, and targets of a shape that broadcasts with the
    input's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast shape. The module keeps
    its options, and has neither parameters nor buffers.

    Args:
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return mse_loss(input, target, self.reduction, inplace=self.inplace)


SMOOTH_L1_LOSS: Final = elementwise_loss(
    "smooth_l1_loss",
    "predictions",
    integers=("input", "target"),
    bools=("input", "target"),
    options={"beta": 1.0},
)


def _checked_beta(beta: Any) -> float:
    caller = SMOOTH_L1_LOSS.caller
    if not as_float(caller, "beta", beta) >= 0.0:  # NaN too
        raise RuntimeError(f"{caller}: does not support negative values for beta, got {beta}")
    return finite_number(caller, "beta", beta)


@hides_unknown
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    beta: float = 1.0,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the smooth absolute error with the kernels of :mod:`nkilib.experimental.loss`: ``d^2 / (2 beta)`` up to
    ``|d| = beta`` and ``|d| - beta / 2`` beyond, with ``d = input - target``.

    The result equals ``torch.nn.functional.smooth_l1_loss(input, target, reduction=reduction, beta=beta)``, computed in
    float32 with float32 sums. Tensor values are never read, so the call does not wait for the device.

    Args:
        input: predictions, bfloat16, float16 or float32, of any shape; or integers or bool, if the target is floating.
        target: targets in one of these types, of a shape that broadcasts with the input's; if the shapes differ, there
            is a warning. It may require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        beta: the error up to which the loss is quadratic, finite; with 0 it is never quadratic, as in ``l1_loss``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; an infinite beta; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: a negative beta; incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that
            requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: integers alone; an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode
            differentiation.
    """
    if unknown:
        refuse_unknown(smooth_l1_loss, unknown)
    beta = _checked_beta(beta)
    return loss_of_pair(SMOOTH_L1_LOSS, input, target, reduction, inplace, beta=beta)


class SmoothL1Loss(LossModule):
    """Smooth absolute error as a module, in place of ``torch.nn.SmoothL1Loss``: :func:`smooth_l1_loss`, computed by the
    kernels.

    Call the module with ``(input, target)``: predictions of any shape, and targets of a shape that broadcasts with the
    input's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast shape. The module keeps
    its options, and has neither parameters nor buffers.

    Args:
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        beta: the error up to which the loss is quadratic, at least 0 and finite; with 0 it is the absolute error.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return smooth_l1_loss(input, target, self.reduction, self.beta, inplace=self.inplace)


HUBER_LOSS: Final = elementwise_loss(
    "huber_loss",
    "predictions",
    optional=("weight",),
    integers=("target", "weight"),
    bools=("target", "weight"),
    typed=("input", "weight"),
    options={"delta": 1.0},
)


def _checked_delta(delta: Any) -> float:
    caller = HUBER_LOSS.caller
    if not as_float(caller, "delta", delta) > 0.0:  # NaN too
        raise RuntimeError(f"{caller}: does not support non-positive values for delta, got {delta}")
    return max(finite_number(caller, "delta", delta), LEAST_NORMAL)


@hides_unknown
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute Huber's error with the kernels of :mod:`nkilib.experimental.loss`: ``d^2 / 2`` up to ``|d| = delta`` and
    ``delta (|d| - delta / 2)`` beyond, with ``d = input - target``.

    The result equals ``torch.nn.functional.huber_loss(input, target, reduction=reduction, delta=delta,
    weight=weight)``, computed in float32 with float32 sums. Tensor values are never read, so the call does not wait for
    the device.

    Args:
        input: predictions, bfloat16, float16 or float32, of any shape.
        target: targets in one of these types or of integers, of a shape that broadcasts with the input's; if the shapes
            differ, there is a warning. It may require grad.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        delta: the error up to which the loss is quadratic, positive and finite.
        weight: a tensor of the shape of the input. The losses are multiplied by it; a mean still divides by the number
            of elements. It may require grad.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that those of
        input and weight promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a weight of another shape; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: a delta that is not positive; incompatible shapes or devices; a complex tensor; ``inplace`` with a
            leaf that requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(huber_loss, unknown)
    delta = _checked_delta(delta)
    return loss_of_pair(HUBER_LOSS, input, target, reduction, inplace, weight, delta=delta)


class HuberLoss(LossModule):
    """Huber's error as a module, in place of ``torch.nn.HuberLoss``: :func:`huber_loss`, computed by the kernels.

    Call the module with ``(input, target)``: predictions of any shape, and targets of a shape that broadcasts with the
    input's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast shape. The module keeps
    its options, and has neither parameters nor buffers.

    Args:
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        delta: the error up to which the loss is quadratic and from which on it is linear, positive and finite.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0, *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return huber_loss(input, target, self.reduction, self.delta, inplace=self.inplace)
