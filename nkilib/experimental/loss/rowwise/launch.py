"""What forward and backward of a launch have in common."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.rowwise.geometry import RowGroup, RowTile, groups_of_core, row_tiles
from nkilib.experimental.loss.rowwise.host.tiling import RowwiseTiling, partitions_of_tile
from nkilib.nki import nl


@dataclass(frozen=True)
class RowLaunch:
    """Tensors of one shape, and how they are cut up.

    Attributes:
        matrices_hbm: [N, D] in the order of the kind's numbers; [1, D] for one that all rows share.
        vectors_hbm: float32 [N], a number for each row, in the order of the kind.
        tiling: of the rows.
    """

    matrices_hbm: tuple[nl.NkiTensor, ...]
    tiling: RowwiseTiling
    vectors_hbm: tuple[nl.NkiTensor, ...] = ()

    @property
    def rows(self) -> int:
        """N."""
        return int(self.matrices_hbm[0].shape[0])

    @property
    def columns(self) -> int:
        """D."""
        return int(self.matrices_hbm[0].shape[1])

    def tiles(self) -> list[RowTile]:
        """Of all cores."""
        return row_tiles(self.rows, partitions_of_tile(self.rows), self.tiling.each)

    def groups(self) -> list[RowGroup]:
        """Of this core."""
        return groups_of_core(self.tiles(), nl.num_programs(), nl.program_id(0))
