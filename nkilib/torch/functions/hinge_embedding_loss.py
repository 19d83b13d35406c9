# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``hinge_embedding_loss`` and ``HingeEmbeddingLoss``: distances of what is alike or not."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nkilib.experimental.loss import hinge_embedding_loss_backward, hinge_embedding_loss_forward
from nkilib.torch.losses.elementwise import elementwise_loss
from nkilib.torch.losses.modules import LossModule
from nkilib.torch.losses.numbers import finite_number

HINGE_EMBEDDING_LOSS: Final = elementwise_loss(
    "hinge_embedding_loss",
    "distances",
    (hinge_embedding_loss_forward, hinge_embedding_loss_backward),
    constant=("target",),
    integers=("input", "target"),
    takes_integers_alone=True,
    typed=("input",),
    options={"margin": 1.0},
)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    reduction: str = "mean",
    *,
    inplace: bool = False,
) -> Tensor:
    """Distances of what is alike, and what is left to a margin of others, on the kernels of
    :mod:`nkilib.experimental.loss`: ``input`` where the target is 1, ``max(margin - input, 0)`` where it is -1.

    Equals ``torch.nn.functional.hinge_embedding_loss(input, target, margin, reduction=reduction)``, in float32, and
    sums are float32. Where a target is neither, both count. No value is looked at, so nothing waits for the device.

    Args:
        input: distances, bfloat16, float16, float32 or integers, of any shape.
        target: 1 or -1, in one of these types or of integers; of a shape that broadcasts with the input's. There is no
            gradient of it, as in PyTorch.
        margin: finite.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: the backward writes the gradient over the memory of ``input``, which is not to be used afterwards.

    Returns:
        The loss: float32 without dimensions, or for ``"none"`` of the shapes' broadcast one, in the type of the
        input.

    Raises:
        TypeError: an argument has the wrong Python type; or float64.
        ValueError: unknown ``reduction``; an infinite margin; ``inplace`` of a tensor with gaps.
        RuntimeError: shapes or devices do not fit; a complex tensor; ``inplace`` of a leaf, or under torch.compile.
        NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
    """
    given = {"input": input, "target": target.detach() if isinstance(target, Tensor) else target}
    return HINGE_EMBEDDING_LOSS(
        given, reduction, inplace, margin=finite_number(HINGE_EMBEDDING_LOSS.caller, "margin", margin)
    )


class HingeEmbeddingLoss(LossModule):
    """``torch.nn.HingeEmbeddingLoss`` on the kernels.

    Args:
        margin, reduction, inplace: as for :func:`hinge_embedding_loss`.
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return hinge_embedding_loss(input, target, self.margin, self.reduction, inplace=self.inplace)
