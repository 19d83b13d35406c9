"""What ``cross_entropy(..., return_outputs=True)`` returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CrossEntropyOutputs(NamedTuple):
    """The loss and what the same pass over the logits yields beside it.

    "Per position" is the shape of class-index targets. Logits are those after ``logit_softcap``. At ignored positions
    lse, argmax and entropy are those of the logits, the rest is 0.

    Attributes:
        loss: float32, reduced as asked for; it includes ``z_loss``. Differentiable.
        lse: float32 per position, log-sum-exp of the logits, in nats. Differentiable.
        z_loss: float32, the part of the loss that ``lse_square_scale`` adds, reduced as the loss. Differentiable.
        logprob: float32 per position, log-probability of the target in nats, at most 0. Differentiable. None for class
            probabilities, which have no single target.
        argmax: int64 per position, the first class with the largest logit.
        entropy: float32 per position, of the softmax of the logits, in nats. Not differentiable.
    """

    loss: Tensor
    lse: Tensor
    z_loss: Tensor
    logprob: Tensor | None
    argmax: Tensor
    entropy: Tensor
