# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of the numeric options of kernels, before the first instruction."""

from __future__ import annotations

from math import isfinite
from struct import pack, unpack
from typing import Final

from nkilib.core.host.function_domains import LIMIT_OF_LOG
from nkilib.core.host.options import is_number
from nkilib.core.rows.checks import require

LEAST_NORMAL: Final = 2.0**-126
# NKI documents ``log`` from here on.
LEAST_ARGUMENT_OF_LOG: Final = 1.0 / LIMIT_OF_LOG
LARGEST: Final = 2.0**128 * (1.0 - 2.0**-24)


def require_option(function: str, name: str, value: float, least: float = -LARGEST, most: float = LARGEST) -> float:
    """Check that an option is a finite number from ``least`` to ``most``, and round it to float32, the type of the
    engines.

    Raises:
        AssertionError: another number.
    """
    require(
        is_number(value) and isfinite(value) and least <= value <= most,
        f"{function}: {name} must be a finite number of float32{_range(least, most)}, got {value}",
    )
    rounded: float = unpack("f", pack("f", value))[0]
    return rounded


def _range(least: float, most: float) -> str:
    if least == -LARGEST:
        return "" if most == LARGEST else f" of at most {_bound(most)}"
    return f" of at least {_bound(least)}" if most == LARGEST else f" from {_bound(least)} to {_bound(most)}"


def _bound(number: float) -> str:
    return "2^-126" if number == LEAST_NORMAL else f"{number}".removesuffix(".0")
