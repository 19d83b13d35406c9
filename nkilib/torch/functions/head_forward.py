# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses computed inside the forward of their output layer, whose hooks gather the weights that FSDP2 shards.

``fully_shard(lm_head)`` gathers the weights when ``lm_head`` is called, frees them after its forward, and gathers them
again before its backward. Whoever takes ``lm_head.weight`` without a call gets a shard, so the loss replaces the
forward for one call. Hooks of FSDP2 look at what goes in and comes out, and cast it as the mixed precision policy says:

- Only hidden states and targets are arguments of the call. All else comes with the function that computes the results.
- Results are float32, and not in what the call returns. A token is, which the policy may cast: a number 0, of which the
  results depend on the way out. So its hook gathers the weights before the backward of any result needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Of hidden states, targets, weight and bias.
OfHead = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, ...]]


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was given the module, by itself or in a list. FSDP2 is not imported to find out."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def class_before_sharding(module: nn.Module) -> type[nn.Module]:
    """The class of a module, or the one that it had before ``fully_shard`` gave it a subclass of that."""
    kind = type(module)
    return kind.__bases__[-1] if is_fully_sharded(module) else kind


def check_linear_head(caller: str, head: nn.Module, instead: str) -> None:
    """Refuse an output layer that does more than ``torch.nn.Linear``, of which the results would not know.

    Args:
        caller: the public function, for errors.
        head: the output layer.
        instead: what to do, for errors.

    Raises:
        TypeError: it is not a ``torch.nn.Linear``, or has another forward.
        ValueError: it has a forward of its own, or other hooks than those of ``fully_shard``.
    """
    kind = class_before_sharding(head)
    if not issubclass(kind, nn.Linear) or kind.forward is not nn.Linear.forward:
        raise TypeError(
            f"{caller}: lm_head must be a torch.nn.Linear, of which the loss takes the weight, got "
            f"{kind.__module__}.{kind.__name__}; {instead}"
        )
    hooks = (head._forward_pre_hooks, head._forward_hooks, head._backward_pre_hooks, head._backward_hooks)
    if not all(_is_of_fsdp(hook) for each in hooks for hook in each.values()) or "forward" in vars(head):
        raise ValueError(
            f"{caller}: lm_head must have no hooks but those of fully_shard and no forward of its own, which would not "
            f"run, since the loss takes its weight alone; {instead}"
        )


def _is_of_fsdp(hook: object) -> bool:
    """Whether ``fully_shard`` registered the hook: bound methods and their wrappers have the name of its module."""
    return getattr(hook, "__module__", "").startswith("torch.distributed.fsdp.")


def results_in_forward(head: Any, hidden: Tensor, target: Tensor, function: OfHead) -> tuple[Tensor, ...]:
    """What ``function`` returns, of the whole weight of an output layer.

    Args:
        head: the output layer, a ``torch.nn.Linear``. It is called if ``fully_shard`` was given it, and only then.
        hidden: [..., D], cast by the policy of ``head`` if that casts inputs.
        target: integers, which no policy casts.
        function: of hidden states, targets, weight and bias. The tensors it returns may have any type.

    Returns:
        Its results, under a policy too in the types that they have: copies where ``head`` is called and its backward
        has to gather.
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
    """Have a call of the module run ``forward``, between its hooks."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


class _Token(torch.autograd.Function):
    """A number that requires a gradient if a result does. Its backward gives them none, and precedes theirs."""

    @staticmethod
    def forward(ctx: Any, *results: Tensor) -> Tensor:
        ctx.results = len(results)
        return torch.zeros((), dtype=torch.float32, device=results[0].device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.results


class _After(torch.autograd.Function):
    """Copies of results, whose backward starts with that of the token: by a gradient of 0."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, *results: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.token = token.detach()
        copies = tuple(each.clone() for each in results)
        needs = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*(copy for copy, needed in zip(copies, needs, strict=True) if not needed))
        return copies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        return torch.zeros_like(ctx.token), *upstream
