# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operators that return gradients together with the loss: their backward only multiplies the gradients."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from nkilib.torch.dispatch.autograd import differentiated, refuse_second, register_formula
from nkilib.torch.dispatch.launch import as_tuple
from nkilib.torch.dispatch.memory import ReusedMemory
from nkilib.torch.dispatch.operator import Call, Operator

_REMEDY: Final = "compute the loss again for another backward, or leave memory_limit out"


def differentiate_by_results(operator: Operator) -> None:
    """Register the derivative of an operator whose first result is a scalar, and whose other results are its gradients
    ``grad_<input>``.

    The backward multiplies the gradients in place and returns them, so a second backward raises PyTorch's error for
    saved tensors that were changed in place, whichever gradients it is asked for. Gradients that are not needed are not
    multiplied.
    """
    names = [differentiated(output.name) for output in operator.outputs[1:]]

    def setup(ctx: Any, call: Call, returned: Any) -> None:
        _, *gradients = as_tuple(returned)
        ctx.save_for_backward(*gradients)
        ctx.reused = ReusedMemory(operator.qualified(), _REMEDY)
        ctx.mark_non_differentiable(*gradients)
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, upstream: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a product without the graph of its factors would be taken for a constant
            refuse_second(operator)
        ctx.reused.check()
        inputs = [operand.name for operand in operator.inputs]
        needs = dict(zip(inputs, ctx.needs_input_grad, strict=False))
        needed = {name: saved for name, saved in zip(names, ctx.saved_tensors, strict=True) if needs.get(name)}
        if upstream is None or not needed:
            return (None,) * len(inputs)
        ctx.reused.is_spent = True
        return tuple(needed[name].mul_(upstream) if name in needed else None for name in inputs)

    register_formula(operator, setup, gradients)
