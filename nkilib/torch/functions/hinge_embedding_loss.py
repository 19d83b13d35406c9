# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``hinge_embedding_loss`` and ``HingeEmbeddingLoss``: losses of distances between similar or dissimilar items."""

from __future__ import annotations

from typing import Final

from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.keywords import NoKeywords, hides_unknown, refuse_unknown
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
    return HINGE_EMBEDDING_LOSS(
        tensors, reduction, inplace, margin=finite_number(HINGE_EMBEDDING_LOSS.caller, "margin", margin)
    )


class HingeEmbeddingLoss(LossModule):
    """``torch.nn.HingeEmbeddingLoss``, computed by the kernels.

    Args:
        margin, reduction, inplace: see :func:`hinge_embedding_loss`.
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean", *, inplace: bool = False) -> None:
        super().__init__(reduction, inplace)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return hinge_embedding_loss(input, target, self.margin, self.reduction, inplace=self.inplace)
