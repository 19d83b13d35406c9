# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses that compare two or three vectors or scores, as in the training of embeddings, each with its module:

- ``cosine_embedding_loss``, ``CosineEmbeddingLoss``: two vectors, by their cosine;
- ``hinge_embedding_loss``, ``HingeEmbeddingLoss``: two vectors, by a distance that the caller computes;
- ``margin_ranking_loss``, ``MarginRankingLoss``: two scores, of which one is to be larger;
- ``triplet_margin_loss``, ``TripletMarginLoss``: three vectors, by the distances of an anchor to the other two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_float, check_flags, hides_unknown, refuse_unknown
from nkilib.torch.dispatch.checks import Caller, broadcast_shape, counterpart
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.losses.checks import finite_number
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.outputs import as_computed
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss

_COSINE_LOSS: Final = rowwise_loss(
    Caller("cosine_embedding_loss", "input1", "embeddings", counterpart("cosine_embedding_loss")),
    RowInputs(("input1", "input2"), vectors=("target",)),
    options={"margin": 0.0},
    forward_alone=("margin",),
    coefficients=lambda call: 3,
)


def _check_cosine_shapes(input1: Tensor, input2: Tensor, target: Tensor) -> None:
    """Check that the numbers of dimensions fit, as PyTorch does, and that rows have the same length.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    caller, dims = _COSINE_LOSS.caller, target.dim() + 1
    if dims > 2:
        raise RuntimeError(f"{caller}: target must be 0-D or 1-D, got shape {tuple(target.shape)}; flatten the rows")
    if {input1.dim(), input2.dim()} != {dims}:
        raise RuntimeError(
            f"{caller}: a {target.dim()}-D target goes with {dims}-D inputs, got shapes {tuple(input1.shape)} and "
            f"{tuple(input2.shape)}; reshape them"
        )
    if input1.shape[-1] != input2.shape[-1]:
        raise RuntimeError(
            f"{caller}: rows of input1 and input2 must have the same length, got {input1.shape[-1]} and "
            f"{input2.shape[-1]}; expand one of them"
        )


@hides_unknown
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the cosine embedding loss of each row, with cos the cosine between the rows of both inputs: ``1 - cos``
    where the target is 1, ``max(0, cos - margin)`` where it is -1, else 0.

    The result equals ``torch.nn.functional.cosine_embedding_loss(input1, input2, target, margin,
    reduction=reduction)``, computed in float32 with float32 sums. Tensor values are never read, so the call does not
    wait for the device.

    Args:
        input1, input2: [N, D] or [D], bfloat16, float16, float32 or integers; a tensor [1, D] is used for all rows.
            Each may require grad. 1e-12 is added to the squared norm of each row.
        target: [N], or a scalar tensor if the inputs are [D], of any real type; it has no gradient, as in PyTorch.
        margin: the margin, a number.
        reduction: ``"mean"`` (over rows), ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input1``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the shape of the target, in the dtype that the
        inputs' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(cosine_embedding_loss, unknown)
    tensors = {"input1": input1, "input2": input2, "target": target}
    _COSINE_LOSS.check(tensors, reduction, inplace, integers=tuple(tensors), bools=tuple(tensors))
    margin = as_float(_COSINE_LOSS.caller, "margin", margin)
    _check_cosine_shapes(input1, input2, target)
    of_pairs = broadcast_shape(_COSINE_LOSS.caller, {"input1": input1.shape, "input2": input2.shape})
    rows = broadcast_shape(_COSINE_LOSS.caller, {"rows": of_pairs[:-1], "target": target.shape})
    shape = (*rows, of_pairs[-1])
    first, second = (as_computed(tensor, reduction).expand(shape) for tensor in as_floats([input1, input2]))
    if inplace:
        _COSINE_LOSS.check_inplace(tensors, first)
    if shape[-1] == 0:  # the cosine of rows without elements is 0
        first, second = pad(first, (0, 1)), pad(second, (0, 1))
    computed = {"input1": first, "input2": second, "target": target.detach().to(torch.float32).expand(rows)}
    return _COSINE_LOSS(computed, reduction, inplace, margin=margin)


class CosineEmbeddingLoss(LossModule):
    """Cosine embedding loss as a module, in place of ``torch.nn.CosineEmbeddingLoss``: :func:`cosine_embedding_loss`,
    computed by the kernels.

    Call the module with ``(input1, input2, target)``: rows [N, D], rows [N, D], and for each pair of rows 1 if they
    should be similar or -1 if not, [N]. The loss is a float32 scalar tensor, or with ``"none"`` a tensor [N]. The
    module keeps its options, and has neither parameters nor buffers.

    Args:
        margin: the cosine up to which a pair with target -1 has no loss.
        reduction: ``"mean"`` over the rows, ``"sum"``, or ``"none"``: a loss for each row.
        inplace: the backward writes the gradient over the memory of ``input1``, which must not be used afterwards.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return cosine_embedding_loss(input1, input2, target, self.margin, self.reduction, inplace=self.inplace)


HINGE_EMBEDDING_LOSS: Final = elementwise_loss(
    "hinge_embedding_loss",
    "distances",
    constant=("target",),
    integers=("input", "target"),
    bools=("target",),
    takes_integers_alone=True,
    typed=("input",),
    options={"margin": 1.0},
)


@hides_unknown
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the hinge embedding loss with the kernels of :mod:`nkilib.experimental.loss`: ``input`` where the target
    is 1, ``max(margin - input, 0)`` where it is -1.

    The result equals ``torch.nn.functional.hinge_embedding_loss(input, target, margin, reduction=reduction)``, computed
    in float32 with float32 sums. Where a target is neither 1 nor -1, both terms are added. Tensor values are never
    read, so the call does not wait for the device.

    Args:
        input: distances, bfloat16, float16, float32 or integers, of any shape.
        target: 1 or -1, in one of these types or of integers, of a shape that broadcasts with the input's. It has no
            gradient, as in PyTorch.
        margin: the margin, a finite number.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype of the input.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; an infinite margin; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(hinge_embedding_loss, unknown)
    tensors = {"input": input, "target": target.detach() if isinstance(target, Tensor) else target}
    HINGE_EMBEDDING_LOSS.check(tensors, reduction, inplace)
    margin = finite_number(HINGE_EMBEDDING_LOSS.caller, "margin", margin)
    return HINGE_EMBEDDING_LOSS(tensors, reduction, inplace, margin=margin)


class HingeEmbeddingLoss(LossModule):
    """Hinge embedding loss as a module, in place of ``torch.nn.HingeEmbeddingLoss``: :func:`hinge_embedding_loss`,
    computed by the kernels.

    Call the module with ``(input, target)``: distances of any shape, and 1 (similar) or -1 (dissimilar) for each, of a
    shape that broadcasts with the input's. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the
    broadcast shape. The module keeps its options, and has neither parameters nor buffers.

    Args:
        margin: the distance from which on a pair with target -1 has no loss, a finite number.
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        inplace: the backward writes the gradient over the memory of ``input``, which must not be used afterwards.
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return hinge_embedding_loss(input, target, self.margin, self.reduction, inplace=self.inplace)


_RANKING: Final = ("input1", "input2", "target")
MARGIN_RANKING_LOSS: Final = elementwise_loss(
    "margin_ranking_loss",
    "numbers",
    tensors=_RANKING,
    integers=_RANKING,
    takes_integers_alone=True,
    options={"margin": 0.0},
)


def _check_dimensions(caller: Caller, tensors: Mapping[str, Tensor]) -> None:
    """Check that all tensors have the same number of dimensions.

    Raises:
        RuntimeError: the numbers differ, as in PyTorch.
    """
    if len({tensor.dim() for tensor in tensors.values()}) > 1:
        sizes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise RuntimeError(
            f"{caller}: all input tensors should have the same number of dimensions, got {sizes}; reshape them"
        )


@hides_unknown
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the margin ranking loss, ``max(margin - target (input1 - input2), 0)``, with the kernels of
    :mod:`nkilib.experimental.loss`.

    The result equals ``torch.nn.functional.margin_ranking_loss(input1, input2, target, margin,
    reduction=reduction)``, computed in float32 with float32 sums. Where ``margin - target (input1 - input2)`` is
    exactly 0, gradients flow, as in PyTorch. Tensor values are never read, so the call does not wait for the device.

    Args:
        input1, input2: bfloat16, float16, float32 or integers, of the same number of dimensions; their shapes
            broadcast. Both may require grad.
        target: 1 where input1 should be larger, -1 where input2 should be larger; bfloat16, float16, float32 or
            integers, of the same number of dimensions, and its shape broadcasts with those of the inputs. It may
            require grad.
        margin: the margin, a finite number.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input1``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape, in the dtype that the
        tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; an infinite margin; ``inplace`` with a tensor that has gaps in memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(margin_ranking_loss, unknown)
    tensors = {"input1": input1, "input2": input2, "target": target}
    MARGIN_RANKING_LOSS.check(tensors, reduction, inplace)
    _check_dimensions(MARGIN_RANKING_LOSS.caller, tensors)
    margin = finite_number(MARGIN_RANKING_LOSS.caller, "margin", margin)
    return MARGIN_RANKING_LOSS(tensors, reduction, inplace, margin=margin)


class MarginRankingLoss(LossModule):
    """Margin ranking loss as a module, in place of ``torch.nn.MarginRankingLoss``: :func:`margin_ranking_loss`,
    computed by the kernels.

    Call the module with ``(input1, input2, target)``: scores, scores, and 1 where the first should be larger or -1
    where the second should, of the same number of dimensions and of shapes that broadcast. The loss is a float32 scalar
    tensor, or with ``"none"`` a tensor of the broadcast shape. The module keeps its options, and has neither parameters
    nor buffers.

    Args:
        margin: the difference, a finite number, from which on a pair in the right order has no loss.
        reduction: ``"mean"`` over the elements, ``"sum"``, or ``"none"``: a loss for each element.
        inplace: the backward writes the gradient over the memory of ``input1``, which must not be used afterwards.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return margin_ranking_loss(input1, input2, target, self.margin, self.reduction, inplace=self.inplace)


_TRIPLET: Final = ("anchor", "positive", "negative")


def _triplet_coefficients(call: Call) -> int:
    from nkilib.experimental.loss.rowwise.triplet_distances import num_coefficients  # loading it takes long

    return num_coefficients(call.options["p"], call.options["swap"])


_TRIPLET_LOSS: Final = rowwise_loss(
    Caller("triplet_margin_loss", "anchor", "embeddings", counterpart("triplet_margin_loss")),
    RowInputs(_TRIPLET),
    options={"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False},
    forward_alone=("margin",),
    coefficients=_triplet_coefficients,
)


def _check_triplet_margin(caller: object, margin: float) -> None:
    if margin <= 0:
        raise ValueError(f"{caller}: margin must be greater than 0, got {margin}")


def _checked_triplet_options(margin: Any, p: Any, eps: Any, swap: Any) -> tuple[float, float, float]:
    caller = _TRIPLET_LOSS.caller
    margin, p, eps = (as_float(caller, *name) for name in (("margin", margin), ("p", p), ("eps", eps)))
    check_flags(caller, swap=swap)
    _check_triplet_margin(caller, margin)
    if not p >= 1:
        raise NotImplementedError(
            f"{caller}: p must be at least 1, which makes it a norm, got {p}; use {caller.instead}"
        )
    return margin, p, eps


def _check_triplet_lengths(lengths: Sequence[int], columns: int, swap: bool) -> None:
    """Check that no distance is between two tensors with rows of one element, if the broadcast rows are longer.

    PyTorch computes such a distance from the one element, before broadcasting; the kernels broadcast first.

    Args:
        lengths: the row length of each tensor.
        columns: the row length of the broadcast shape.
        swap: whether the distance of positive and negative counts too.

    Raises:
        NotImplementedError: there is such a distance.
    """
    from nkilib.experimental.loss.rowwise.triplet_distances import pairs_of  # loading it takes long

    for first, second in pairs_of(swap):
        if lengths[first] == lengths[second] == 1 and columns not in (0, 1):
            raise NotImplementedError(
                f"{_TRIPLET_LOSS.caller}: rows of {_TRIPLET[first]} and {_TRIPLET[second]} must have {columns} "
                f"elements like those of the third tensor, got 1, whose distance PyTorch does not repeat; use "
                f"{_TRIPLET_LOSS.caller.instead}"
            )


@hides_unknown
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    *,
    inplace: bool = False,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the triplet margin loss of each row, ``max(0, margin + d(anchor, positive) - d(anchor, negative))``.

    The distance d of two rows is the p-norm of their difference, after ``eps`` is added to each of its elements. The
    result equals ``torch.nn.functional.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap,
    reduction=reduction)``, computed in float32 with float32 sums. Tensor values are never read, so the call does not
    wait for the device.

    Args:
        anchor, positive, negative: [..., D], bfloat16, float16, float32 or integers; all of the same number of
            dimensions, of shapes that broadcast. Each may require grad.
        margin: the margin, greater than 0.
        p: the order of the norm, at least 1, infinity allowed; 1, 2 and infinity are faster and more accurate than
            others.
        eps: the number that is added to each difference.
        swap: take the smaller of d(anchor, negative) and d(positive, negative); where they are equal, each gets half of
            the gradient.
        reduction: ``"mean"`` (over rows), ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``anchor``, which must not be used afterwards.

    Returns:
        The loss: a float32 scalar tensor; for ``"none"``, a tensor of the broadcast shape without D, in the dtype that
        the tensors' dtypes promote to.

    Raises:
        TypeError: an argument has the wrong Python type, or a tensor is float64.
        ValueError: unknown ``reduction``; a margin that is not positive; ``inplace`` with a tensor that has gaps in
            memory.
        RuntimeError: incompatible shapes or devices; a complex tensor; ``inplace`` with a leaf that requires grad, with
            another tensor that overlaps it in memory, or under torch.compile.
        NotImplementedError: p below 1; a distance between two tensors with D = 1, if D of the third tensor is larger;
            an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(triplet_margin_loss, unknown)
    arguments = dict(zip(_TRIPLET, (anchor, positive, negative), strict=True))
    _TRIPLET_LOSS.check(arguments, reduction, inplace, integers=_TRIPLET)
    margin, p, eps = _checked_triplet_options(margin, p, eps, swap)
    _check_dimensions(_TRIPLET_LOSS.caller, arguments)
    shape = broadcast_shape(_TRIPLET_LOSS.caller, {name: tensor.shape for name, tensor in arguments.items()})
    if shape:
        _check_triplet_lengths([tensor.shape[-1] for tensor in arguments.values()], shape[-1], swap)
    computed = [as_computed(tensor, reduction).expand(shape) for tensor in as_floats(list(arguments.values()))]
    if inplace:
        _TRIPLET_LOSS.check_inplace(arguments, computed[0])
    if shape[-1:] in ((), (0,)):  # a number is a row, and a row without elements has a distance of 0
        computed = [tensor.reshape(1) if not shape else pad(tensor, (0, 1)) for tensor in computed]
    return _TRIPLET_LOSS(
        dict(zip(_TRIPLET, computed, strict=True)),
        reduction,
        inplace,
        margin=margin,
        p=p,
        eps=eps,
        swap=swap,
    )


class TripletMarginLoss(LossModule):
    """Triplet margin loss as a module, in place of ``torch.nn.TripletMarginLoss``: :func:`triplet_margin_loss`,
    computed by the kernels.

    Call the module with ``(anchor, positive, negative)``: three tensors [..., D] of the same number of dimensions, of
    shapes that broadcast. The loss is a float32 scalar tensor, or with ``"none"`` a tensor of the broadcast shape
    without D. The module keeps its options, and has neither parameters nor buffers.

    Args:
        margin: the distance, greater than 0, by which the negative should be farther from the anchor than the positive.
        p: the order of the norm, at least 1, infinity allowed.
        eps: the number that is added to each difference.
        swap: take the smaller of the distances of the negative from anchor and positive.
        reduction: ``"mean"`` over the rows, ``"sum"``, or ``"none"``: a loss for each row.
        inplace: the backward writes the gradient over the memory of ``anchor``, which must not be used afterwards.
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
        *,
        inplace: bool = False,
    ) -> None:
        super().__init__(reduction, inplace)
        _check_triplet_margin("TripletMarginLoss", margin)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the loss."""
        options = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return triplet_margin_loss(anchor, positive, negative, *options, inplace=self.inplace)
