# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The order in which pieces that overlap are begun and finished, and in which later ones are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from nkilib.core.rows.overlap import run_overlapped


@dataclass
class Recorded:
    """A stream of pieces, by number, and the work on them: what was done, in order."""

    sizes: list[int]
    done: list[str] = field(default_factory=list)

    @property
    def visits(self) -> int:
        return len(self.sizes)

    def pieces(self, visit: int) -> list[int]:
        self.done.append(f"visit {visit}")
        first = sum(self.sizes[:visit])
        return list(range(first, first + self.sizes[visit]))

    def begin(self, placed: int) -> str:
        self.done.append(f"begin {placed}")
        return f"begun {placed}"

    def finish(self, placed: int, begun: str) -> None:
        assert begun == f"begun {placed}"
        self.done.append(f"finish {placed}")


@pytest.mark.parametrize(
    ("sizes", "done"),
    [
        ([], []),
        ([0], ["visit 0"]),
        ([1], ["visit 0", "begin 0", "finish 0"]),
        (
            [2, 1],
            ["visit 0", "begin 0", "begin 1", "finish 0", "visit 1", "begin 2", "finish 1", "finish 2"],
        ),
    ],
    ids=str,
)
def test_a_piece_is_finished_after_the_next_one_has_begun(sizes: list[int], done: list[str]) -> None:
    """Across visits too: a visit loads ahead before the last piece of the one before is finished."""
    recorded = Recorded(sizes)
    run_overlapped(recorded, recorded)
    assert recorded.done == done
