# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``triplet_margin_loss`` and ``TripletMarginLoss``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor
from torch.nn.functional import pad

from nkilib.experimental.loss import triplet_margin_loss_backward, triplet_margin_loss_forward
from nkilib.experimental.loss.triplet_margin.host.pairs import num_coefficients, pairs_of
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.checks import check_flag, checked_number
from nkilib.torch.dispatch.losses import as_computed
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.rowwise import RowInputs, as_floats, rowwise_loss

_NAMES: Final = ("anchor", "positive", "negative")


_LOSS: Final = rowwise_loss(
    Caller("triplet_margin_loss", "anchor", "embeddings", "torch.nn.functional.triplet_margin_loss"),
    (triplet_margin_loss_forward, triplet_margin_loss_backward),
    RowInputs(_NAMES),
    options={"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False},
    forward_alone=("margin",),
    coefficients=lambda call: num_coefficients(call.options["p"], call.options["swap"]),
)


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
) -> Tensor:
    """Triplet margin loss ``max(0, margin + d(anchor, positive) - d(anchor, negative))``, a row each.

    d is the p-norm of the difference, to whose elements eps is added. Equals
    ``torch.nn.functional.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction=reduction)``,
    in float32, and sums are float32. No value is looked at, so nothing waits for the device.

    Args:
        anchor, positive, negative: [..., D], bfloat16, float16 or float32, or of integers; all of as many dimensions,
            of shapes that broadcast. Each may require grad.
        margin: greater than 0.
        p: of the norm, at least 1, also infinity; 1, 2 and infinity are faster and more accurate than others.
        eps: added to each difference.
        swap: take the smaller of d(anchor, negative) and d(positive, negative); where they are equal, each gets half of
            the gradient.
        reduction: ``"mean"`` (over rows), ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``anchor``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shape without D, in the type that those of the
        tensors promote to.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; a margin that is not positive; ``inplace`` of a tensor with gaps.
        RuntimeError: shapes or devices do not fit; a complex tensor; ``inplace`` of a leaf, or under torch.compile.
        NotImplementedError: p below 1; two tensors of rows of one element and a third one of longer rows; another
            device; a part of a tensor; a derivative in forward mode.
    """
    given = dict(zip(_NAMES, (anchor, positive, negative), strict=True))
    _LOSS.check(given, reduction, inplace, integers=_NAMES)
    margin, p, eps = _checked_options(margin, p, eps, swap)
    dims = {each.dim() for each in given.values()}
    if len(dims) > 1:
        raise RuntimeError(
            f"{_LOSS.caller}: anchor, positive and negative must have the same number of dimensions, got "
            f"{anchor.dim()}, {positive.dim()} and {negative.dim()}; reshape them"
        )
    shape = broadcast_shape(_LOSS.caller, {name: each.shape for name, each in given.items()})
    if shape:
        _check_lengths([each.shape[-1] for each in given.values()], shape[-1], swap)
    computed = [as_computed(each, reduction).expand(shape) for each in as_floats(list(given.values()))]
    if inplace:
        _LOSS.check_inplace(anchor, computed[0])
    if shape[-1:] in ((), (0,)):  # a number is a row, and a row without elements has a distance of 0
        computed = [each.reshape(1) if not shape else pad(each, (0, 1)) for each in computed]
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
    """The numbers among them."""
    caller = _LOSS.caller
    margin, p, eps = (checked_number(caller, *each) for each in (("margin", margin), ("p", p), ("eps", eps)))
    check_flag(caller, "swap", swap)
    if margin <= 0:
        raise ValueError(f"{caller}: margin must be greater than 0, got {margin}")
    if not p >= 1:
        raise NotImplementedError(
            f"{caller}: p must be at least 1, which makes it a norm, got {p}; use {caller.instead}"
        )
    return margin, p, eps


def _check_lengths(lengths: Sequence[int], columns: int, swap: bool) -> None:
    """Refuse two tensors of rows of one element where the third one is longer: PyTorch does not repeat their distance.

    Raises:
        NotImplementedError: always then.
    """
    for first, second in pairs_of(swap):
        if lengths[first] == lengths[second] == 1 and columns not in (0, 1):
            raise NotImplementedError(
                f"{_LOSS.caller}: rows of {_NAMES[first]} and {_NAMES[second]} must have {columns} elements as those "
                f"of the third tensor, got 1, of which PyTorch takes the distance as it is; use {_LOSS.caller.instead}"
            )


class TripletMarginLoss(LossModule):
    """``torch.nn.TripletMarginLoss`` on the kernels.

    Args:
        margin, p, eps, swap, reduction, inplace: as for :func:`triplet_margin_loss`.
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
        """The loss."""
        options = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return triplet_margin_loss(anchor, positive, negative, *options, inplace=self.inplace)
