"""``NkiTensor``: a view (shape, strides, offset) of a storage, as NKI has it. No method here moves data.

Source: ``nki/api/nki/language/__init__.py`` (class NkiTensor), ``nki/get-started/nki-language-guide.rst`` (Tensor
Values, Tensor Indexing) and ``nki/deep-dives/nki-aps.rst`` of the NKI documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .access_patterns import AccessPatterns
from .dtypes import as_dtype
from .errors import NkiValidationError
from .layout import dense
from .memory import HBM, MemoryRegion, as_region
from .python_operators import PythonOperators
from .storage import Storage


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

    def __bool__(self) -> bool:
        if self.buffer in HBM:
            return True  # public kernels ask so whether an optional tensor was passed
        raise NkiValidationError(
            f"{self}: the values of a tensor are not known while the kernel is being built; nisa.register_load brings "
            f"one into a register, and 'is not None' asks whether there is a tensor"
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        # The documentation gives the name alone; what it might do (copy, cast, on which engine) is not said anywhere.
        raise NotImplementedError(
            f"NkiTensor.__setitem__: assignment to {self} is not implemented in the simulator; write with an "
            "instruction, for instance nisa.tensor_copy or nisa.dma_copy"
        )
