# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parameters that are DTensors, as FSDP2 leaves them, gathered for a loss of this rank's own positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.dtensors import shards_of, without_rule

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def averaged(caller: Caller, name: str, tensor: DTensor) -> Tensor:
    """The whole tensor; gradients of all ranks are averaged, and each keeps its shard of them.

    Raises:
        NotImplementedError: neither sharded nor replicated.
    """
    from torch.distributed.tensor import Partial

    check_no_sum(caller, name, tensor)
    whole = tensor.full_tensor(grad_placements=[Partial()] * tensor.device_mesh.ndim)
    apply: Any = _Averaged.apply
    result: Tensor = apply(whole, tensor.device_mesh.size())
    return result


def constant(caller: Caller, name: str, tensor: DTensor) -> Tensor:
    """The whole tensor, without a gradient.

    Raises:
        NotImplementedError: neither sharded nor replicated.
    """
    check_no_sum(caller, name, tensor)
    with torch.no_grad():
        return tensor.full_tensor()


def check_no_sum(caller: Caller, name: str, tensor: DTensor) -> None:
    """Refuse a tensor of which ranks have summands, or parts in an order of their own.

    Raises:
        NotImplementedError: always then.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise without_rule(caller, name, tensor, "Shard(0) or Replicate()")
    shards_of(caller, name, tensor)  # which refuses what is neither


class _Averaged(torch.autograd.Function):
    """A tensor as it is, whose gradient is divided by a number before it is summed over as many ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] / ctx.ranks, None
