# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What ``linear_token_scores`` refuses beside what ``linear_cross_entropy`` does: values are never looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nkilib.experimental.loss.linear_cross_entropy.shared.options import IDS_MAX
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.reference import reason_for_reference
from nkilib.torch.functions.linear_token_scores.operators import LINEAR_TOKEN_SCORES

# Who is named where the weight, of which each rank may have a part, does not fit.
OF_WEIGHT: Final = LINEAR_TOKEN_SCORES._replace(input="linear_weight", noun="weight")


def check_target(caller: Caller, given: LinearArguments) -> LinearArguments:
    """Refuse targets that are no classes of each position.

    Args:
        caller: who is named in errors.
        given: the arguments.

    Returns:
        The arguments with the first id of each position, where it has several, for the checks of a single one.

    Raises:
        RuntimeError: they are not integers.
        ValueError: there are no ids of each position, or more than 64.
    """
    target = given.target
    if target.is_floating_point():
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; probabilities have no "
            f"single class to score"
        )
    if target.dim() == 0 or target.dim() != given.input.dim():
        return given
    if not 1 <= target.shape[-1] <= IDS_MAX:
        raise ValueError(
            f"{caller}: there may be 1 to {IDS_MAX} target ids of a position, got target of shape "
            f"{tuple(target.shape)} for positions of shape {tuple(given.input.shape[:-1])}; call it for parts of them"
        )
    return replace(given, target=target[..., 0])


def check_kernels_take(caller: Caller, given: LinearArguments, classes: int | None = None) -> None:
    """Refuse what no kernel computes.

    Args:
        caller: who is named in errors.
        given: the arguments.
        classes: of all ranks; None: those of the weight.

    Raises:
        NotImplementedError: another number of dimensions, features or classes.
    """
    reason = reason_for_reference(given, classes) if given.linear_weight.dim() > 1 else None
    if reason is not None:
        raise NotImplementedError(
            f"{caller}: not supported where {reason}; pass the logits of torch.nn.functional.linear to "
            f"nkilib.torch.token_scores"
        )
