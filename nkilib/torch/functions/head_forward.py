# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses computed inside the forward of their output layer, whose hooks gather the weights that FSDP2 shards.

``fully_shard(lm_head)`` gathers the weights when ``lm_head`` is called, frees them after its forward, and gathers them
again before its backward. ``lm_head.weight`` outside of a call is only a shard, so the loss replaces the forward for
one call. The hooks of FSDP2 inspect the inputs and outputs of that call, and cast them by the mixed precision policy:

- Only hidden states and targets are arguments of the call. Everything else is bound to the function that computes the
  results.
- The results are float32 and are not returned by the call, because the policy might cast them. The call returns a
  token, a number 0, on which the results depend. So the token's hook gathers the weights before the backward of any
  result needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# A function of hidden states, targets, weight and bias.
OfHead = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, ...]]


def is_fully_sharded(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was applied to the module, by itself or in a list. FSDP2 is not imported for the
    check.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def class_before_sharding(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, or the class that it had before ``fully_shard`` replaced it by a subclass."""
    kind = type(module)
    return kind.__bases__[-1] if is_fully_sharded(module) else kind


def check_linear_head(caller: str, head: nn.Module, instead: str) -> None:
    """Reject an output layer that does more than ``torch.nn.Linear``, because the results would ignore the rest.

    Args:
        caller: the public function that error messages name.
        head: the output layer.
        instead: the remedy that error messages name.

    Raises:
        TypeError: the layer is not a ``torch.nn.Linear``, or its class overrides the forward.
        ValueError: the layer has an instance forward, or hooks other than those of ``fully_shard``.
    """
    kind = class_before_sharding(head)
    if not issubclass(kind, nn.Linear) or kind.forward is not nn.Linear.forward:
        raise TypeError(
            f"{caller}: lm_head must be a torch.nn.Linear, whose weight the loss uses, got "
            f"{kind.__module__}.{kind.__name__}; {instead}"
        )
    hooks = (head._forward_pre_hooks, head._forward_hooks, head._backward_pre_hooks, head._backward_hooks)
    if not all(_is_of_fsdp(hook) for registered in hooks for hook in registered.values()) or "forward" in vars(head):
        raise ValueError(
            f"{caller}: lm_head must have no hooks but those of fully_shard and no forward of its own, which would not "
            f"run, since the loss uses only its weight; {instead}"
        )


def _is_of_fsdp(hook: object) -> bool:
    """Return whether ``fully_shard`` registered the hook; bound methods and their wrappers have its module's name."""
    return getattr(hook, "__module__", "").startswith("torch.distributed.fsdp.")


def results_in_forward(head: Any, hidden: Tensor, target: Tensor, function: OfHead) -> tuple[Tensor, ...]:
    """Return the results of ``function``, called with the whole weight of an output layer.

    Args:
        head: the output layer, a ``torch.nn.Linear``. It is called only if ``fully_shard`` was applied to it.
        hidden: [..., D], cast by the policy of ``head`` if the policy casts inputs.
        target: integers, which no policy casts.
        function: a function of hidden states, targets, weight and bias. The tensors that it returns may have any type.

    Returns:
        The results of ``function``, in their own dtypes even under a policy; copies if ``head`` is called and its
        backward has to gather.
    """
    if not is_fully_sharded(head):
        return function(hidden, target, head.weight, head.bias)
    results: tuple[Tensor, ...] = ()

    def forward(hidden: Tensor, target: Tensor) -> Tensor:
        nonlocal results
        results = function(hidden, target, head.weight, head.bias)
        make_token: Callable[..., Tensor] = _Token.apply
        return make_token(*results)

    with _replaced_forward(head, forward):
        token = head(hidden, target)
    if not token.requires_grad:
        return results
    after: Callable[..., tuple[Tensor, ...]] = _After.apply
    return after(token, *results)


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Make a call of the module run ``forward``, between the module's hooks."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


class _Token(torch.autograd.Function):
    """The token that a call of the head returns: a number that requires a gradient if a result does. Its backward runs
    before that of the results, and adds nothing to their gradients.
    """

    @staticmethod
    def forward(ctx: Any, *results: Tensor) -> Tensor:
        ctx.results = len(results)
        return torch.zeros((), dtype=torch.float32, device=results[0].device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.results


class _After(torch.autograd.Function):
    """Copies of the results, whose backward first starts the backward of the token (:class:`_Token`), with a gradient
    of 0.
    """

    @staticmethod
    def forward(ctx: Any, token: Tensor, *results: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.token = token.detach()
        copies = tuple(result.clone() for result in results)
        needs = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*(copy for copy, needed in zip(copies, needs, strict=True) if not needed))
        return copies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        return torch.zeros_like(ctx.token), *upstream
