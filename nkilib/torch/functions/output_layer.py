# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Two ways to compute a loss inside calls of the output layer, where FSDP2's hooks gather the sharded weight.

- :func:`chunked_loss`, for a loss of logits: calls the layer for one chunk of the tokens at a time, so that only one
  chunk's logits are in memory.
- :func:`results_in_forward`, for a loss of hidden states and weight: calls the layer once, with the loss in place of
  its forward. :func:`check_linear_head` rejects layers that do more than the loss computes.

:func:`is_fully_sharded` tells whether FSDP2 shards a module, :func:`class_before_sharding` returns the class that the
module had before, and :func:`has_only_hooks_of_fsdp` tells whether all its hooks are FSDP2's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nkilib.torch.dispatch.dtensors import dtensor

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_fully_sharded(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was applied to the module, alone or in a list of modules.

    The check does not import FSDP2.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


# A function of logits and targets.
Loss = Callable[[Tensor, Tensor], Tensor]


class _Chunk(NamedTuple):
    """A chunk of the tokens.

    Attributes:
        first: the index of the first token of the chunk.
        hidden: the hidden states [tokens, width], detached.
        target: the targets [tokens].
    """

    first: int
    hidden: Tensor
    target: Tensor


def _fsdp(head: nn.Module) -> FSDPModule | None:
    """Return the module, typed as FSDP2's class, if ``fully_shard`` was applied to it, else None.

    Raises:
        NotImplementedError: FSDP1 shards the module.
    """
    for parameter in head.parameters():
        if getattr(parameter, "_is_flat_param", False):  # as FSDP1 marks its own
            raise NotImplementedError(
                "chunked_loss: the output layer is sharded by FullyShardedDataParallel, which takes one forward for "
                "each backward; use torch.distributed.fsdp.fully_shard"
            )
    return cast("FSDPModule", head) if is_fully_sharded(head) else None


@contextmanager
def _gathered(module: FSDPModule) -> Iterator[None]:
    """Return a context in which FSDP2 keeps the module's weights gathered from one chunk of tokens to the next."""
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


def _local_rows(hidden: Tensor) -> Tensor:
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


def _distributed(rows: Tensor, like: DTensor) -> DTensor:
    """Return this rank's rows as a DTensor [tokens, width] on the mesh of ``like``, the DTensor of all hidden states.

    A mesh dimension that shards tokens in ``like`` shards the rows; any other mesh dimension keeps its placement.
    """
    from torch.distributed.tensor import DTensor, Shard

    placements = [Shard(0) if placement.is_shard() else placement for placement in like.placements]
    return DTensor.from_local(rows, like.device_mesh, placements, run_check=False)


def _chunks(hidden: Tensor, local: Tensor, target: Tensor, num_chunks: int) -> Iterator[_Chunk]:
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
        yield _Chunk(at * size, chunk.detach(), labels[at * size : at * size + rows.shape[0]])


class _Gradients(NamedTuple):
    """The gradients of a chunk's loss with respect to its hidden states and to each parameter of the output layer; None
    for a tensor that has none.
    """

    of_hidden: Tensor | None
    of_parameters: Sequence[Tensor | None]


def _gradients(value: Tensor, hidden: Tensor, parameters: Sequence[Tensor]) -> _Gradients:
    if not hidden.requires_grad:
        return _Gradients(None, torch.autograd.grad(value, parameters, allow_unused=True))
    of_hidden, *of_parameters = torch.autograd.grad(value, [hidden, *parameters], allow_unused=True)
    return _Gradients(of_hidden, of_parameters)


def _gradient_beside_module(value: Tensor, hidden: Tensor) -> _Gradients:
    """Run the backward of a chunk's loss, ``value``, and return only the gradient of its hidden states.

    FSDP2's module itself collects the gradients of its parameters, and does so only in a backward.
    """
    value.backward()  # type: ignore[no-untyped-call]
    of_hidden, hidden.grad = hidden.grad, None
    return _Gradients(of_hidden, ())


def _add(sums: list[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """Add the gradients of one chunk to ``sums``, which has an item for each tensor.

    The first gradient of a tensor is copied, because other tensors may share its memory.
    """
    for at, gradient in enumerate(gradients):
        if gradient is not None:
            known = sums[at]
            sums[at] = gradient.to(torch.float32, copy=True) if known is None else known.add_(gradient)


def _of_tokens(gradient: Tensor, hidden: Tensor) -> Tensor:
    """Return this rank's rows of ``gradient``, the gradient of ``hidden``, the hidden states of a chunk.

    If ``gradient`` is a DTensor of partial sums, they are first added over the ranks.
    """
    placed, like = dtensor(gradient), dtensor(hidden)
    if placed is None or like is None:
        return gradient
    return placed.redistribute(placements=like.placements).to_local()


def _as_hidden(rows: Tensor, hidden: Tensor) -> Tensor:
    """Return ``rows``, the gradient of this rank's tokens, in the shape and placement of ``hidden``."""
    placed = dtensor(hidden)
    if placed is None:
        return rows.view(hidden.shape)
    from torch.distributed.tensor import DTensor

    local = rows.view(placed.to_local().shape)
    return DTensor.from_local(
        local, placed.device_mesh, placed.placements, run_check=False, shape=placed.shape, stride=placed.stride()
    )


class _KnownGradients(torch.autograd.Function):
    """An autograd function that returns a loss whose gradients are already computed; its backward scales and returns
    them.

    ``apply`` takes the gradients and the tensors that they belong to.
    """

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
                "chunked_loss: its gradients have been passed on, and their memory with them; call it again for a "
                "second backward"
            )
        ctx.gradients = []
        for gradient in gradients:
            placed = dtensor(gradient)
            (gradient if placed is None else placed.to_local()).mul_(upstream)
        return None, None, *gradients


def chunked_loss(hidden: Tensor, target: Tensor, head: nn.Module, loss: Loss, num_chunks: int) -> Tensor:
    """Return the sum over chunks of tokens of ``loss(head(hidden), target)``, a scalar tensor.

    The backward of a chunk runs before the forward of the next one. The gradients of ``hidden`` and of the parameters
    of ``head`` (the latter summed in float32) are kept until the backward of the result, which scales and returns them
    and may run only once. Under FSDP2, where a module collects the gradients of its own parameters, the parameters of
    ``head`` get their gradients during this call instead, unscaled: the weights of ``head`` are gathered once, and the
    gradients are reduced with the last chunk.

    Args:
        hidden: [..., width], the input of ``head``; if it is a DTensor, every rank must hold whole rows.
        target: [...], the targets of the same tokens; of a DTensor, this rank's part is used.
        head: the output layer. Tensors that it uses beside its input and its parameters get no gradient.
        loss: a function of logits [tokens, V] and targets [tokens] that returns a sum over tokens.
        num_chunks: the number of chunks, which have equally many tokens except for the last one.

    Raises:
        NotImplementedError: a DTensor whose rows are spread over ranks; FSDP1.
        ValueError: the number of targets is not the number of tokens; ``num_chunks`` is less than 1.
    """
    module, local = _fsdp(head), _local_rows(hidden)
    chunks = list(_chunks(hidden, local, target, num_chunks))
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    differentiates = torch.is_grad_enabled() and (hidden.requires_grad or bool(parameters))
    sums: list[Tensor | None] = [None] * len(parameters)
    of_rows = torch.zeros_like(local) if differentiates and hidden.requires_grad else None
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    with nullcontext() if module is None else _gathered(module):
        for chunk in chunks:
            chunk.hidden.requires_grad_(of_rows is not None)
            value = loss(head(chunk.hidden), chunk.target)
            total = total + value.detach()
            if not differentiates:
                continue
            if module is None:
                of_chunk = _gradients(value, chunk.hidden, parameters)
            else:
                module.set_requires_gradient_sync(chunk is chunks[-1], recurse=False)
                of_chunk = _gradient_beside_module(value, chunk.hidden)
            _add(sums, of_chunk.of_parameters)
            if of_rows is not None and of_chunk.of_hidden is not None:
                of_rows[chunk.first : chunk.first + len(chunk.target)] = _of_tokens(of_chunk.of_hidden, chunk.hidden)
    if not differentiates:
        return total
    gradients = [None if of_rows is None else _as_hidden(of_rows, hidden), *sums]
    kept = [(tensor, own) for tensor, own in zip((hidden, *parameters), gradients, strict=True) if own is not None]
    if not kept:
        return total
    known_gradients: Callable[..., Tensor] = _KnownGradients.apply
    return known_gradients(total, [own.to(tensor.dtype) for tensor, own in kept], *(tensor for tensor, _ in kept))


# A function of hidden states, targets, weight and bias.
OfHead = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, ...]]


def class_before_sharding(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, or the class that it had before ``fully_shard`` replaced it by a subclass."""
    kind = type(module)
    return kind.__bases__[-1] if is_fully_sharded(module) else kind


def _is_of_fsdp(hook: object) -> bool:
    # The hooks of fully_shard, also bound or wrapped ones, have the name of one of FSDP2's modules.
    return getattr(hook, "__module__", "").startswith("torch.distributed.fsdp.")


def has_only_hooks_of_fsdp(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` registered all hooks of a module."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return all(_is_of_fsdp(hook) for registered in hooks for hook in registered.values())


def check_linear_head(caller: str, head: nn.Module, instead: str) -> None:
    """Check that an output layer does no more than ``torch.nn.Linear``, because a loss would ignore the rest.

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
    if not has_only_hooks_of_fsdp(head) or "forward" in vars(head):
        raise ValueError(
            f"{caller}: lm_head must have no hooks but those of fully_shard and no forward of its own, which would not "
            f"run, since the loss uses only its weight; {instead}"
        )


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Return a context in which a call of the module runs ``forward`` in place of the module's forward; its hooks
    still run.
    """
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


class _Token(torch.autograd.Function):
    """An autograd function that returns the *token*, the number 0 that a call of the output layer returns in place of
    the results. It requires a gradient if one of the results does.

    Its backward runs before the backward of the results, and adds nothing to their gradients.
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
    """An autograd function that copies the results. Its backward first starts the backward of the token
    (:class:`_Token`), with a gradient of 0.
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


def results_in_forward(head: Any, hidden: Tensor, target: Tensor, function: OfHead) -> tuple[Tensor, ...]:
    """Return the results of ``function``, called with the whole weight of an output layer.

    ``fully_shard(lm_head)`` gathers the weight when ``lm_head`` is called, frees it after its forward, and gathers it
    again before its backward; outside of a call, ``lm_head.weight`` is only a shard. So ``function`` replaces the
    forward for one call. FSDP2's hooks cast the inputs and outputs of that call by the mixed precision policy:

    - Only hidden states and targets are arguments of the call.
    - The policy would cast results, so the call does not return them. It returns a *token*, the number 0, on which the
      results depend: a hook on the token gathers the weight before the backward of any result needs it.

    Args:
        head: the output layer, a ``torch.nn.Linear``. It is called only if ``fully_shard`` was applied to it.
        hidden: [..., D], cast by the policy of ``head`` if the policy casts inputs.
        target: integers, which no policy casts.
        function: a function of hidden states, targets, weight and bias. The tensors that it returns may have any type.

    Returns:
        The results of ``function``, in their own dtypes even under a policy. They are copies if ``head`` is called and
        one of them requires a gradient.
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
