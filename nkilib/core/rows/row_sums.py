# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of rows that are computed part by part."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class RowSums:
    """A float32 sum for each part of a row.

    Attributes:
        parts_sbuf: the sums, [rows, parts].
    """

    parts_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, parts: int) -> RowSums:
        """Allocate sums of ``rows`` rows with ``parts`` parts each, without writing them."""
        return cls(nl.ndarray((rows, parts), dtype=nl.float32, buffer=nl.sbuf))

    def part(self, number: int, rows: int) -> nl.NkiTensor:
        """Return the view that takes the sums of a part, [rows, 1], for the first ``rows`` rows."""
        return self.parts_sbuf[0:rows, number : number + 1]

    def total(self, dst_sbuf: nl.NkiTensor, parts: int) -> None:
        """Add the first ``parts`` parts into a tile [rows, 1]."""
        rows = dst_sbuf.shape[0]
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=self.parts_sbuf[0:rows, 0:parts], axis=1)
