"""Views whose address is read from a tensor at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import NkiValidationError, OutOfRangeError, UninitializedReadError

if TYPE_CHECKING:
    from .tensor import NkiTensor


@dataclass(frozen=True)
class Indirect:
    """The dynamic part of an address.

    Attributes:
        kind: ``"scalar"``: one index for the whole view; ``"vector"``: one index a row (dimension 0) of the view.
        index: SBUF tensor of the index, shape (1, 1) or (P, 1).
        stride: elements by which one step of the index moves.
        limit: the index must lie in [0, limit).
        source: name of the tensor that is indexed, for messages.
        dim: dimension of the view that the indirection took the place of (None where ``select`` removed it).
    """

    kind: Literal["scalar", "vector"]
    index: NkiTensor
    stride: int
    limit: int
    source: str
    dim: int | None

    def read(self) -> npt.NDArray[np.int64]:
        """The index values, one a row, as int64; unsigned types keep their value.

        Raises:
            UninitializedReadError: if an index was never written, whatever the options say: a sentinel is no address.
        """
        tensor = self.index
        if tensor.storage.count_unwritten(tensor.layout, tensor.dtype):
            raise UninitializedReadError(f"index {tensor} is read before it was written")
        return tensor.array.reshape(-1).astype(np.int64)

    def out_of_range(self, row: int, value: int, limit: int | None = None) -> OutOfRangeError:
        """The error for index ``value`` of ``row``; ``limit`` where the view's offset leaves fewer rows."""
        limit = self.limit if limit is None else limit
        note = self.index.storage.index_note
        explained = f"{note.describe(row)}: " if note is not None else ""
        return OutOfRangeError(
            f"{explained}index {value} in partition {row} of {self.index} is out of range [0, {limit}) of {self.source}"
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


def check_index_tensor(owner: str, index: Any, kind: str) -> None:
    """Refuse an index that is no integer SBUF tensor of the documented shape.

    Raises:
        NkiValidationError: naming ``owner`` and what is required.
    """
    shape = getattr(index, "shape", None)
    wanted = "(1, 1)" if kind == "scalar" else "(P, 1)"
    if shape is None or not hasattr(index, "buffer"):
        raise NkiValidationError(f"{owner}: the {kind} offset must be an SBUF tensor of shape {wanted}, got {index!r}")
    if str(index.buffer) != "sbuf" or not index.dtype.is_integer:
        raise NkiValidationError(f"{owner}: the {kind} offset must be an integer tensor in SBUF, got {index}")
    if len(shape) != 2 or shape[1] != 1 or (kind == "scalar" and shape[0] != 1):
        raise NkiValidationError(f"{owner}: the {kind} offset must have shape {wanted}, got {index}")
    if index.is_indirect():
        raise NkiValidationError(f"{owner}: the {kind} offset must not be an indirect view itself, got {index}")
