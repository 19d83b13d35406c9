"""When on-chip tensors hold data that is still needed: from the first instruction that touches one to the last.

Instructions are counted for each core. A tensor that the kernel makes but never uses takes no room, as in a compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..terms.description import describe
from ..terms.errors import kernel_frame
from ..terms.layout import is_dense
from ..terms.regions import MemoryRegion

if TYPE_CHECKING:
    from ..tensors.tensor import NkiTensor

# Before the first instruction, which has number 1.
_NEVER = 0


class LiveRange:
    """The life of one on-chip tensor of one core.

    Attributes:
        region: SBUF or PSUM.
        partitions: how many it takes.
        nbytes: bytes that it takes in each of them, in the device's types.
        address: first partition and first byte where the kernel places it itself, or None.
        first, last: numbers of the instructions that touched it first and last; 0 if none did.
        earlier: lives that ended because an instruction overwrote the whole tensor (kept for placed tensors only).
    """

    __slots__ = (
        "_code",
        "_dtype",
        "_line",
        "_name",
        "_shape",
        "address",
        "earlier",
        "first",
        "last",
        "nbytes",
        "partitions",
        "region",
    )

    def __init__(self, tensor: NkiTensor, address: tuple[int, int] | None = None) -> None:
        self.region: MemoryRegion = tensor.buffer
        self.partitions: int = tensor.shape[0]
        self.nbytes: int = tensor.free_size * tensor.dtype.itemsize
        self.address = address
        self._shape, self._dtype, self._name = tensor.shape, tensor.dtype, tensor.name
        self.first = self.last = _NEVER
        self.earlier: list[tuple[int, int]] = []
        frame = kernel_frame()
        self._code = None if frame is None else frame.f_code
        self._line = 0 if frame is None else frame.f_lineno

    @property
    def place(self) -> str:
        """``file:line`` of the kernel that made the tensor."""
        return "<unknown>" if self._code is None else f"{self._code.co_filename}:{self._line}"

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
            self.earlier.append((self.first, self.last))
        self.first = self.last = number

    def __str__(self) -> str:
        return f"{describe(self._name, self._shape, self._dtype, self.region)}, made at {self.place}"


def touch_output(tensor: NkiTensor, number: int, adds_to: bool) -> None:
    """Instruction ``number`` writes ``tensor``.

    Args:
        tensor: what it writes.
        number: of the instruction.
        adds_to: whether it may need what was there before.
    """
    life = tensor.storage.life
    if life is None:
        return
    if life.address is not None and not adds_to and covers_storage(tensor):
        life.restart(number)
    else:
        life.touch(number)


def keep_elements(tensor: NkiTensor, number: int) -> None:
    """Instruction ``number``, which writes ``tensor``, leaves some of its elements as they were: they are needed."""
    life = tensor.storage.life
    if life is not None:
        life.touch(number)


def covers_storage(tensor: NkiTensor) -> bool:
    """Whether the view has all elements of its storage."""
    if tensor.is_whole:
        return True
    is_large_enough = tensor.size == tensor.storage.elements_of(tensor.dtype)
    return is_large_enough and not tensor.is_indirect() and is_dense(tensor.shape, tensor.strides)
