# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operators that return gradients together with the loss: their backward only multiplies the gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.autograd import differentiated, refuse_second, register_formula
from nkilib.torch.dispatch.launch import as_tuple
from nkilib.torch.dispatch.operator import Call, Operator


def differentiate_by_results(operator: Operator) -> None:
    """Register the derivative of an operator whose first result is a scalar, and whose other results are its gradients
    ``grad_<input>``.

    The backward multiplies the gradients in place and returns them, so a second backward raises PyTorch's error for
    saved tensors that were changed in place. Gradients that are not needed are not multiplied.
    """
    names = [differentiated(output.name) for output in operator.outputs[1:]]

    def setup(ctx: Any, call: Call, returned: Any) -> None:
        _, *gradients = as_tuple(returned)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(*gradients)
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, upstream: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a product without the graph of its factors would be taken for a constant
            refuse_second(operator)
        needs = dict(zip((operand.name for operand in operator.inputs), ctx.needs_input_grad, strict=False))
        by_name = dict(zip(names, ctx.saved_tensors, strict=True))
        if upstream is None:
            return (None,) * len(operator.inputs)
        return tuple(
            by_name[operand.name].mul_(upstream) if needs.get(operand.name) and operand.name in by_name else None
            for operand in operator.inputs
        )

    register_formula(operator, setup, gradients)
