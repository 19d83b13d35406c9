# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The order of the stages of a loop over rows: a tile is loaded again only after its results have been stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from nkilib.experimental.softmax.row_plan import RowPiece
from nkilib.experimental.softmax.row_schedule import run


@dataclass
class Noted:
    """Stages that are only noted: as many batches as asked for, of some pieces each, in two tiles in turn."""

    batches: list[Any]
    batches_on_chip: int = 2
    combining_stages: int = 1
    loads_again: bool = False
    most_taken: int | None = None
    noted: list[tuple[str, int, Any]] = field(default_factory=list)

    def __getattr__(self, stage: str) -> Any:
        return lambda number, piece: self.noted.append((stage, number, piece))


@pytest.mark.parametrize("pieces", [2, 5])
def test_a_piece_is_loaded_once_the_one_in_its_place_is_stored(pieces: int) -> None:
    of_batch = [RowPiece(0, 1, 64 * column, 64 * column + 64, column) for column in range(pieces)]
    stages = Noted([SimpleNamespace(rows_each=1, pieces=of_batch) for _ in range(6)])
    run(stages)
    assert len(stages.noted) == 6 * (6 * pieces + 1)
    for number in range(2, 6):
        for piece in of_batch:
            loaded, stored = stages.noted.index(("load", number, piece)), ("store", number - 2, piece)
            assert stored in stages.noted[:loaded]


@pytest.mark.parametrize("most_taken", [4, 7])
def test_no_more_pieces_are_taken_than_have_tiles(most_taken: int) -> None:
    """Between a piece's statistics and its end there are as many others as tiles, and no more."""
    of_batch = [RowPiece(0, 1, 64 * column, 64 * column + 64, column) for column in range(3)]
    batches = [SimpleNamespace(rows_each=1, pieces=of_batch) for _ in range(6)]
    stages = Noted(batches, batches_on_chip=4, combining_stages=5, most_taken=most_taken)
    run(stages)
    in_flight, most = 0, 0
    for stage, _, _ in stages.noted:
        in_flight += {"take": 1, "finish": -1}.get(stage, 0)
        most = max(most, in_flight)
    assert (in_flight, most) == (0, most_taken)
