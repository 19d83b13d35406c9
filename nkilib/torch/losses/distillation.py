# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The semantics of a student's divergence from a teacher: options, labels and reductions, for logits and hidden
states.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from nkilib.core.host.options import as_float, as_int
from nkilib.experimental.loss.distillation.launch import LEAST_TEMPERATURE, MOST_TEMPERATURE
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.losses import outputs
from nkilib.torch.losses.checks import BATCHMEAN

_BETA_OF_DIRECTION: Final = {"forward": 0.0, "reverse": 1.0}
_INT32 = 2**31


def checked_beta(caller: Caller, direction: Any, beta: Any) -> float:
    """Return ``beta``, or without one the value for ``direction``: 0 for KL(teacher || student), 1 for KL(student ||
    teacher). Between these, it is the weight of the teacher in the mixture.

    Raises:
        TypeError: ``beta`` is not a number.
        ValueError: an unknown direction; ``beta`` is out of range.
    """
    if direction not in _BETA_OF_DIRECTION:
        raise ValueError(
            f"{caller}: {direction!r} is not a valid value for direction; pass 'forward', for "
            f"KL(teacher || student), or 'reverse'"
        )
    if beta is None:
        return _BETA_OF_DIRECTION[direction]
    number = as_float(caller, "beta", beta)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{caller}: beta must be from 0 to 1, got {number}; 0.5 is the Jensen-Shannon divergence")
    return number


def checked_numbers(caller: Caller, temperature: Any, ignore_index: Any) -> tuple[float, int]:
    """Return the temperature and the ``ignore_index`` as Python numbers.

    Raises:
        TypeError: an argument has the wrong Python type.
        ValueError: an argument is out of range.
    """
    temperature = as_float(caller, "temperature", temperature)
    ignore_index = as_int(caller, "ignore_index", ignore_index)
    if not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        raise ValueError(
            f"{caller}: temperature must be from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}, got {temperature}; "
            f"it divides the logits"
        )
    if not -_INT32 <= ignore_index < _INT32:
        raise ValueError(f"{caller}: ignore_index must be an int32, got {ignore_index}; use -100")
    return temperature, ignore_index


def check_labels(caller: Caller, labels: Tensor | None, positions: tuple[int, ...]) -> None:
    """Reject labels that are not one integer for each position.

    Raises:
        TypeError: another dtype.
        ValueError: another shape.
    """
    if labels is None:
        return
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{caller}: labels must be integers, got {labels.dtype}; cast them, as with .long()")
    if labels.shape != positions:
        raise ValueError(
            f"{caller}: labels must have the shape of the positions, {positions}, got {tuple(labels.shape)}"
        )


def reduced(loss: Tensor, positions: tuple[int, ...], counts: Tensor | None, reduction: str) -> Tensor:
    """Return the reduced loss.

    Args:
        loss: [N], 0 at ignored positions.
        positions: the shape of the positions.
        counts: bool [N], whether each position is valid; None: all are.
        reduction: ``"mean"`` over the valid positions, ``"batchmean"`` over the first dimension, ``"sum"`` or
            ``"none"``.
    """
    if reduction == BATCHMEAN:
        return outputs.reduced(loss, "mean", positions, positions[0] if positions else 1)
    if counts is None:
        return outputs.reduced(loss, reduction, positions)
    count = counts.sum()
    return outputs.reduced(loss, reduction, positions, count, count == 0)
