"""Statistics of the whole vocabulary from those of its shards: one all-reduce of maxima and one of sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.torch.checks import Caller
from nkilib.torch.launch import ShardStatistics
from nkilib.torch.vocab_shards import VocabularyShards


class VocabularyStatistics(NamedTuple):
    """Of all classes, [N] float32 each, the same on every rank.

    Attributes:
        maximum: the largest logit.
        log_sum: log of the sum of exp(logit - maximum), in nats; at least 0.
        target_logit: logit of the target, 0 at ignored positions.
        target_weight: class weight of the target, 0 at ignored positions; None without weights.
        logit_sum: sum of class weight times logit; None where the shards have none.
    """

    maximum: Tensor
    log_sum: Tensor
    target_logit: Tensor
    target_weight: Tensor | None
    logit_sum: Tensor | None

    @property
    def lse(self) -> Tensor:
        """Log-sum-exp of the logits, in nats."""
        return self.maximum + self.log_sum


def combined_statistics(
    caller: Caller, own: ShardStatistics, shards: VocabularyShards, group: dist.ProcessGroup | None, weighted: bool
) -> VocabularyStatistics:
    """Communicate: every rank of the group has to call it.

    Args:
        caller: who is named in errors.
        own: statistics of this rank's shard.
        shards: of all ranks, as this one sees them.
        group: None for all processes.
        weighted: there are class weights.

    Raises:
        ValueError: on all ranks, the ranks do not see the same shards. On the CPU only: elsewhere reading the answer
            would wait for the device, and the statistics are NaN instead.
    """
    maximum, agreed = _greatest(caller, own.maximum, shards, group)
    # The shards' maxima are subtracted before anything is added to them, so that large logits cancel exactly.
    summands = [torch.exp((own.maximum - maximum) + own.log_sum), own.target_logit]
    if weighted:
        summands.append(own.position_weight)
    has_logit_sum = own.logit_sum.shape == maximum.shape
    if has_logit_sum:
        summands.append(own.logit_sum)
    sums = torch.stack(summands)
    dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=group)
    return VocabularyStatistics(
        maximum=maximum,
        log_sum=torch.where(agreed, sums[0].log(), torch.nan),
        target_logit=sums[1],
        target_weight=sums[2] if weighted else None,
        logit_sum=sums[-1] if has_logit_sum else None,
    )


def _greatest(
    caller: Caller, maximum: Tensor, shards: VocabularyShards, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """The maximum over all shards, and whether all ranks see the same shards.

    The sizes and their negatives go through the same all-reduce: the greatest and the least of each must be equal.
    """
    claims = [*shards.sizes, *(-size for size in shards.sizes)]
    values = torch.cat([maximum, torch.tensor(claims, dtype=torch.float32, device=maximum.device)])
    dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)
    positions, ranks = maximum.shape[0], len(shards.sizes)
    greatest, most, least = values[:positions], values[positions : positions + ranks], values[positions + ranks :]
    agreed = (most == -least).all()
    if values.device.type == "cpu" and not bool(agreed):
        between = ", ".join(f"{int(-low)} to {int(high)}" for high, low in zip(most, least, strict=True))
        raise ValueError(
            f"{caller}: all ranks must see the same shards, but they take the classes of each rank to be [{between}], "
            f"rank {shards.rank} {list(shards.sizes)}; pass the same shard_sizes everywhere if widths differ"
        )
    return greatest, agreed
