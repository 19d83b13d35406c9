# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``triplet_margin_loss`` and ``TripletMarginLoss``: the margin between two distances from an anchor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.core.host.options import as_float, check_flags
from nkilib.experimental.loss import triplet_margin_loss_backward, triplet_margin_loss_forward
from nkilib.experimental.loss.triplet_margin.host.pairs import num_coefficients, pairs_of
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller, counterpart
from nkilib.torch.dispatch.losses import as_computed
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss

_NAMES: Final = ("anchor", "positive", "negative")


_LOSS: Final = rowwise_loss(
    Caller("triplet_margin_loss", "anchor", "embeddings", counterpart("triplet_margin_loss")),
    (triplet_margin_loss_forward, triplet_margin_loss_backward),
    RowInputs(_NAMES),
    options={"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False},
    forward_alone=("margin",),
    coefficients=lambda call: num_coefficients(call.options["p"], call.options["swap"]),
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
        NotImplementedError: p below 1; two tensors whose rows have one element, with a third one whose rows are longer;
            an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(triplet_margin_loss, unknown)
    arguments = dict(zip(_NAMES, (anchor, positive, negative), strict=True))
    _LOSS.check(arguments, reduction, inplace, integers=_NAMES)
    margin, p, eps = _checked_options(margin, p, eps, swap)
    dims = {tensor.dim() for tensor in arguments.values()}
    if len(dims) > 1:
        raise RuntimeError(
            f"{_LOSS.caller}: anchor, positive and negative must have the same number of dimensions, got "
            f"{anchor.dim()}, {positive.dim()} and {negative.dim()}; reshape them"
        )
    shape = broadcast_shape(_LOSS.caller, {name: tensor.shape for name, tensor in arguments.items()})
    if shape:
        _check_lengths([tensor.shape[-1] for tensor in arguments.values()], shape[-1], swap)
    computed = [as_computed(tensor, reduction).expand(shape) for tensor in as_floats(list(arguments.values()))]
    if inplace:
        _LOSS.check_inplace(arguments, computed[0])
    if shape[-1:] in ((), (0,)):  # a number is a row, and a row without elements has a distance of 0
        computed = [tensor.reshape(1) if not shape else pad(tensor, (0, 1)) for tensor in computed]
    return _LOSS(
        dict(zip(_NAMES, computed, strict=True)),
        reduction,
        inplace,
        margin=margin,
        p=p,
        eps=eps,
        swap=swap,
    )


def _checked_options(margin: Any, p: Any, eps: Any, swap: Any) -> tuple[float, float, float]:
    """Return the options that are numbers as Python numbers."""
    caller = _LOSS.caller
    margin, p, eps = (as_float(caller, *name) for name in (("margin", margin), ("p", p), ("eps", eps)))
    check_flags(caller, swap=swap)
    if margin <= 0:
        raise ValueError(f"{caller}: margin must be greater than 0, got {margin}")
    if not p >= 1:
        raise NotImplementedError(
            f"{caller}: p must be at least 1, which makes it a norm, got {p}; use {caller.instead}"
        )
    return margin, p, eps


def _check_lengths(lengths: Sequence[int], columns: int, swap: bool) -> None:
    """Reject two tensors with rows of one element if the third one has longer rows: PyTorch does not repeat their
    distance.

    Raises:
        NotImplementedError: if the check fails.
    """
    for first, second in pairs_of(swap):
        if lengths[first] == lengths[second] == 1 and columns not in (0, 1):
            raise NotImplementedError(
                f"{_LOSS.caller}: rows of {_NAMES[first]} and {_NAMES[second]} must have {columns} elements like those "
                f"of the third tensor, got 1, whose distance PyTorch does not repeat; use {_LOSS.caller.instead}"
            )


class TripletMarginLoss(LossModule):
    """``torch.nn.TripletMarginLoss``, computed by the kernels.

    Args:
        margin, p, eps, swap, reduction, inplace: see :func:`triplet_margin_loss`.
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
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: margin must be greater than 0, got {margin}")
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the loss."""
        options = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return triplet_margin_loss(anchor, positive, negative, *options, inplace=self.inplace)
