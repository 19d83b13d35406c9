# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The steps that derivatives of losses from hidden states share if each rank has a shard of the classes.

- :data:`COMPUTE_DTYPES`: the compute dtypes; ranks compare their index in this tuple;
- :class:`ShardOperands`: this rank's part of an output layer; :func:`claims_of_product`: properties of its matrix
  product that must be equal on all ranks. Cross-entropy and scores use both; the distillation has its own for two
  layers;
- :func:`save_for_backward`: saves the tensors of a forward; :func:`backward_call`: the call of the backward operator
  with these tensors; :func:`gradients_of_shard`: the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.torch.dispatch.autograd import Derivative
from nkilib.torch.dispatch.operator import Call
from nkilib.torch.functions.linear_cross_entropy.operators import Product

# The names of the dtypes of products; ranks compare the positions in it.
COMPUTE_DTYPES: Final = (None, "bfloat16", "float16", "float32")


class ShardOperands(NamedTuple):
    """The inputs of the forward operator of a shard, with this rank's classes.

    Attributes:
        input: the hidden states [N, D], the same on all ranks.
        linear_weight: the weight [classes of this rank, D].
        target: class indices [N], counted over all ranks.
        linear_bias: the bias [classes of this rank] float32, or None.
        grad_weight_sum: a float32 tensor of the shape of ``linear_weight``, to which its gradient is added; or None.
        temperatures: the temperatures of the positions, [N] or [1] float32, or None.
    """

    input: Tensor
    linear_weight: Tensor
    target: Tensor
    linear_bias: Tensor | None
    grad_weight_sum: Tensor | None
    temperatures: Tensor | None


def claims_of_product(operands: ShardOperands, product: Product) -> dict[str, float]:
    """Return the properties of the matrix product that must be equal on all ranks, by name. The ranks compare them.

    One property says whether ``input`` needs a gradient: the backward then communicates, so all ranks must do it, or
    none.
    """
    needs_gradient = operands.input.requires_grad and torch.is_grad_enabled()
    return {
        "features": operands.input.shape[1],
        "input requires grad": needs_gradient,
        "logit_scale": product.logit_scale,
        "temperature (a tensor)": operands.temperatures is not None,
        "compute_dtype (of none, bfloat16, float16, float32)": COMPUTE_DTYPES.index(product.compute_dtype),
    }


def _needed(ctx: Any, derivative: Derivative) -> dict[str, bool]:
    return derivative.needed(ctx.needs_input_grad[: len(derivative.forward.inputs)])


def _summed_over_ranks(part: Tensor, dtype: torch.dtype, group: dist.ProcessGroup | None) -> Tensor:
    dist.all_reduce(part, op=dist.ReduceOp.SUM, group=group)
    return part.to(dtype)


def save_for_backward(
    ctx: Any,
    derivative: Derivative,
    tensors: Mapping[str, Tensor | None],
    options: dict[str, Any],
    returned: dict[str, Tensor],
    grad_weight_sum: Tensor | None,
    further: Tensor | None = None,
) -> None:
    """Save the tensors for the backward of a shard, and tell autograd which results are constants.

    Args:
        ctx: the context of an autograd function whose ``apply`` takes first the inputs of the forward operator.
        derivative: the derivative that joins this forward operator with the backward operators of a shard.
        tensors: the inputs and results of the forward, by name.
        options: the options of the operators.
        returned: the differentiable results, by name.
        grad_weight_sum: the tensor that the backward adds to, or None.
        further: a tensor to save that is neither input nor result of the forward operator; None to save no such tensor.
    """
    ctx.save_for_backward(*(tensors[name] for name in derivative.saved), further)
    ctx.options = options
    # Not saved: micro-batches between this forward and its backward write to it too.
    ctx.written = {"grad_weight_sum": grad_weight_sum}
    derivative.mark_constants(ctx, Call(tensors, options), returned, _needed(ctx, derivative))


def backward_call(ctx: Any, derivative: Derivative) -> tuple[Call, Tensor | None]:
    """Return the backward's call, still without upstream gradients, and the tensor that :func:`save_for_backward` saved
    as ``further``.
    """
    *kept, further = ctx.saved_tensors
    return Call(dict(zip(derivative.saved, kept, strict=True)), ctx.options), further


def gradients_of_shard(ctx: Any, derivative: Derivative, call: Call, has_upstream: bool) -> tuple[Tensor | None, ...]:
    """Return the gradients of the forward operator's inputs, from this rank's classes.

    The gradient of ``input`` is summed over the ranks of ``ctx.group``.

    Args:
        ctx: the context in which :func:`save_for_backward` saved the tensors.
        derivative: the same as for :func:`save_for_backward`.
        call: the call of the backward, with upstream gradients.
        has_upstream: whether any upstream gradient is given; if not, nothing has to be computed.
    """
    needed = _needed(ctx, derivative)
    gradients = derivative.of_kernel(call, ctx.written, needed) if has_upstream else {}
    if "input" in gradients and needed["input"]:
        gradients["input"] = _summed_over_ranks(gradients["input"], call.first.dtype, ctx.group)
    return tuple(gradients.get(name) if is_needed else None for name, is_needed in needed.items())
