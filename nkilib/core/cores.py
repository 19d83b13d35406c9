# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Splitting work over the cores of a logical NeuronCore, and waiting for them; NKI code may call everything here.

Positions go to cores in strides: core c takes positions c, c + cores, c + 2 * cores, ... Thus the cores' shares differ
by at most one position whatever the number of positions is.
"""

from __future__ import annotations

from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl


def positions_of_core(num_positions: int, cores: int, core: int) -> int:
    """How many of ``num_positions`` fall to ``core``; 0 where there are fewer positions than cores."""
    if num_positions <= core:
        return 0
    return div_ceil(num_positions - core, cores)


def strided_rows(tensor_hbm: nl.NkiTensor, first: int, rows: int, cores: int) -> nl.NkiTensor:
    """Rows ``first``, ``first + cores``, ... of a tensor, ``rows`` of them, as a view."""
    return tensor_hbm.slice(0, first, first + row_span(rows, cores), cores)


def row_span(rows: int, cores: int) -> int:
    """Rows from the first to the last of ``rows`` strided ones, both included."""
    return (rows - 1) * cores + 1


def meet(tensor_hbm: nl.NkiTensor) -> None:
    """Wait until both cores are done with a tensor."""
    if nl.num_programs() > 1:
        nisa.core_barrier(tensor_hbm, tuple(range(nl.num_programs())))
