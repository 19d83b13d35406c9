# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The conversion of DTensor arguments of ``linear_token_scores`` to plain tensors (:func:`plain_arguments`).

A *layer* is the weight and its bias. A sharded layer becomes this rank's part of the vocabulary, or is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.dtensors import check_member, dtensor
from nkilib.torch.functions.linear_cross_entropy.checks import LinearArguments
from nkilib.torch.functions.linear_token_scores.operators import LINEAR_TOKEN_SCORES
from nkilib.torch.functions.vocab_parallel.linear_placement import averaged, local_layer
from nkilib.torch.functions.vocab_parallel.shards import (
    VocabularyShards,
    check_no_group,
    check_whole,
    group_place,
    shards_of_ranks,
    unpadded_sizes,
)

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


# The caller in errors about the weight, of which each rank may have a part.
_WEIGHT_CALLER: Final = LINEAR_TOKEN_SCORES._replace(input="linear_weight", noun="weight")


@dataclass(frozen=True)
class PlacedArguments:
    """The arguments as plain tensors, and the ranks that share the vocabulary.

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

    def shards(self) -> VocabularyShards | None:
        """Return the classes of each rank; None if this rank has all of them."""
        if not self.is_spread or self.arguments.linear_weight.dim() < 1:
            return None
        rows, place = self.arguments.linear_weight.shape[0], group_place(LINEAR_TOKEN_SCORES, self.group)
        return shards_of_ranks(_WEIGHT_CALLER, rows, place, self.num_classes, self.shard_sizes)


def _gathered_layer(caller: Caller, weight: DTensor, arguments: LinearArguments) -> LinearArguments:
    """Return the arguments with weight and bias gathered from all ranks.

    The gradients of weight and bias are averaged over the ranks, as FSDP2 does.
    """
    check_member(_WEIGHT_CALLER, weight.device_mesh)
    if arguments.grad_weight_sum is not None:
        raise NotImplementedError(
            f"{caller}: grad_weight_sum is not supported for a linear_weight, a DTensor, that is gathered: its "
            f"gradient is a sum over the ranks; leave it out"
        )
    if dtensor(arguments.target) is not None:
        raise NotImplementedError(
            f"{caller}: target must be plain where input is, got a DTensor; pass target.to_local()"
        )
    bias = dtensor(arguments.linear_bias)
    return replace(
        arguments,
        linear_weight=averaged(caller, "linear_weight", weight),
        linear_bias=arguments.linear_bias if bias is None else averaged(caller, "linear_bias", bias),
    )


def plain_arguments(
    caller: Caller, arguments: LinearArguments, group: Any, num_classes: int | None, shard_sizes: Any
) -> PlacedArguments:
    """Return the arguments without DTensors.

    The vocabulary is sharded if a plain weight comes with ``group``, or if the hidden states are a replicated DTensor
    and one dimension of the mesh shards the classes of the weight. If only the weight is a DTensor, the hidden states
    are those of this rank's own tokens: the weight is gathered, and its gradient averaged over the ranks, as by FSDP2.

    Raises:
        TypeError: an argument is not a tensor.
        NotImplementedError: an unsupported placement; the message names the placements to redistribute to.
        ValueError: a group or sizes together with a DTensor; sizes without a group.
    """
    arguments.check_tensors(caller)
    weight, input = dtensor(arguments.linear_weight), dtensor(arguments.input)
    if weight is None:
        if input is not None:
            raise NotImplementedError(
                f"{caller}: input, a DTensor of placements {list(input.placements)}, needs a linear_weight that is "
                f"a DTensor of placements Shard(0); pass input.to_local(), or distribute linear_weight"
            )
        if group is None:
            check_whole(_WEIGHT_CALLER, num_classes, shard_sizes)
        return PlacedArguments(arguments, group is not None, group, num_classes, shard_sizes)
    check_no_group(_WEIGHT_CALLER, group, shard_sizes)
    if input is None:
        check_whole(_WEIGHT_CALLER, num_classes, shard_sizes)
        return PlacedArguments(_gathered_layer(caller, weight, arguments), False, None, None, None)
    layer = local_layer(caller, _WEIGHT_CALLER, weight, arguments)
    sizes = unpadded_sizes(_WEIGHT_CALLER, layer.spread.sizes, num_classes)
    return PlacedArguments(layer.arguments, True, layer.spread.group, None, sizes)
