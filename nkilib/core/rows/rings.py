"""Tiles on chip that are taken in turn."""

from __future__ import annotations

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.nki import nl


def ring_of(count: int, columns: int, dtype: nl.DType) -> list[nl.NkiTensor]:
    """So many tiles [128, columns]."""
    return [nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]
