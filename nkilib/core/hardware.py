# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Hardware constants that hold for all kernels and generations, :func:`div_ceil`, and the type of a tensor in HBM
(:data:`HbmTensor`).

NKI code may call everything here. Host code that plans a launch uses this module too, so it imports NKI for type
checkers only. The types in which kernels compute are :data:`nkilib.core.rows.checks.FLOATS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from nkilib.nki import nl

# Rows of a tile: the partitions of SBUF and of PSUM.
PARTITIONS: Final = 128
# The numbers of partitions, over one, on which a row may lie.
SPLITS: Final = (2, 4, 8, 16, 32, 64, 128)
# Bytes of a float32 number.
FLOAT32_BYTES: Final = 4
# The documented domain of ``log`` ends here, and begins at the inverse.
LIMIT_OF_LOG: Final = 2.0**64

HbmTensor: TypeAlias = "nl.NkiTensor | Any"
"""The type of a tensor argument in the signature of a public kernel. In NKI code it is an ``nl.NkiTensor``, in a launch
from the host its source: an array of numpy, a tensor of torch or a :class:`~nkilib.simulator.Spec`. Type checkers let
all of these through."""


def div_ceil(numerator: int, denominator: int) -> int:
    """Return the smallest integer that is not less than ``numerator / denominator``, for positive integers."""
    return (numerator + denominator - 1) // denominator
