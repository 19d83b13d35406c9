# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The conversion of arguments with a DTensor output layer to this rank's part of the vocabulary, or to a gathered
layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.checks import check_tensors
from nkilib.torch.dispatch.dtensors import check_member, dtensor
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_token_scores.checks import OF_WEIGHT
from nkilib.torch.functions.vocab_parallel.shards import check_no_group, check_whole, unpadded_sizes
from nkilib.torch.functions.vocab_parallel_linear.gathering import averaged
from nkilib.torch.functions.vocab_parallel_linear.parts import local_layer

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class PlacedArguments:
    """The arguments as plain tensors.

    Attributes:
        arguments: the arguments of the loss.
        is_spread: whether the ranks of ``group`` have parts of the vocabulary.
        group: the process group; None for all processes.
        num_classes, shard_sizes: the number of classes of all ranks and of each rank, see
            ``vocab_parallel_linear_cross_entropy``.
    """

    arguments: LinearArguments
    is_spread: bool
    group: dist.ProcessGroup | None
    num_classes: int | None
    shard_sizes: tuple[int, ...] | None


def plain_arguments(
    caller: Caller, arguments: LinearArguments, group: Any, num_classes: int | None, shard_sizes: Any
) -> PlacedArguments:
    """Return the arguments without DTensors.

    Replicated hidden states with a weight whose classes are sharded over one dimension of the mesh form a sharded
    vocabulary. Plain hidden states are those of this rank's own tokens, as under FSDP2: a weight that is a DTensor is
    then gathered, and its gradient averaged over the ranks, as FSDP2 does.

    Raises:
        TypeError: an argument is not a tensor.
        NotImplementedError: an unsupported placement; the message names the placements to redistribute to.
        ValueError: a group or sizes together with a DTensor; sizes without a group.
    """
    check_tensors(caller, arguments.tensors(), optional=("linear_bias", "weight", "normalizer", "grad_weight_sum"))
    weight, input = dtensor(arguments.linear_weight), dtensor(arguments.input)
    if weight is None:
        if input is not None:
            raise NotImplementedError(
                f"{caller}: input, a DTensor of placements {list(input.placements)}, needs a linear_weight that is "
                f"a DTensor of placements Shard(0); pass input.to_local(), or distribute linear_weight"
            )
        if group is None:
            check_whole(OF_WEIGHT, num_classes, shard_sizes)
        return PlacedArguments(arguments, group is not None, group, num_classes, shard_sizes)
    check_no_group(OF_WEIGHT, group, shard_sizes)
    if input is None:
        check_whole(OF_WEIGHT, num_classes, shard_sizes)
        return PlacedArguments(_gathered_layer(caller, weight, arguments), False, None, None, None)
    layer = local_layer(caller, OF_WEIGHT, weight, arguments)
    sizes = unpadded_sizes(OF_WEIGHT, layer.spread.sizes, num_classes)
    return PlacedArguments(layer.arguments, True, layer.spread.group, None, sizes)


def _gathered_layer(caller: Caller, weight: DTensor, arguments: LinearArguments) -> LinearArguments:
    """Return the arguments with weight and bias of all ranks, whose gradients are averaged over the ranks."""
    check_member(OF_WEIGHT, weight.device_mesh)
    if arguments.grad_weight_sum is not None:
        raise NotImplementedError(
            f"{caller}: grad_weight_sum is not supported for a linear_weight, a DTensor, that is gathered: its "
            f"gradient is a sum over the ranks; leave it out"
        )
    for name in ("target",):
        if dtensor(arguments.target) is not None:
            raise NotImplementedError(
                f"{caller}: {name} must be plain where input is, got a DTensor; pass {name}.to_local()"
            )
    bias = dtensor(arguments.linear_bias)
    return replace(
        arguments,
        linear_weight=averaged(caller, "linear_weight", weight),
        linear_bias=arguments.linear_bias if bias is None else averaged(caller, "linear_bias", bias),
    )
