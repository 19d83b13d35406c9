"""``NkiTensor``: a view (shape, strides, offset) of a storage, as NKI has it. Only assignment moves data.

Source: ``nki/api/nki/language/__init__.py`` (class NkiTensor), ``nki/get-started/nki-language-guide.rst`` (Tensor
Values, Tensor Indexing) and ``nki/deep-dives/nki-aps.rst`` of the NKI documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, ClassVar, NoReturn

import numpy as np

from ..memory.storage import Storage
from ..terms.description import describe_stranger
from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError, OutOfRangeError
from ..terms.layout import Layout, dense
from ..terms.regions import HBM, MemoryRegion, as_region
from .access_patterns import AccessPatterns
from .python_operators import PythonOperators
from .text import values_text
from .view import Indirect, View


class NkiTensor(AccessPatterns, PythonOperators):
    """A tensor in SBUF, PSUM or HBM; create one with ``nl.ndarray``.

    ``print`` shows its values, ``repr`` and f-strings one line; in a debugger ``t.array`` is a numpy view of them.

    Attributes:
        shape: sizes; on chip, dimension 0 counts partitions.
        strides: elements from one index to the next, by dimension.
        offset: first element, counted from the start of the storage.
        dtype: type of an element.
        buffer: the memory region.
        name: for messages.
    """

    __slots__ = ()

    # Of the results of the functions on tiles, and of those of nl.equal and its relatives; see the methods below.
    is_computed = False
    is_comparison = False
    # What an assignment runs: an instruction, and those are made of tensors.
    _copy_tile: ClassVar[Callable[[NkiTensor, NkiTensor], object]]

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        storage: Any,
        buffer: MemoryRegion | str = MemoryRegion.sbuf,
        name: str = "",
    ) -> None:
        layout = dense(tuple(int(size) for size in shape))
        self._set(layout, as_dtype(dtype), storage, as_region(buffer), name, None)

    @classmethod
    def whole(cls, storage: Storage) -> NkiTensor:
        """All of a storage, in the shape and type that it was made with. For the simulator."""
        tensor = cls.__new__(cls)
        tensor._set(dense(storage.shape), storage.dtype, storage, storage.region, storage.name, None)
        tensor.is_whole = True
        return tensor

    @classmethod
    def assign_by(cls, copy_tile: Callable[[NkiTensor, NkiTensor], object]) -> None:
        """Let ``t[key] = tile`` run ``copy_tile(t[key], tile)``."""
        cls._copy_tile = staticmethod(copy_tile)

    def mark_computed(self) -> None:
        """Remember that a function on tiles made this: whether there is a tensor is then no question to ask."""
        self.is_computed = True

    def mark_comparison(self) -> None:
        """Remember that these are the truth values of a comparison, which examples assert."""
        self.is_comparison = True

    def _outside(self, layout: Layout, dtype: DType, message: str) -> NkiTensor:
        return OutsideTensor(self, layout, dtype, message)

    def __str__(self) -> str:
        """The one line and below it the values, shortened as numpy does it; ``--`` where nothing was written yet."""
        return f"{self!r}\n{values_text(self)}"

    def __bool__(self) -> bool:
        """Whether there is a tensor, as published kernels ask of an optional one: of one in HBM or of a whole tile.

        On the device every tensor is true. Of a result or of a part, such as ``t[0, 0]``, the values must be meant.
        """
        if self.is_comparison:
            return self._holds_everywhere()
        if self.buffer in HBM or (self.is_whole and not self.is_computed):
            return True
        raise NkiValidationError(
            f"{self}: the values of a tensor are not known while the kernel is being built; nisa.register_load brings "
            f"one into a register, and 'is not None' asks whether there is a tensor"
        )

    def _holds_everywhere(self) -> bool:
        """The truth of a comparison, which examples of ``nki.language`` assert: true, or an error.

        On the device every tensor is true; a kernel that went on with False would not do there what it did here.
        Where there are no values, it goes on with True.
        """
        if self.storage.is_abstract:
            return True
        failed = self.size - int(np.count_nonzero(self.array))
        if failed:
            raise NkiValidationError(
                f"{self}: the comparison does not hold for {failed} of {self.size} elements, and a kernel cannot "
                f"branch on that: the values of a tensor are not known while it is being built"
            )
        return True

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy the tile ``value`` to ``self[key]``, of the same shape on chip, with one ``nisa.tensor_copy``.

        The documentation lists the method without a word; its migration guide fills a part of a tile so.
        """
        view = self[key]
        if not view.is_on_chip():
            raise NkiValidationError(
                f"NkiTensor.__setitem__: only a tile in sbuf or psum can be assigned to, got {self}; write to HBM "
                f"with nisa.dma_copy or nl.store"
            )
        if not isinstance(value, NkiTensor) or not value.is_on_chip() or value.shape != view.shape:
            raise NkiValidationError(
                f"NkiTensor.__setitem__: {view} takes a tile of that shape in sbuf or psum, got "
                f"{describe_stranger(value)}; nisa.memset sets all elements, nisa.dma_copy reads from HBM"
            )
        type(self)._copy_tile(view, value)


# Kernels know the inherited methods as those of NkiTensor, and so shall Python's message for a wrong call.
for _base in NkiTensor.__mro__[1:]:
    for _name, _method in vars(_base).items():
        if isinstance(_method, FunctionType) and not _name.startswith("__"):
            _method.__qualname__ = f"{NkiTensor.__name__}.{_method.__name__}"


class OutsideTensor(NkiTensor):
    """A view whose pattern leaves its tensor: it may be made, and refuses every use.

    Published kernels make the views of all rounds of a loop and use those that a condition, stated later, lets through.
    """

    __slots__ = ("_message",)

    def __init__(self, tensor: View, layout: Layout, dtype: DType, message: str) -> None:
        self._message = message
        self._set(layout, dtype, tensor.storage, tensor.buffer, tensor.name, None)

    # What an instruction, and each method that makes a view of this one, asks for before it looks at an element.
    @property
    def _indirect(self) -> NoReturn:
        raise OutOfRangeError(self._message)

    @_indirect.setter
    def _indirect(self, indirect: Indirect | None) -> None:
        """A static view has none."""
