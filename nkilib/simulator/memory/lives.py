"""When on-chip tensors hold data that is still needed: from the first instruction that touches one to the last.

Instructions are counted for each core. A tensor that the kernel makes but never uses takes no room, as in a compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..terms.description import describe
from ..terms.dtypes import DType
from ..terms.errors import kernel_frame
from ..terms.regions import MemoryRegion

# Before the first instruction, which has number 1.
_NEVER = 0


class LiveRange:
    """The life of one on-chip tensor of one core.

    Attributes:
        region: SBUF or PSUM.
        partitions: how many it takes.
        nbytes: bytes that it takes in each of them, in the device's types.
        storage: the number of the storage that holds the tensor.
        address: first partition and first byte where the kernel places it itself, or None.
        first, last: numbers of the instructions that touched it first and last; 0 if none did.
        earlier: lives that ended because an instruction overwrote the whole tensor (kept for placed tensors only).
    """

    __slots__ = (
        "_code",
        "_dtype",
        "_earlier",
        "_line",
        "_name",
        "_shape",
        "address",
        "first",
        "last",
        "nbytes",
        "partitions",
        "region",
        "storage",
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
        self.address = address
        self.storage = storage
        self._shape, self._dtype, self._name = shape, dtype, name
        self.first = self.last = _NEVER
        self._earlier: list[tuple[int, int]] | None = None  # most have none
        frame = kernel_frame()
        self._code = None if frame is None else frame.f_code
        self._line = 0 if frame is None else frame.f_lineno

    @property
    def place(self) -> str:
        """``file:line`` of the kernel that made the tensor."""
        return "<unknown>" if self._code is None else f"{self._code.co_filename}:{self._line}"

    @property
    def earlier(self) -> Sequence[tuple[int, int]]:
        return self._earlier or ()

    @property
    def is_used(self) -> bool:
        return self.first != _NEVER

    def touch(self, number: int) -> None:
        """Instruction ``number`` reads or writes the tensor."""
        if self.first == _NEVER:
            self.first = number
        self.last = number

    def restart(self, number: int) -> None:
        """Instruction ``number`` overwrites the whole tensor: what it held before is not needed any more."""
        if self.is_used:
            self._earlier = self._earlier or []
            self._earlier.append((self.first, self.last))
        self.first = self.last = number

    def __str__(self) -> str:
        return f"{describe(self._name, self._shape, self._dtype, self.region)}, made at {self.place}"
