# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Output layers as the plain tensors that operators take, from DTensors or from padded parts.

- :func:`local_layer`: this rank's part of a layer that is sharded by classes; it uses :func:`spread_of_classes`,
  :func:`as_weight` and :func:`same_everywhere`;
- :func:`averaged` and :func:`constant`: a whole tensor, gathered from FSDP2's shards;
- :func:`shard_operands`: the operands of a shard's operators, without padding.

``caller`` is the function that error messages name; ``name`` is the name of the argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.dtensors import Spread, check_member, dtensor, replicated, shards_of, spread_of, without_rule
from nkilib.torch.dispatch.layout import as_rows
from nkilib.torch.functions.linear_cross_entropy.checks import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.operators import wanted_gradients
from nkilib.torch.functions.vocab_parallel.shard_autograd import ShardOperands
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class LocalLayer:
    """This rank's part of the arguments of a loss from hidden states, as plain tensors.

    Attributes:
        arguments: the arguments of the loss.
        spread: the ranks that share the rows of the weight, and the number of rows of each.
    """

    arguments: LinearArguments
    spread: Spread


def spread_of_classes(caller: Caller, of_weight: Caller, linear_weight: DTensor) -> Spread:
    """Return the ranks that share the rows of a weight, and the number of rows of each.

    Args:
        caller: the function that error messages name.
        of_weight: the same function, with words for the weight, for errors about the weight.
        linear_weight: the weight, sharded by classes over one dimension of its mesh.

    Raises:
        NotImplementedError: another placement.
        ValueError: this rank is not in the mesh.
    """
    mesh = linear_weight.device_mesh
    check_member(of_weight, mesh)
    several = [at for at in range(mesh.ndim) if mesh.size(at) > 1]
    if shards_of(caller, "linear_weight", linear_weight) != dict.fromkeys(several, 0) or len(several) > 1:
        raise without_rule(caller, "linear_weight", linear_weight, "Shard(0), on a mesh of one dimension")
    return spread_of(of_weight, linear_weight, 0, several[0] if several else 0)


def same_everywhere(caller: Caller, name: str, tensor: Tensor) -> Tensor:
    """Return a replicated DTensor as a plain tensor, whose gradient is the whole gradient on every rank. A plain tensor
    is returned unchanged.
    """
    placed = dtensor(tensor)
    if placed is None:
        return tensor
    if shards_of(caller, name, placed):
        raise without_rule(caller, name, placed, "Replicate()")
    return placed.to_local()


def as_weight(caller: Caller, name: str, tensor: Tensor | None, linear_weight: DTensor) -> Tensor | None:
    """Return this rank's part of ``tensor``, if that is a DTensor; its placements must be those of the weight.

    A plain tensor, or None, is returned unchanged.
    """
    placed = dtensor(tensor)
    if placed is None:
        return tensor
    if shards_of(caller, name, placed) != shards_of(caller, "linear_weight", linear_weight):
        raise without_rule(caller, name, placed, "of linear_weight")
    return placed.to_local()


def local_layer(
    caller: Caller, of_weight: Caller, linear_weight: DTensor, layer_arguments: LinearArguments
) -> LocalLayer:
    """Return this rank's part of the arguments. This function communicates nothing.

    One dimension of the mesh shards the classes. No other dimension may have more than one rank, because gradients of
    the layer from other ranks' positions are not summed here. Bias and ``grad_weight_sum`` have the placements of the
    weight, or are this rank's own; input and target are replicated, or plain and the same on every rank.

    Args:
        caller: the function that error messages name.
        of_weight: the same function, with words for the weight, for errors about the weight.
        linear_weight: the weight of the arguments.
        layer_arguments: the arguments of the call.

    Raises:
        TypeError: an argument is not a tensor.
        NotImplementedError: an unsupported placement; class weights, a normalizer or temperatures that require grad.
        ValueError: this rank is not in the mesh.
    """
    layer_arguments.check_tensors(caller)
    spread = spread_of_classes(caller, of_weight, linear_weight)
    arguments = LinearArguments(
        same_everywhere(caller, "input", layer_arguments.input),
        linear_weight.to_local(),
        same_everywhere(caller, "target", layer_arguments.target),
        as_weight(caller, "linear_bias", layer_arguments.linear_bias, linear_weight),
        replicated(caller, "weight", layer_arguments.weight),
        layer_arguments.reduction,
        replicated(caller, "normalizer", layer_arguments.normalizer),
        as_weight(caller, "grad_weight_sum", layer_arguments.grad_weight_sum, linear_weight),
        replicated(caller, "temperature", layer_arguments.temperature),
    )
    return LocalLayer(arguments, spread)


def shard_operands(caller: Caller, arguments: LinearArguments, shards: VocabularyShards) -> ShardOperands:
    """Return this rank's operands: positions flattened to rows, and weight and bias cut to the rows that are
    classes.
    """
    linear_weight, linear_bias, summed = arguments.linear_weight, arguments.linear_bias, arguments.grad_weight_sum
    wanted = wanted_gradients(arguments.input, linear_weight, linear_bias)
    if wanted is None or not wanted.grad_weight_wanted:
        summed = None
    if linear_bias is not None:
        linear_bias = linear_bias.to(torch.float32)
    if shards.own_size < linear_weight.shape[0]:
        linear_weight = linear_weight[: shards.own_size]
        linear_bias = None if linear_bias is None else linear_bias[: shards.own_size]
        summed = None if summed is None else summed[: shards.own_size]
    return ShardOperands(
        as_rows(arguments.input, -1),
        linear_weight,
        arguments.target.reshape(-1),
        linear_bias,
        summed,
        arguments.temperatures(caller),
    )


def _check_no_sum(caller: Caller, name: str, tensor: DTensor) -> None:
    """Check that the ranks of a DTensor hold no partial sums, and hold its parts in the order of the ranks.

    Raises:
        NotImplementedError: they do not.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise without_rule(caller, name, tensor, "Shard(0) or Replicate()")
    shards_of(caller, name, tensor)  # which refuses what is neither


class _Averaged(torch.autograd.Function):
    """The identity, as an autograd function that divides the gradient by the number of ranks, so that adding the
    gradients of the ranks gives their mean.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] / ctx.ranks, None


def averaged(caller: Caller, name: str, tensor: DTensor) -> Tensor:
    """Return the whole tensor, gathered from all ranks. The gradient is averaged over the ranks, and each rank keeps
    its shard of it.

    Raises:
        NotImplementedError: the tensor is neither sharded nor replicated.
    """
    from torch.distributed.tensor import Partial

    _check_no_sum(caller, name, tensor)
    whole = tensor.full_tensor(grad_placements=[Partial()] * tensor.device_mesh.ndim)
    apply: Any = _Averaged.apply
    result: Tensor = apply(whole, tensor.device_mesh.size())
    return result


def constant(caller: Caller, name: str, tensor: DTensor) -> Tensor:
    """Return the whole tensor, gathered from all ranks, as a constant without a gradient.

    Raises:
        NotImplementedError: the tensor is neither sharded nor replicated.
    """
    _check_no_sum(caller, name, tensor)
    with torch.no_grad():
        return tensor.full_tensor()
