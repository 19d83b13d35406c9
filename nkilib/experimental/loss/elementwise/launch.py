"""What forward and backward of a launch have in common."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.elementwise.host.tiling import ElementwiseTiling
from nkilib.experimental.loss.elementwise.sizes import piece_columns, run_columns
from nkilib.nki import nl


@dataclass(frozen=True)
class Launch:
    """Tensors, and how they are cut up.

    Attributes:
        tensors_hbm: by name, the first one first. All have its shape, but that of one of [rows, columns] some may be
            [rows, 1] or [1, columns].
        tiling: of the stream.
        scratch_tiles: of a piece.
    """

    tensors_hbm: dict[str, nl.NkiTensor]
    tiling: ElementwiseTiling
    scratch_tiles: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first tensor, and of losses and gradients."""
        return tuple(next(iter(self.tensors_hbm.values())).shape)

    @property
    def elements(self) -> int:
        """Of such a tensor."""
        return prod(self.shape)

    @property
    def is_by_rows(self) -> bool:
        """Whether a weight is one of rows or of columns."""
        return any(tuple(each.shape) != self.shape for each in self.tensors_hbm.values())

    @property
    def run_columns(self) -> int:
        """Elements that an accumulator adds up before it is read."""
        sizes = [dtype_bytes(each.dtype) for each in self.tensors_hbm.values()]
        return run_columns(sizes, piece_columns(self.scratch_tiles))
