# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Output layer, loss and backward for a chunk of the tokens at a time: there are never logits of more than a chunk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nkilib.torch.dispatch.dtensors import dtensor

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

Loss = Callable[[Tensor, Tensor], Tensor]


class Chunk(NamedTuple):
    """Some of the tokens.

    Attributes:
        first: of them.
        hidden: [tokens, width], detached.
        target: [tokens].
    """

    first: int
    hidden: Tensor
    target: Tensor


def chunked_loss(hidden: Tensor, target: Tensor, head: nn.Module, loss: Loss, num_chunks: int) -> Tensor:
    """The sum over chunks of tokens of ``loss(head(hidden), target)``, without dimensions.

    The backward of a chunk runs before the forward of the next one. Gradients of ``hidden`` and of the parameters of
    ``head``, these summed up in float32, wait for the backward of the result, which scales them and hands them on,
    once. Under FSDP2, where a module collects the gradients of its own parameters, those of ``head`` arrive
    during this call instead, and unscaled: its weights are gathered once, and its gradients reduced with the last
    chunk.

    Args:
        hidden: [..., width], the input of ``head``; of a DTensor every rank has to have whole rows.
        target: [...] of the same tokens, of a DTensor those that this rank has.
        head: the output layer. What it takes beside its input and its parameters has no gradient.
        loss: a sum over tokens, of logits [tokens, V] and target [tokens].
        num_chunks: of as many tokens each, but for the last one.

    Raises:
        NotImplementedError: a DTensor whose rows are spread over ranks; FSDP1.
        ValueError: not one target for each token; ``num_chunks`` is less than 1.
    """
    module, local = _fsdp(head), _local_rows(hidden)
    chunks = list(_chunks(hidden, local, target, num_chunks))
    parameters = [each for each in head.parameters() if each.requires_grad]
    differentiates = torch.is_grad_enabled() and (hidden.requires_grad or bool(parameters))
    sums: list[Tensor | None] = [None] * len(parameters)
    of_rows = torch.zeros_like(local) if differentiates and hidden.requires_grad else None
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    with nullcontext() if module is None else _gathered(module):
        for each in chunks:
            each.hidden.requires_grad_(of_rows is not None)
            value = loss(head(each.hidden), each.target)
            total = total + value.detach()
            if not differentiates:
                continue
            if module is None:
                found = _gradients(value, each.hidden, parameters)
            else:
                module.set_requires_gradient_sync(each is chunks[-1], recurse=False)
                found = _gradient_beside_module(value, each.hidden)
            _add(sums, found.of_parameters)
            if of_rows is not None and found.of_hidden is not None:
                of_rows[each.first : each.first + len(each.target)] = _of_tokens(found.of_hidden, each.hidden)
    if not differentiates:
        return total
    kept = [] if of_rows is None else [Kept(hidden, _as_hidden(of_rows, hidden))]
    kept += [Kept(each, gradient) for each, gradient in zip(parameters, sums, strict=True) if gradient is not None]
    if not kept:
        return total
    handed_on: Callable[..., Tensor] = _HandedOn.apply
    return handed_on(total, [each.gradient.to(each.tensor.dtype) for each in kept], *(each.tensor for each in kept))


def _local_rows(hidden: Tensor) -> Tensor:
    """[tokens, width] of this rank, detached."""
    placed = dtensor(hidden)
    if placed is None:
        return hidden.detach().flatten(0, -2)
    for placement in placed.placements:
        if not (placement.is_replicate() or any(placement.is_shard(dim) for dim in range(placed.dim() - 1))):
            raise NotImplementedError(
                f"chunked_loss: hidden, a DTensor, must be replicated or sharded by tokens, got {placed.placements}; "
                f"pass hidden.redistribute(placements=[...]) with such placements"
            )
    return placed.to_local().detach().flatten(0, -2)


def _chunks(hidden: Tensor, local: Tensor, target: Tensor, num_chunks: int) -> Iterator[Chunk]:
    if num_chunks < 1:
        raise ValueError(f"chunked_loss: num_chunks must be 1 or more, got {num_chunks}")
    placed, own = dtensor(hidden), dtensor(target)
    labels = (target if own is None else own.to_local()).reshape(-1)
    if labels.shape[0] != local.shape[0]:
        raise ValueError(
            f"chunked_loss: there must be a target for each of the {local.shape[0]} tokens of this rank, got "
            f"{labels.shape[0]}; pass target of the shape of hidden without its last dimension"
        )
    size = max(1, -(-local.shape[0] // num_chunks))
    for at, rows in enumerate(torch.split(local, size)):
        chunk = rows if placed is None else _distributed(rows, placed)
        yield Chunk(at * size, chunk.detach(), labels[at * size : at * size + rows.shape[0]])


def _distributed(rows: Tensor, like: DTensor) -> DTensor:
    """Of the tokens of this rank a DTensor [tokens, width]: a shard of tokens is one of its first dimension."""
    from torch.distributed.tensor import DTensor, Shard

    placements = [Shard(0) if placement.is_shard() else placement for placement in like.placements]
    return DTensor.from_local(rows, like.device_mesh, placements, run_check=False)


def _of_tokens(gradient: Tensor, hidden: Tensor) -> Tensor:
    """This rank's part of the gradient of a chunk; what is a sum over ranks is summed up."""
    placed, like = dtensor(gradient), dtensor(hidden)
    if placed is None or like is None:
        return gradient
    return placed.redistribute(placements=like.placements).to_local()


def _as_hidden(rows: Tensor, hidden: Tensor) -> Tensor:
    """A gradient of the tokens of this rank in the shape of ``hidden``."""
    placed = dtensor(hidden)
    if placed is None:
        return rows.view(hidden.shape)
    from torch.distributed.tensor import DTensor

    local = rows.view(placed.to_local().shape)
    return DTensor.from_local(
        local, placed.device_mesh, placed.placements, run_check=False, shape=placed.shape, stride=placed.stride()
    )


class Kept(NamedTuple):
    """A tensor, and its gradient."""

    tensor: Tensor
    gradient: Tensor


class Gradients(NamedTuple):
    """Of a chunk, None where there is none."""

    of_hidden: Tensor | None
    of_parameters: Sequence[Tensor | None]


def _gradients(value: Tensor, hidden: Tensor, parameters: Sequence[Tensor]) -> Gradients:
    if not hidden.requires_grad:
        return Gradients(None, torch.autograd.grad(value, parameters, allow_unused=True))
    of_hidden, *of_parameters = torch.autograd.grad(value, [hidden, *parameters], allow_unused=True)
    return Gradients(of_hidden, of_parameters)


def _gradient_beside_module(value: Tensor, hidden: Tensor) -> Gradients:
    """The module collects those of its parameters itself, in a backward alone."""
    value.backward()  # type: ignore[no-untyped-call]
    of_hidden, hidden.grad = hidden.grad, None
    return Gradients(of_hidden, ())


def _add(sums: list[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """The first of a parameter is copied, for its memory may not be its own."""
    for at, gradient in enumerate(gradients):
        if gradient is not None:
            known = sums[at]
            sums[at] = gradient.to(torch.float32, copy=True) if known is None else known.add_(gradient)


def _fsdp(head: nn.Module) -> FSDPModule | None:
    """The module, if FSDP2 shards it by itself. Its own module is not imported to find out."""
    for each in head.parameters():
        if getattr(each, "_is_flat_param", False):  # as FSDP1 marks its own
            raise NotImplementedError(
                "chunked_loss: the output layer is sharded by FullyShardedDataParallel, which takes one forward for "
                "each backward; use torch.distributed.fsdp.fully_shard"
            )
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return head if fsdp is not None and isinstance(head, fsdp.FSDPModule) else None


@contextmanager
def _gathered(module: FSDPModule) -> Iterator[None]:
    """The weights of the module stay together for all chunks, instead of being gathered for each."""
    module.set_reshard_after_forward(False)
    module.set_reshard_after_backward(False)
    module.unshard()
    try:
        yield
    finally:
        module.set_reshard_after_forward(True)
        module.set_reshard_after_backward(True)
        module.set_requires_gradient_sync(True, recurse=False)
        module.reshard()


class _HandedOn(torch.autograd.Function):
    """A loss whose gradients are known, by the tensors that follow them."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor] = ctx.gradients
        if not gradients:
            raise RuntimeError(
                "chunked_loss: its gradients have been handed on, and their memory with them; call it again for a "
                "second backward"
            )
        ctx.gradients = []
        for each in gradients:
            placed = dtensor(each)
            (each if placed is None else placed.to_local()).mul_(upstream)
        return None, None, *gradients
