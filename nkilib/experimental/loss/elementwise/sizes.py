"""Sizes that all losses of elements have in common."""

from __future__ import annotations

from typing import Final

PARTITIONS: Final = 128
# Columns of a piece: instructions of so many have little overhead, and their float32 tiles are 8 KiB a partition.
PIECE_COLUMNS: Final = 2048
# Elements that an accumulator of an engine adds up before it is read: their order is the engine's.
RUN_COLUMNS: Final = 512
# A piece and the one that is prepared while it is finished.
PIECES_AT_A_TIME: Final = 2
# Tiles whose sums of runs are on chip at a time.
SUM_TURNS: Final = 3
