# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of ``linear_token_scores`` beyond those of ``linear_cross_entropy``: values are never read."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nkilib.experimental.loss.linear_cross_entropy.shared.options import IDS_MAX
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.reference import reason_for_reference
from nkilib.torch.functions.linear_token_scores.operators import LINEAR_TOKEN_SCORES

# The caller in errors about the weight, of which each rank may have a part.
OF_WEIGHT: Final = LINEAR_TOKEN_SCORES._replace(input="linear_weight", noun="weight")


def check_target(caller: Caller, arguments: LinearArguments) -> LinearArguments:
    """Reject targets that are not class indices of each position.

    Args:
        caller: the function that error messages name.
        arguments: the arguments of the call.

    Returns:
        The arguments with the first id of each position, if it has several, for the checks of a single id.

    Raises:
        RuntimeError: the targets are not integers.
        ValueError: a position has no ids, or more than 64.
    """
    target = arguments.target
    if target.is_floating_point():
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; probabilities have no "
            f"single class to score"
        )
    if target.dim() == 0 or target.dim() != arguments.input.dim():
        return arguments
    if not 1 <= target.shape[-1] <= IDS_MAX:
        raise ValueError(
            f"{caller}: there may be 1 to {IDS_MAX} target ids of a position, got target of shape "
            f"{tuple(target.shape)} for positions of shape {tuple(arguments.input.shape[:-1])}; call it for parts of "
            f"them"
        )
    return replace(arguments, target=target[..., 0])


def check_kernels_take(caller: Caller, arguments: LinearArguments, classes: int | None = None) -> None:
    """Reject arguments that no kernel computes.

    Args:
        caller: the function that error messages name.
        arguments: the arguments of the call.
        classes: the number of classes of all ranks; None: that of the weight.

    Raises:
        NotImplementedError: another number of dimensions, features or classes.
    """
    reason = reason_for_reference(arguments, classes) if arguments.linear_weight.dim() > 1 else None
    if reason is not None:
        raise NotImplementedError(
            f"{caller}: not supported where {reason}; pass the logits of torch.nn.functional.linear to "
            f"nkilib.torch.token_scores"
        )
