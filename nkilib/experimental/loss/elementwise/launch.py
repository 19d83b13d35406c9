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
    """Tensors of one shape, and how they are cut up.

    Attributes:
        tensors_hbm: by name, the first one first.
        tiling: of the flat stream.
        scratch_tiles: of a piece.
    """

    tensors_hbm: dict[str, nl.NkiTensor]
    tiling: ElementwiseTiling
    scratch_tiles: int

    @property
    def elements(self) -> int:
        """Of each tensor."""
        return prod(next(iter(self.tensors_hbm.values())).shape)

    @property
    def run_columns(self) -> int:
        """Elements that an accumulator adds up before it is read."""
        sizes = [dtype_bytes(each.dtype) for each in self.tensors_hbm.values()]
        return run_columns(sizes, piece_columns(self.scratch_tiles))

    def flats(self, names: tuple[str, ...] | None = None) -> dict[str, nl.NkiTensor]:
        """Those tensors, or all, as [elements] by name."""
        chosen = tuple(self.tensors_hbm) if names is None else names
        return {name: self.tensors_hbm[name].reshape((self.elements,)) for name in chosen}
