# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of the numeric options of kernels, before the first instruction."""

from __future__ import annotations

from math import isfinite
from struct import pack, unpack
from typing import Final

from nkilib.core.host.function_domains import LIMIT_OF_LOG
from nkilib.core.rows.checks import require

LEAST_NORMAL: Final = 2.0**-126
# NKI documents ``log`` from here on.
LEAST_ARGUMENT_OF_LOG: Final = 1.0 / LIMIT_OF_LOG
LARGEST: Final = 2.0**128 * (1.0 - 2.0**-24)


def require_option(function: str, name: str, value: float, least: float = -LARGEST) -> float:
    """Check that an option is a finite number, at least ``least``, and round it to float32, the type of the engines.

    Raises:
        AssertionError: another number.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(
        is_number and isfinite(value) and least <= value <= LARGEST,
        f"{function}: {name} must be a finite number of float32{_from(least)}, got {value}",
    )
    rounded: float = unpack("f", pack("f", value))[0]
    return rounded


def _from(least: float) -> str:
    known = {-LARGEST: "", 0.0: " of at least 0", LEAST_NORMAL: " of at least 2^-126"}
    return known.get(least, f" of at least {least}")
