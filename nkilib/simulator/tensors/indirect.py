"""Views whose address is read from a tensor or a register at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..machine.core import current_core
from ..terms.errors import NkiValidationError, OutOfRangeError, UninitializedReadError
from ..terms.layout import Layout
from ..terms.regions import MemoryRegion
from .registers import VirtualRegister

if TYPE_CHECKING:
    from .tensor import NkiTensor
    from .view import View


@dataclass(frozen=True)
class Indirect:
    """The dynamic part of an address. The index is read when an instruction uses the view, as the device does it.

    Attributes:
        kind: ``"scalar"``: one index for the whole view; ``"vector"``: one index a row (dimension 0) of the view;
            ``"tensor"``: the index tensor holds the free element for each element of a row (``indirect``).
        index: SBUF tensor of the index, shape (1, 1), (P, 1) or (P, K); or a register in place of a scalar.
        stride: elements by which one step of the index moves.
        limit: the index must lie in [0, limit).
        source: the tensor that is indexed, for messages.
        dim: dimension of the view whose index a vector is, which is 0; None for the other kinds.
        base: with ``"tensor"``, the view whose free elements are chosen; the indirect view's own layout is that of
            the elements gathered into a dense tensor.
        count: with ``"tensor"``, how many offsets are used.
    """

    kind: Literal["scalar", "vector", "tensor"]
    index: NkiTensor | VirtualRegister
    stride: int
    limit: int
    source: object
    dim: int | None
    base: NkiTensor | None = None
    count: int = 0

    def read(self) -> npt.NDArray[np.int64]:
        """The index values in row-major order as int64; unsigned types keep their value.

        Raises:
            UninitializedReadError: if an index was never written, whatever the options say: a sentinel is no address.
        """
        if isinstance(self.index, VirtualRegister):
            return np.array([self.index.value(f"the index of {self.source}")], np.int64)
        tensor = self.index
        if tensor.storage.count_unwritten(tensor.layout, tensor.dtype):
            raise UninitializedReadError(f"index {tensor} is read before it was written")
        if tensor.storage.life is not None:
            tensor.storage.life.touch(current_core("an index tensor").instruction_number)
        return tensor.array.reshape(-1).astype(np.int64)

    def out_of_range(self, row: int, value: int, limit: int | None = None) -> OutOfRangeError:
        """The error for index ``value`` of ``row``; ``limit`` where the view's offset leaves fewer rows."""
        limit = self.limit if limit is None else limit
        if isinstance(self.index, VirtualRegister):
            return OutOfRangeError(f"index {value} of {self.index} is out of range [0, {limit}) of {self.source}")
        note = self.index.storage.index_note
        explained = f"{note.describe(row)}: " if note is not None else ""
        column, partition = divmod(row, self.index.shape[0])
        place = f"partition {partition}" + (f", column {column}," if column else "")
        return OutOfRangeError(
            f"{explained}index {value} in {place} of {self.index} is out of range [0, {limit}) of {self.source}"
        )


@dataclass(frozen=True)
class IndexNote:
    """What a computed index means, so that an error can say it in the kernel author's terms.

    Attributes:
        what: what ``values`` are, for instance ``"target"``.
        values: tensor of shape (P, 1): the value behind the index of each partition.
        first_row: number of the row that partition 0 stands for.
        row_step: rows from one partition to the next.
        limit: the values should lie in [0, limit).
    """

    what: str
    values: NkiTensor
    first_row: int
    row_step: int
    limit: int

    def describe(self, partition: int) -> str:
        row = self.first_row + partition * self.row_step
        value = int(self.values.array.reshape(-1)[partition])
        outside = "" if 0 <= value < self.limit else f", outside [0, {self.limit})"
        return f"row {row} has {self.what} {value}{outside}"


def checked_index_tensor(method: str, view: View, index: Any, kind: str, columns: int | None = 1) -> NkiTensor:
    """The index in two dimensions, if it is an integer SBUF tensor of the documented shape.

    More dimensions of size 1 are left out: the patterns of published kernels keep them.

    Args:
        method, view: who uses the index, for messages.
        index: what the kernel gave.
        kind: ``"scalar"`` or ``"vector"``.
        columns: elements per partition; None for any number.

    Raises:
        NkiValidationError: naming the method and what is required.
    """
    wrong = _what_is_wrong(index, kind, columns)
    if wrong:
        raise NkiValidationError(f"NkiTensor.{method} on {view}: the {kind} offset must {wrong}")
    return _in_two_dimensions(index)


def _what_is_wrong(index: Any, kind: str, columns: int | None) -> str:
    """How an index is not what was documented, behind "must"; an empty string if it is."""
    wanted = "(1, 1)" if kind == "scalar" else "(P, 1)" if columns == 1 else "(P, 1) or (P, N)"
    shape = getattr(index, "shape", None)
    if shape is None or not hasattr(index, "buffer"):
        return f"be an SBUF tensor of shape {wanted}, got {index!r}"
    if index.buffer is not MemoryRegion.sbuf or not index.dtype.is_integer:
        return f"be an integer tensor in SBUF, got {index}"
    if index.is_indirect():
        return f"not be an indirect view itself, got {index}"
    flat = _in_two_dimensions(index).shape
    if len(flat) != 2 or columns not in (None, flat[1]) or (kind == "scalar" and shape[0] != 1):
        return f"have shape {wanted}, got {index}"
    return ""


def _in_two_dimensions(index: NkiTensor) -> NkiTensor:
    """An index without its free dimensions of size 1, of which one stays if there is no other."""
    if len(index.shape) <= 2:
        return index
    free = [dim for dim in range(1, index.ndim) if index.shape[dim] != 1] or [index.ndim - 1]
    shape, strides = (tuple(sizes[dim] for dim in (0, *free)) for sizes in (index.shape, index.strides))
    return index.with_layout(Layout(shape, strides, index.offset))


def checked_scalar_index(method: str, view: View, index: Any) -> NkiTensor | VirtualRegister:
    """The index, a tensor in two dimensions, if it is a register or an integer SBUF tensor of shape (1, 1).

    Raises:
        NkiValidationError: naming the method and what is required.
    """
    return index if isinstance(index, VirtualRegister) else checked_index_tensor(method, view, index, "scalar")


def check_offsets(owner: str, index: Any, partitions: int) -> None:
    """Refuse offsets of a tensor indirection that are no integer SBUF tensor of shape (``partitions``, K).

    Raises:
        NkiValidationError: naming ``owner`` and what is required.
    """
    if not hasattr(index, "buffer") or str(index.buffer) != "sbuf" or not index.dtype.is_integer or index.is_indirect():
        raise NkiValidationError(f"{owner}: the index must be a static integer tensor in SBUF, got {index!r}")
    if len(index.shape) != 2 or index.shape[0] != partitions:
        raise NkiValidationError(f"{owner}: the index must have shape ({partitions}, K), got {index}")
