# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gathering of DTensor parameters, as FSDP2 leaves them, for a loss of this rank's own positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.dtensors import shards_of, without_rule

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def averaged(caller: Caller, name: str, tensor: DTensor) -> Tensor:
    """Return the whole tensor; its gradients are averaged over all ranks, and each rank keeps its shard of them.

    Raises:
        NotImplementedError: it is neither sharded nor replicated.
    """
    from torch.distributed.tensor import Partial

    check_no_sum(caller, name, tensor)
    whole = tensor.full_tensor(grad_placements=[Partial()] * tensor.device_mesh.ndim)
    apply: Any = _Averaged.apply
    result: Tensor = apply(whole, tensor.device_mesh.size())
    return result


def constant(caller: Caller, name: str, tensor: DTensor) -> Tensor:
    """Return the whole tensor, without a gradient.

    Raises:
        NotImplementedError: it is neither sharded nor replicated.
    """
    check_no_sum(caller, name, tensor)
    with torch.no_grad():
        return tensor.full_tensor()


def check_no_sum(caller: Caller, name: str, tensor: DTensor) -> None:
    """Reject a tensor whose ranks hold partial sums, or parts in another order.

    Raises:
        NotImplementedError: if the check fails.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise without_rule(caller, name, tensor, "Shard(0) or Replicate()")
    shards_of(caller, name, tensor)  # which refuses what is neither


class _Averaged(torch.autograd.Function):
    """An identity whose gradient is divided by a number of ranks before it is summed over them."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] / ctx.ranks, None
