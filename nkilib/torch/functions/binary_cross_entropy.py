# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Binary cross-entropy, each function with its module:

- ``binary_cross_entropy``, ``BCELoss``: the loss of probabilities;
- ``binary_cross_entropy_with_logits``, ``BCEWithLogitsLoss``: the loss of logits;
- ``multilabel_soft_margin_loss``, ``MultiLabelSoftMarginLoss``: the loss of logits, averaged over the
  classes of each row.
"""

from __future__ import annotations

from math import prod
from typing import Final

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, hides_unknown, refuse_unknown
from nkilib.torch.dispatch.checks import Caller, broadcast_shape, counterpart
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, Call
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import WeightedLossModule
from nkilib.torch.losses.outputs import reduced
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss


def _check_probabilities(call: Call) -> None:
    for name in ("input", "target"):
        tensor = call.tensor(name)
        if tensor.numel() > 0 and not bool(((tensor >= 0.0) & (tensor <= 1.0)).all()):
            raise RuntimeError(
                f"binary_cross_entropy: all elements of {name} should be between 0 and 1, got {tensor.min()} to "
                f"{tensor.max()}; pass probabilities, or take binary_cross_entropy_with_logits"
            )


BINARY_CROSS_ENTROPY: Final = elementwise_loss(
    "binary_cross_entropy",
    "probabilities",
    optional=("weight",),
    integers=("weight",),
    bools=("weight",),
    constant=("weight",),
    typed=("input",),
    check_values=_check_probabilities,
)


def _check_same_size(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Check that the target has the input's shape, because PyTorch does not broadcast here.

    Raises:
        ValueError: the shapes differ.
    """
    if input.shape != target.shape:
        raise ValueError(
            f"{caller}: target must have the shape of input, {tuple(input.shape)}, got {tuple(target.shape)}; expand it"
        )


def _is_one_type(input: Tensor, target: Tensor) -> bool:
    """Return False if PyTorch would reject input and target because their dtypes differ.

    Under autocast PyTorch casts both, so that they may differ. The result is also True if a later check rejects one.
    """
    are_taken = input.dtype in FLOAT_DTYPES and target.dtype in FLOAT_DTYPES
    return input.dtype == target.dtype or not are_taken or torch.is_autocast_enabled(input.device.type)


def _check_expands(caller: Caller, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    """Check that the argument ``name``, if it is a tensor, broadcasts to ``shape``.

    Raises:
        RuntimeError: it does not broadcast, as in PyTorch.
    """
    if tensor is None:
        return
    if tensor.dim() > len(shape) or any(
        own not in (1, whole) for own, whole in zip(reversed(tensor.shape), reversed(shape), strict=False)
    ):
        raise RuntimeError(
            f"{caller}: {name} of shape {tuple(tensor.shape)} does not broadcast to that of target, {tuple(shape)}; "
            f"reshape it"
        )


@hides_unknown
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the binary cross-entropy ``-(t log x + (1 - t) log(1 - x))`` of probabilities x and targets t, where each
    logarithm is clamped to at least -100, with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.binary_cross_entropy(input, target, weight, reduction=reduction)``, computed
    in float32 with float32 sums. Values are checked on the CPU only.

    Args:
        input: probabilities, bfloat16, float16 or float32, of any shape.
        target: probabilities of the same shape and dtype as the input. It may require grad.
        weight: a tensor whose shape broadcasts to the target's. The losses are multiplied by it; a mean still divides
            by the number of elements. It has no gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the shape and dtype of the input.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a target of another shape; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: values outside of [0, 1], on the CPU; dtypes or devices that differ; a weight that does not
            broadcast, or requires grad; integers or complex numbers; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(binary_cross_entropy, unknown)
    caller = BINARY_CROSS_ENTROPY.caller
    tensors = {"input": input, "target": target, "weight": weight}
    BINARY_CROSS_ENTROPY.check(tensors, reduction, inplace)
    _check_same_size(caller, input, target)
    _check_expands(caller, "weight", weight, tuple(target.shape))
    if not _is_one_type(input, target):
        raise RuntimeError(
            f"{caller}: target must have the type of input, {input.dtype}, got {target.dtype}; pass "
            f"target.to(input.dtype)"
        )
    return BINARY_CROSS_ENTROPY(tensors, reduction, inplace)


class BCELoss(WeightedLossModule):
    """Binary cross-entropy of probabilities as a module, in place of ``torch.nn.BCELoss``:
    :func:`binary_cross_entropy`, computed by the kernels.

    Call the module with ``(input, target)``: two tensors of probabilities of the same shape and dtype. The loss is a
    float32 scalar tensor, or with ``"none"`` a tensor of that shape. The weight is a buffer: it moves with the module
    to a device or dtype, and is in the state dict.

    Args:
        weight: a factor for each loss, of a shape that broadcasts to the target's; None means 1. It gets no gradient.
        reduction: ``"mean"`` divides the sum by the number of elements, not by the sum of the weights; ``"sum"``; or
            ``"none"``: a loss for each element.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(weight, reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return binary_cross_entropy(input, target, self.weight, self.reduction, inplace=self.inplace)


BINARY_CROSS_ENTROPY_WITH_LOGITS: Final = elementwise_loss(
    "binary_cross_entropy_with_logits",
    "logits",
    optional=("weight", "pos_weight"),
    constant=("weight", "pos_weight"),
    integers=("weight", "pos_weight"),
    bools=("weight",),
    typed=("target",),
)


@hides_unknown
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the binary cross-entropy ``(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))`` of logits x and targets t,
    where p is ``pos_weight``, with the kernels of :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.binary_cross_entropy_with_logits(input, target, weight,
    pos_weight=pos_weight, reduction=reduction)``, computed in float32 with float32 sums. A confident logit keeps its
    small loss, which PyTorch's float32 computation rounds to 0. Tensor values are never read, so the call does not wait
    for the device.

    Args:
        input: logits, bfloat16, float16 or float32, of any shape.
        target: a tensor of the shape of the input, in any of these types. It may require grad.
        weight: a tensor whose shape broadcasts to the target's. The losses are multiplied by it; a mean still divides
            by the number of elements. It has no gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        pos_weight: the weight of positive examples, whose shape broadcasts to the target's. It has no gradient.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the shape of the input and the dtype of the
        target.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a target of another shape; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: devices differ; a weight that does not broadcast, or requires grad; integers or complex numbers;
            ``inplace`` with a leaf that requires grad, with another tensor that overlaps it in memory, or under
            torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(binary_cross_entropy_with_logits, unknown)
    caller = BINARY_CROSS_ENTROPY_WITH_LOGITS.caller
    tensors = {"input": input, "target": target, "weight": weight, "pos_weight": pos_weight}
    BINARY_CROSS_ENTROPY_WITH_LOGITS.check(tensors, reduction, inplace)
    _check_same_size(caller, input, target)
    for name, factors in (("weight", weight), ("pos_weight", pos_weight)):
        _check_expands(caller, name, factors, tuple(target.shape))
    return BINARY_CROSS_ENTROPY_WITH_LOGITS(tensors, reduction, inplace)


class BCEWithLogitsLoss(WeightedLossModule):
    """Binary cross-entropy of logits as a module, in place of ``torch.nn.BCEWithLogitsLoss``:
    :func:`binary_cross_entropy_with_logits`, computed by the kernels.

    Call the module with ``(input, target)``: logits, and targets of the same shape. The loss is a float32 scalar
    tensor, or with ``"none"`` a tensor of that shape in the dtype of the target. Both weights are buffers: they move
    with the module to a device or dtype, and are in the state dict.

    Args:
        weight: a factor for each loss, of a shape that broadcasts to the target's; None means 1. It gets no gradient.
        reduction: ``"mean"`` divides the sum by the number of elements, not by the sum of the weights; ``"sum"``; or
            ``"none"``: a loss for each element.
        pos_weight: a factor for the term of positive targets, of a shape that broadcasts to the target's, such as [C]
            for one factor per class; None means 1. It gets no gradient.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(weight, reduction, inplace)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return binary_cross_entropy_with_logits(
            input, target, self.weight, self.reduction, self.pos_weight, inplace=self.inplace
        )


_SOFT_MARGIN_LOSS: Final = rowwise_loss(
    Caller("multilabel_soft_margin_loss", "input", "logits", counterpart("multilabel_soft_margin_loss")),
    RowInputs(("input", "target"), optional=("weight",)),
    wanted={"input": True, "target": False, "weight": False},
)


def _row_weights(weight: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """Return the weights with the classes, dimension ``axis`` of ``shape``, last.

    The result is [1, C] if all rows have the same weights, else it is expanded to all rows.
    """
    if weight.numel() == prod(weight.shape[-1:]) and axis == len(shape) - 1:
        return weight.reshape(-1).expand(shape[-1:]).reshape(1, shape[-1])
    return weight.expand(shape).movedim(axis, -1)


@hides_unknown
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the multi-label soft margin loss: for each row, the mean over classes of the binary cross-entropy of
    logits.

    The result equals ``torch.nn.functional.multilabel_soft_margin_loss(input, target, weight, reduction=reduction)``,
    computed in float32 with float32 sums. Tensor values are never read, so the call does not wait for the device.

    Args:
        input: logits [..., C], bfloat16, float16 or float32.
        target: numbers in [0, 1], in one of these types or of integers, of a shape that broadcasts with the input's. It
            may require grad.
        weight: class weights [C], or a tensor of a shape that broadcasts, in one of these types or of integers. It may
            require grad.
        reduction: ``"mean"`` (over rows), ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape without C, in the dtype that
        the tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``inplace`` with a tensor that has gaps in memory.
        IndexError: an input without dimensions.
        RuntimeError: incompatible shapes or devices; a complex tensor, or integer logits; ``inplace`` with a leaf that
            requires grad, with another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(multilabel_soft_margin_loss, unknown)
    caller = _SOFT_MARGIN_LOSS.caller
    arguments = {"input": input, "target": target, "weight": weight}
    _SOFT_MARGIN_LOSS.check(arguments, reduction, inplace, integers=("target", "weight"), bools=("weight",))
    if input.dim() == 0:
        raise IndexError(f"{caller}: input must have a dimension of classes, got none; pass [C] or [N, C]")
    tensors = [input, target, *([] if weight is None else [weight])]
    shape = broadcast_shape(caller, {name: tensor.shape for name, tensor in arguments.items() if tensor is not None})
    axis, classes = input.dim() - 1, input.shape[-1]  # as in PyTorch; the broadcast shape may have more
    first, second, *others = as_floats(tensors)
    first, second = (tensor.expand(shape).movedim(axis, -1) for tensor in (first, second))
    if inplace:
        _SOFT_MARGIN_LOSS.check_inplace(arguments, first)
    if classes == 0:  # a mean of no classes
        return reduced((first * second).sum(-1) / classes, reduction, (*shape[:axis], *shape[axis + 1 :]))
    shared = [_row_weights(tensor, shape, axis) for tensor in others]
    computed = {"input": first, "target": second, "weight": shared[0] if shared else None}
    loss = _SOFT_MARGIN_LOSS(computed, reduction, inplace)
    return loss if shape[axis] == classes else loss * (shape[axis] / classes)


class MultiLabelSoftMarginLoss(WeightedLossModule):
    """Multi-label soft margin loss as a module, in place of ``torch.nn.MultiLabelSoftMarginLoss``:
    :func:`multilabel_soft_margin_loss`, computed by the kernels.

    Call the module with ``(input, target)``: logits [..., C], and targets between 0 and 1 of a shape that broadcasts
    with the input's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast shape without C.
    The weight is a buffer: it moves with the module to a device or dtype, and is in the state dict.

    Args:
        weight: a factor for each class, [C], or a tensor of a shape that broadcasts with the input's; None means 1.
        reduction: ``"mean"`` over the rows, ``"sum"``, or ``"none"``: a loss for each row.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(weight, reduction, inplace)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return multilabel_soft_margin_loss(input, target, self.weight, self.reduction, inplace=self.inplace)
