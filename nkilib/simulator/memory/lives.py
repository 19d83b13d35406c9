# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Lifetimes of on-chip tensors: from the first instruction that touches a tensor to the last.

Instructions are counted for each core. A tensor that the kernel makes but never uses takes no room, as in a compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..hardware.limits import PARTITIONS
from ..terms.description import describe
from ..terms.dtypes import DType
from ..terms.errors import kernel_frame
from ..terms.regions import MemoryRegion

# Partitions are placed by quarters of 32.
QUARTER = PARTITIONS // 4
# Before the first instruction, which has number 1.
_NEVER = 0


class LiveRange:
    """The lifetime of one on-chip tensor of one core.

    Attributes:
        region: SBUF or PSUM.
        partitions: the number of partitions that the tensor takes.
        nbytes: the bytes that it takes in each of these partitions on the device.
        quarters: the number of quarters of the partitions that it takes, 1, 2 or 4; a tile starts at a quarter.
        area: ``nbytes`` times ``quarters``, the space that it takes at any position.
        storage: the number of the storage that holds the tensor.
        address: the first partition and first byte if the kernel places it itself, or None.
        first, last: the numbers of the first and the last instruction that touched it; 0 if none did.
        counted: the last instruction up to which :class:`CertainUse` has counted it.
        window: the window of :class:`CertainUse` in which it was last touched; 0 if it was not.
        earlier: first and last instruction of earlier lifetimes, which ended because an instruction overwrote the whole
            tensor (for placed tensors only).
    """

    __slots__ = (
        "_code",
        "_dtype",
        "_earlier",
        "_line",
        "_name",
        "_shape",
        "address",
        "area",
        "counted",
        "first",
        "last",
        "nbytes",
        "partitions",
        "quarters",
        "region",
        "storage",
        "window",
    )

    def __init__(
        self,
        region: MemoryRegion,
        shape: tuple[int, ...],
        dtype: DType,
        name: str = "",
        address: tuple[int, ...] | None = None,
        storage: int = -1,
    ) -> None:
        self.region = region
        self.partitions = shape[0]
        elements = shape[1] if len(shape) == 2 else prod(shape[1:])  # most have two dimensions
        self.nbytes = elements * dtype.itemsize
        self.quarters = 1 if self.partitions <= QUARTER else 2 if self.partitions <= 2 * QUARTER else 4
        self.area = self.nbytes * self.quarters
        self.address = address
        self.storage = storage
        self._shape, self._dtype, self._name = shape, dtype, name
        self.first = self.last = self.counted = _NEVER
        self.window = 0
        self._earlier: list[tuple[int, int]] | None = None  # most have none
        frame = kernel_frame()
        self._code = None if frame is None else frame.f_code
        self._line = 0 if frame is None else frame.f_lineno

    @property
    def place(self) -> str:
        """The line of the kernel that made the tensor, as ``file:line``."""
        return "<unknown>" if self._code is None else f"{self._code.co_filename}:{self._line}"

    @property
    def earlier(self) -> Sequence[tuple[int, int]]:
        return self._earlier or ()

    @property
    def is_used(self) -> bool:
        return self.first != _NEVER

    def touch(self, number: int) -> None:
        """Record that instruction ``number`` reads or writes the tensor."""
        if self.first == _NEVER:
            self.first = number
        self.last = number

    def restart(self, number: int) -> None:
        """Record that instruction ``number`` overwrites the whole tensor, whose earlier content is no longer needed."""
        if self.is_used:
            self._earlier = self._earlier or []
            self._earlier.append((self.first, self.last))
        self.first = self.last = number

    @property
    def tensor(self) -> str:
        """The tensor's name, shape and type, and its region."""
        return describe(self._name, self._shape, self._dtype, self.region)

    def __str__(self) -> str:
        return f"{self.tensor}, made at {self.place}"
