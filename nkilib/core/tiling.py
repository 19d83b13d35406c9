# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Division of sizes into tiles. NKI code may call everything here."""

from __future__ import annotations


def div_ceil(numerator: int, denominator: int) -> int:
    """Return the smallest integer that is not less than ``numerator / denominator``, for positive integers."""
    return (numerator + denominator - 1) // denominator
