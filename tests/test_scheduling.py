# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Processes of pytest-xdist get whole files, and pieces of files that are divided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")

from tests import scheduling
from tests.fresh_python import CHECKOUT
from tests.scheduling import DIVISIBLE, FileScheduling

LONG, SHORT = "tests/test_long.py", "tests/test_short.py"
TESTS = [f"{LONG}::test_row[{row}]" for row in range(25)] + [f"{SHORT}::test_{name}" for name in range(12)]


class _Process:
    """A process of pytest-xdist that runs the tests it is given in order."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.ended: list[str] = []
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(processes: int) -> list[_Process]:
    """Hand out ``TESTS``, each process running one test after another at the same speed, until all have ended."""
    config = SimpleNamespace(
        getvalue=lambda _: ["popen"] * processes, option=SimpleNamespace(loadscopereorder=True), rootpath=CHECKOUT
    )
    handed_out, nodes = FileScheduling(config), [_Process() for _ in range(processes)]
    node: Any
    for node in nodes:
        handed_out.add_node(node)
        handed_out.add_node_collection(node, TESTS)
    handed_out.schedule()
    while any(node.given for node in nodes):
        for node in nodes:
            if node.given:
                place = node.given.pop(0)
                node.ended.append(TESTS[place])
                handed_out.mark_test_complete(node, place)
    assert handed_out.tests_finished and not handed_out.has_pending
    return nodes


def of_file(node: _Process, file: str) -> list[str]:
    """Return the tests of a file that a process has run, in order."""
    return [test for test in node.ended if test.startswith(file)]


def test_a_file_is_run_by_one_process() -> None:
    nodes = run(3)
    assert sorted(test for node in nodes for test in node.ended) == sorted(TESTS)
    for file in (LONG, SHORT):
        assert [of_file(node, file) for node in nodes if of_file(node, file)] == [
            [test for test in TESTS if test.startswith(file)]
        ]


# Of three processes the one that has the short file takes no piece of the long one.
@pytest.mark.parametrize(("processes", "with_pieces"), [(1, 1), (2, 2), (3, 2)])
def test_a_file_that_is_divided_is_run_by_several(
    processes: int, with_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "DIVISIBLE", {LONG: 10})
    nodes = run(processes)
    assert sorted(test for node in nodes for test in node.ended) == sorted(TESTS)
    assert len([node for node in nodes if of_file(node, LONG)]) == with_pieces
    assert len([node for node in nodes if of_file(node, SHORT)]) == 1
    pieces = [TESTS[:10], TESTS[10:20], TESTS[20:25]]
    for piece in pieces:
        (node,) = (node for node in nodes if piece[0] in node.ended)
        first = node.ended.index(piece[0])
        assert node.ended[first : first + len(piece)] == piece


def test_files_that_are_divided_are_there() -> None:
    assert all((CHECKOUT / file).is_file() for file in DIVISIBLE)
