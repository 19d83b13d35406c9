# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of loss options that are numbers."""

from __future__ import annotations

from typing import Any

from nkilib.core.host.options import as_float
from nkilib.core.rows.numbers import LARGEST, LEAST_ARGUMENT_OF_LOG
from nkilib.torch.dispatch.caller import Caller


def finite_number(caller: Caller, name: str, value: Any) -> float:
    """Return the value as a Python number.

    Raises:
        TypeError: it is not a number.
        ValueError: it is infinite, NaN or out of the range of float32.
    """
    number = as_float(caller, name, value)
    if not -LARGEST <= number <= LARGEST:  # NaN too
        raise ValueError(f"{caller}: {name} must be finite in float32, got {value}; use {caller.instead}")
    return number


def least_of_log(caller: Caller, name: str, value: Any) -> float:
    """Return the value, a number that is added to the argument of a logarithm or is its lower bound, as a Python
    number.

    Raises:
        TypeError: it is not a number.
        ValueError: it is less than 2^-64, the least argument for which NKI documents the logarithm; or see
            :func:`finite_number`.
    """
    number = finite_number(caller, name, value)
    if number < LEAST_ARGUMENT_OF_LOG:
        raise ValueError(
            f"{caller}: {name} must be at least 2^-64, of which the engines have a logarithm, got {value}; use "
            f"{caller.instead}"
        )
    return number
