# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sizes that hold for every kernel. They are the hardware's, and the same on every generation.

Host code that plans a launch takes them from here too, so this module imports nothing of NKI. The types that kernels
compute in are :data:`nkilib.core.rows.checks.FLOATS`.
"""

from __future__ import annotations

from typing import Final

# Rows of a tile: the partitions of SBUF and of PSUM.
PARTITIONS: Final = 128
# Bytes of a float32 number.
FLOAT32_BYTES: Final = 4
