"""How a core's positions are divided: into batches, one position a partition, and into groups of batches."""

from __future__ import annotations

from typing import Any

from nkilib.core.cores import positions_of_core, strided_rows
from nkilib.experimental.loss.sbuf_plan import GROUP_BATCHES_MAX, STATISTICS_COLUMNS


def batches_of_core(num_positions: int, cores: int, core: int, batch_rows: int) -> Any:
    """First position and number of positions of each batch of a core; its positions follow in steps of ``cores``."""
    positions = positions_of_core(num_positions, cores, core)
    batches = list()
    for done in range(0, positions, batch_rows):
        batches.append((core + done * cores, min(batch_rows, positions - done)))
    return batches


def batch_groups(num_batches: int, num_chunks: int) -> Any:
    """Groups of batches whose logs are taken together.

    The last batch is a group of its own: it may have fewer rows, and after the last chunk only its results are left to
    be stored, while those of the others have been stored meanwhile.

    Args:
        num_batches: of the core, at least one.
        num_chunks: of a row.

    Returns:
        List of (first batch, end).
    """
    groups = list()
    most = max(1, min(GROUP_BATCHES_MAX, STATISTICS_COLUMNS // num_chunks))
    for start in range(0, num_batches - 1, most):
        groups.append((start, min(start + most, num_batches - 1)))
    groups.append((num_batches - 1, num_batches))
    return groups


def group_values(vector_hbm: Any, first: int, rows: int, batches: int, cores: int) -> Any:
    """The values of a group of batches as a view [rows, batches] of a vector [N].

    Args:
        vector_hbm: one value a position.
        first: position of the group's first row; the next ones of the core follow in steps of ``cores``.
        rows, batches, cores: of the group, and of the launch.
    """
    of_group_hbm = strided_rows(vector_hbm, first, rows * batches, cores)
    return of_group_hbm.reshape_dim(0, (batches, rows)).permute((1, 0))
