# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The conversion of a loss's arguments with DTensor logits to this rank's part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.checks import check_tensors
from nkilib.torch.dispatch.dtensors import LocalPart, local_part
from nkilib.torch.functions.cross_entropy.checks import check_class_dim

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def loss_part(
    caller: Caller,
    logits: DTensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    normalizer: Tensor | None,
    class_dim: int,
    inplace: bool,
) -> LocalPart:
    """Return this rank's part of the arguments.

    Raises:
        TypeError, ValueError, RuntimeError, NotImplementedError: see :func:`local_part`.
        ValueError: a mean without ``normalizer`` where other ranks have other positions.
    """
    others = {"weight": weight, "normalizer": normalizer}
    check_tensors(caller, {"target": target, **others}, optional=tuple(others))
    check_class_dim(caller, class_dim)
    part = local_part(caller, logits, target, others, class_dim, inplace)
    if reduction == "mean" and normalizer is None and not part.has_all_rows:
        raise ValueError(
            f"{caller}: {caller.input}, a DTensor of placements {list(logits.placements)}, has positions on other "
            f"ranks, and a mean divides by {_divisor(target, weight)} on all ranks; pass it as a tensor, normalizer=, "
            f"or reduction='sum'"
        )
    return part


def _divisor(target: Tensor, weight: Tensor | None) -> str:
    """Return the divisor of a mean, in words."""
    if target.is_floating_point():
        return "the number of positions"
    return "the number of targets" if weight is None else "the sum of the class weights of the targets"
