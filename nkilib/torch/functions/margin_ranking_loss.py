# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``margin_ranking_loss`` and ``MarginRankingLoss``: the penalty of two numbers in the wrong order, or too close."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
from nkilib.experimental.loss import margin_ranking_loss_backward, margin_ranking_loss_forward
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import finite_number
from nkilib.torch.losses.shapes import check_dimensions

_TENSORS: Final = ("input1", "input2", "target")
MARGIN_RANKING_LOSS: Final = elementwise_loss(
    "margin_ranking_loss",
    "numbers",
    (margin_ranking_loss_forward, margin_ranking_loss_backward),
    tensors=_TENSORS,
    integers=_TENSORS,
    takes_integers_alone=True,
    options={"margin": 0.0},
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
            broadcast.
        target: 1 where input1 should be the larger one, -1 where input2 should be; bfloat16, float16, float32 or
            integers, of the same number of dimensions, and its shape broadcasts with those of the inputs. Each of the
            three may require grad.
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
    if all(isinstance(tensor, Tensor) for tensor in tensors.values()):  # the loss rejects the others
        check_dimensions(MARGIN_RANKING_LOSS.caller, tensors)
    return MARGIN_RANKING_LOSS(
        tensors, reduction, inplace, margin=finite_number(MARGIN_RANKING_LOSS.caller, "margin", margin)
    )


class MarginRankingLoss(LossModule):
    """``torch.nn.MarginRankingLoss``, computed by the kernels.

    Args:
        margin, reduction, inplace: see :func:`margin_ranking_loss`.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return margin_ranking_loss(input1, input2, target, self.margin, self.reduction, inplace=self.inplace)
