# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The derivative of the row-wise cross-entropy: kernels for the logits, PyTorch's operators for probabilities and
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.autograd import OnceDifferentiable, differentiate
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.functions.cross_entropy.operators import BACKWARD, FORWARD, Columns
from nkilib.torch.functions.cross_entropy.soft_targets import soft_target_gradients


def soft_gradients(call: Call, needed: Mapping[str, bool]) -> dict[str, Tensor | None]:
    """Return the gradients of class probabilities and of class weights by the name of the input; the gradient of one
    that is not needed is None or missing.

    Args:
        call: the call of the backward.
        needed: for each input, whether it needs a gradient.
    """
    needs_target, needs_weight = needed["target"], needed["class_weight"]
    grad_loss = call.tensors.get("grad_loss")
    if grad_loss is None or not (needs_target or needs_weight):
        return {}
    apply: Callable[..., Tensor] = OnceDifferentiable.apply
    logits = apply(BACKWARD, call.first)
    target, weight = soft_target_gradients(
        logits,
        call.tensor("target"),
        call.tensors["class_weight"],
        call.tensor("maximum"),
        call.tensor("log_sum"),
        grad_loss,
        call.group(LossOptions),
        call.group(Columns).vocabulary(logits),
        needs_target,
        needs_weight,
    )
    return {"target": target, "class_weight": weight}


DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, soft_gradients)
