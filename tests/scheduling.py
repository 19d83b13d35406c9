# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How pytest-xdist hands out files: as with its `--dist loadfile`, at a cost that does not grow with the tests before.

Its own scheduler looks for every test in the list of all tests, and goes through all files that a process has ended
after each test: of 24,000 tests in 400 files that is half of the time of the process that hands them out, on the two
cores that the tests run on. It also gives a file to one process, which on many cores is still at the longest one when
all others have ended: a file in ``DIVISIBLE`` is handed out in pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

DIVISIBLE: Final = {"tests/experimental/plans/test_tables.py": 30}
"""Files of long runs whose tests share no dear fixture or cache, with the tests in a piece."""


class _Places(list[str]):
    """Ids of tests, which know their places."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(ids)
        self._places = {test: place for place, test in enumerate(ids)}

    def index(self, test: str, *_: object) -> int:
        return self._places[test]


class FileScheduling(LoadFileScheduling):
    """`LoadFileScheduling` that forgets a file when its last test has ended, and divides some files."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        self._pieces: dict[str, str] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = _Places(collection)
        if not self._pieces:
            self._pieces = _pieces_of(collection)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        test = self.registered_collections[node][item_index]
        file = self._split_scope(test)
        of_file = self.assigned_work[node][file]
        of_file[test] = True
        if all(of_file.values()):
            del self.assigned_work[node][file]
        self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        """Return the file of a test, or its piece of a file that is divided."""
        return self._pieces.get(nodeid) or super()._split_scope(nodeid)


def _pieces_of(collection: Sequence[str]) -> dict[str, str]:
    """Return the names of the pieces by test, for the tests of files that are divided."""
    pieces: dict[str, str] = {}
    before: Counter[str] = Counter()
    for test in collection:
        file = test.partition("::")[0]
        if file in DIVISIBLE:
            pieces[test] = f"{file}, piece {before[file] // DIVISIBLE[file]}"
            before[file] += 1
    return pieces
