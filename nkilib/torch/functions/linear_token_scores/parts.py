# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments of which the output layer is a DTensor: this rank's part of the vocabulary, or the layer gathered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.checks import check_tensors
from nkilib.torch.dispatch.dtensors import check_member, dtensor
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_token_scores.checks import OF_WEIGHT
from nkilib.torch.functions.vocab_parallel.shards import check_no_group, check_whole, held_sizes
from nkilib.torch.functions.vocab_parallel_linear.gathering import averaged
from nkilib.torch.functions.vocab_parallel_linear.parts import local_layer

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class PlacedArguments:
    """The arguments as plain tensors.

    Attributes:
        given: of the loss.
        is_spread: the ranks of ``group`` have parts of the vocabulary.
        group: None for all processes.
        num_classes, shard_sizes: which classes the ranks have.
    """

    given: LinearArguments
    is_spread: bool
    group: dist.ProcessGroup | None
    num_classes: int | None
    shard_sizes: tuple[int, ...] | None


def plain_arguments(
    caller: Caller, given: LinearArguments, group: Any, num_classes: int | None, shard_sizes: Any
) -> PlacedArguments:
    """The arguments without DTensors.

    Hidden states that are replicated, and a weight whose classes are sharded over one dimension of the mesh, are a
    vocabulary in parts. Plain hidden states are those of this rank's own tokens, as under FSDP2: a weight that is a
    DTensor is gathered, and its gradient averaged over the ranks, which is what FSDP2 makes of it.

    Raises:
        TypeError: an argument is no tensor.
        NotImplementedError: a placement without a rule, with those to redistribute to.
        ValueError: a group or sizes beside a DTensor; sizes without a group.
    """
    check_tensors(caller, given.tensors(), optional=("linear_bias", "weight", "normalizer", "grad_weight_sum"))
    weight, input = dtensor(given.linear_weight), dtensor(given.input)
    if weight is None:
        if input is not None:
            raise NotImplementedError(
                f"{caller}: input, a DTensor of placements {list(input.placements)}, needs a linear_weight that is "
                f"one, of placements Shard(0); pass input.to_local(), or distribute linear_weight"
            )
        if group is None:
            check_whole(OF_WEIGHT, num_classes, shard_sizes)
        return PlacedArguments(given, group is not None, group, num_classes, shard_sizes)
    check_no_group(OF_WEIGHT, group, shard_sizes)
    if input is None:
        check_whole(OF_WEIGHT, num_classes, shard_sizes)
        return PlacedArguments(_gathered_layer(caller, weight, given), False, None, None, None)
    layer = local_layer(caller, OF_WEIGHT, weight, given)
    sizes = held_sizes(OF_WEIGHT, layer.spread.sizes, num_classes)
    return PlacedArguments(layer.arguments, True, layer.spread.group, None, sizes)


def _gathered_layer(caller: Caller, weight: DTensor, given: LinearArguments) -> LinearArguments:
    """With weight and bias of all ranks, whose gradients are averaged over them."""
    check_member(OF_WEIGHT, weight.device_mesh)
    if given.grad_weight_sum is not None:
        raise NotImplementedError(
            f"{caller}: grad_weight_sum is not supported for a linear_weight, a DTensor, that is gathered: its "
            f"gradient is a sum over the ranks; leave it out"
        )
    for name in ("target",):
        if dtensor(given.target) is not None:
            raise NotImplementedError(
                f"{caller}: {name} must be plain where input is, got a DTensor; pass {name}.to_local()"
            )
    bias = dtensor(given.linear_bias)
    return replace(
        given,
        linear_weight=averaged(caller, "linear_weight", weight),
        linear_bias=given.linear_bias if bias is None else averaged(caller, "linear_bias", bias),
    )
