# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""An operator that returns gradients beside what they are gradients of: its backward only multiplies them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.autograd import differentiated, refuse_second, register_formula
from nkilib.torch.dispatch.launch import as_tuple
from nkilib.torch.dispatch.operator import Call, Operator


def differentiate_by_results(operator: Operator) -> None:
    """Register the derivative of the first result, a scalar, of which every other one is the gradient ``grad_<input>``.

    The backward multiplies in the memory of the results and hands it on, so a second one raises PyTorch's error for
    what was changed in place. Gradients that are not asked for are not multiplied.
    """
    names = [differentiated(each.name) for each in operator.outputs[1:]]

    def setup(ctx: Any, call: Call, returned: Any) -> None:
        _, *gradients = as_tuple(returned)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(*gradients)
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, upstream: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a product without the graph of its factors would be taken for a constant
            refuse_second(operator)
        needs = dict(zip((each.name for each in operator.inputs), ctx.needs_input_grad, strict=False))
        found = dict(zip(names, ctx.saved_tensors, strict=True))
        if upstream is None:
            return (None,) * len(operator.inputs)
        return tuple(
            found[each.name].mul_(upstream) if needs.get(each.name) and each.name in found else None
            for each in operator.inputs
        )

    register_formula(operator, setup, gradients)
