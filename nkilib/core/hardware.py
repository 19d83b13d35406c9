# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Numbers of the hardware that hold for every kernel and generation, and the division of sizes into tiles.

NKI code may call everything here. Host code that plans a launch takes it from here too, so this module imports nothing
of NKI. The types that kernels compute in are :data:`nkilib.core.rows.checks.FLOATS`.
"""

from __future__ import annotations

from typing import Final

# Rows of a tile: the partitions of SBUF and of PSUM.
PARTITIONS: Final = 128
# Bytes of a float32 number.
FLOAT32_BYTES: Final = 4
# The documented domain of ``log`` ends here, and begins at the inverse.
LIMIT_OF_LOG: Final = 2.0**64


def div_ceil(numerator: int, denominator: int) -> int:
    """Return the smallest integer that is not less than ``numerator / denominator``, for positive integers."""
    return (numerator + denominator - 1) // denominator
