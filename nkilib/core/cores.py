# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Work division over the cores of a logical NeuronCore, and a barrier between them. NKI code may call everything here.

Positions go to cores with a stride: core c takes positions c, c + cores, c + 2 * cores, ... The shares of the cores
therefore differ by at most one position, whatever the number of positions is.
"""

from __future__ import annotations

from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl


def positions_of_core(num_positions: int, cores: int, core: int) -> int:
    """Return how many of ``num_positions`` fall to ``core``; 0 where there are fewer positions than cores."""
    if num_positions <= core:
        return 0
    return div_ceil(num_positions - core, cores)


def strided_rows(tensor_hbm: nl.NkiTensor, first: int, rows: int, cores: int) -> nl.NkiTensor:
    """Return a view of ``rows`` rows of a tensor: ``first``, ``first + cores``, ..."""
    return tensor_hbm.slice(0, first, first + row_span(rows, cores), cores)


def row_span(rows: int, cores: int) -> int:
    """Return the number of rows of the matrix from the first to the last of ``rows`` strided ones, both included."""
    return (rows - 1) * cores + 1


def synchronise(tensor_hbm: nl.NkiTensor) -> None:
    """Synchronise the cores at a barrier: wait until both are done with a tensor."""
    if nl.num_programs() > 1:
        nisa.core_barrier(tensor_hbm, tuple(range(nl.num_programs())))
