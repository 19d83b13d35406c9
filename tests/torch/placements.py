# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Placements and DTensors for tables of cases; their package is imported at the first use, not when
tests are collected: that takes nearly as long as PyTorch itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement


def replicate() -> Placement:
    from torch.distributed.tensor import Replicate

    return Replicate()


def shard(dim: int) -> Placement:
    from torch.distributed.tensor import Shard

    return Shard(dim)


def partial() -> Placement:
    from torch.distributed.tensor import Partial

    return Partial()


def distribute(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """``distribute_tensor``."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, mesh, placements)


def from_local(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], **options: Any) -> DTensor:
    """``DTensor.from_local``."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(tensor, mesh, placements, **options)
