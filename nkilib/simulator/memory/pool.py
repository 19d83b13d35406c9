# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A pool of the memory of large on-chip tensors, so that not every launch allocates fresh pages."""

from __future__ import annotations

import sys
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

# Smaller arrays cost little to allocate.
SMALLEST_POOLED_BYTES = 1 << 20
# About the SBUF of two cores: more than that is never alive at once in a kernel that fits the device.
_LARGEST_TOTAL_BYTES = 64 << 20
# References to an array that only its storage holds: the storage's own, and the argument of getrefcount.
_UNSHARED_REFERENCES = 3


class BytePool:
    """A pool of unused byte arrays, by size."""

    def __init__(self) -> None:
        self._free: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._total = 0
        self._lock = Lock()

    @property
    def kept_bytes(self) -> int:
        """The bytes that are available for reuse."""
        return self._total

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return an array of ``nbytes`` bytes with arbitrary content."""
        with self._lock:
            arrays = self._free.get(nbytes)
            if arrays:
                self._total -= nbytes
                return arrays.pop()
        return np.empty(nbytes, np.uint8)

    def give(self, array: npt.NDArray[Any]) -> None:
        """Take back an array for reuse, unless it is small, the pool is full or it is still referenced elsewhere."""
        if array.size < SMALLEST_POOLED_BYTES or sys.getrefcount(array) > _UNSHARED_REFERENCES:
            return
        with self._lock:
            if self._total + array.size <= _LARGEST_TOTAL_BYTES:
                self._free.setdefault(array.size, []).append(array)
                self._total += array.size


ON_CHIP_POOL = BytePool()
