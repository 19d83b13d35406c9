# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The way of numbers of partitions to a line, where those of a row that lies on several partitions are side by side
(:func:`on_line`), and back (:func:`off_line`).
"""

from __future__ import annotations

from nkilib.nki import nisa, nl


def on_line(column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Transpose [partitions, 1] to [1, partitions] in PSUM, where the values of the partitions of a row lie side by
    side.
    """
    line_psum = nl.ndarray((1, column_sbuf.shape[0]), dtype=column_sbuf.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=line_psum, data=column_sbuf)
    return line_psum


def off_line(line_sbuf: nl.NkiTensor, parts: int) -> nl.NkiTensor:
    """Copy the values of a line, [1, rows], to the partitions of the rows, [rows * parts, 1] in PSUM."""
    rows = line_sbuf.shape[1]
    spread_sbuf = nl.ndarray((1, rows, parts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=spread_sbuf, src=line_sbuf.expand_dim(2).broadcast(2, parts))
    column_psum = nl.ndarray((rows * parts, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=column_psum, data=spread_sbuf.reshape((1, rows * parts)))
    return column_psum
