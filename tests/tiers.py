# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Two tiers of tests: `make test` runs the fast one, `make test-slow` the tests that ``tests/slow.txt`` lists.

A new test is fast, and what keeps the fast tier fast is a budget: what a test does in the simulator and has compiled,
which is the same on every machine, may not exceed `LIMIT`, nor what ``tests/budgets.json`` has for the tests of a
folder. A few tests that the tier needs have a larger budget of their own there.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.optional_packages import ABSENT
from tests.simulated_work import Work, count_work, work_so_far
from tests.slow_list import read

BUDGETS = Path(__file__).resolve().parent / "budgets.json"
LIMIT = Work(8_000, 4)  # of a test: about a third of a second on a slow core
FOLDER = Work(10 * LIMIT.units, 2 * LIMIT.compilations)  # of a folder without a budget
_REMEDY = (
    "make it smaller, or move it to the slow tier if a cheaper test reaches what it reaches: "
    "python -m tools.write_slow_tests --move"
)

UNLISTED = pytest.StashKey[list[str]]()  # what slow.txt lists and is not there; absent if not all tests are collected
_START = pytest.StashKey[Work]()
_CALL = pytest.StashKey[Work]()


@dataclass
class Budgets:
    """The budgets of folders, and of tests that may do more than `LIMIT`."""

    folders: dict[str, Work] = field(default_factory=dict)
    tests: dict[str, Work] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path = BUDGETS) -> Budgets | None:
        """The budgets of this checkout; None where there are none."""
        if not file.is_file():
            return None
        found = json.loads(file.read_text(encoding="utf-8"))
        return cls(*({name: Work(*work) for name, work in found[kind].items()} for kind in ("folders", "tests")))

    def written(self) -> str:
        """The text of the file: a budget a line."""
        kinds = []
        for kind, works in (("folders", self.folders), ("tests", self.tests)):
            lines = ",\n".join(f"  {json.dumps(name)}: {list(work)}" for name, work in sorted(works.items()))
            kinds.append(f' "{kind}": {{\n{lines}\n }}')
        return "{\n" + ",\n".join(kinds) + "\n}\n"

    def why_too_much(self, test: str, work: Work) -> str:
        """Why a test does too much; empty if it does not."""
        allowed = self.tests.get(test, LIMIT)
        if all(part <= most for part, most in zip(work, allowed, strict=True)):
            return ""
        return f"a test of the fast tier may do {allowed}, and this one did {work}; {_REMEDY} '{test}'"

    def exceeded(self, done: Mapping[str, Work]) -> list[str]:
        """Return a line for each folder whose tests do too much."""
        lines = []
        for folder, work in sorted(done.items()):
            allowed = self.folders.get(folder, FOLDER)
            if any(part > most for part, most in zip(work, allowed, strict=True)):
                lines.append(
                    f"{folder}: the fast tests of this folder may do {allowed}, and they did {work}; move tests to "
                    "the slow tier (python -m tools.write_slow_tests --move ID ...), or, if they all have to be fast, "
                    "raise its budget in tests/budgets.json"
                )
        return lines


def folder_of(test: str) -> str:
    """The folder that a budget is for: at most three levels deep."""
    return "/".join(test.partition("::")[0].split("/")[:-1][:3])


def _names_tests(config: pytest.Config) -> bool:
    return any("::" in argument for argument in config.args)


def _has_all(config: pytest.Config) -> bool:
    """Whether all tests are collected, with all packages that some of them need."""
    here = {config.invocation_params.dir / argument for argument in config.args}
    whole = {config.rootpath / path for path in config.getini("testpaths")}
    option = config.option
    left_out = [option.ignore, option.ignore_glob, getattr(option, "lf", False), ABSENT]
    return here == whole and not any(left_out)


def _repeats(item: pytest.Item) -> bool:
    """Whether a test does the same each time: hypothesis draws other examples unless CI is set."""
    return "CI" in os.environ or not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


@dataclass
class Outcomes:
    """Figures that ``--outcomes FILE`` gives to a program that runs pytest.

    Attributes:
        passed: the number of tests that passed.
        slow: the number of collected tests that are slow.
        failed: the ids of tests and files that failed.
    """

    passed: int = 0
    slow: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        self.passed += isinstance(report, pytest.TestReport) and report.when == "call" and report.passed


class Tiers:
    """The plugin of pytest: it marks slow tests, counts what the others do, and compares that with their budgets."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._budgets = Budgets.read()
        self._done: dict[str, Work] = defaultdict(Work)
        self._exceeded: list[str] = []
        self._outcomes = Outcomes()
        count_work()
        option = config.option
        # A value that tests share is made by the first of them, which is another one where only some of a file run.
        is_spread = getattr(option, "dist", "no") not in ("no", "loadfile")
        is_part = _names_tests(config) or option.keyword or getattr(option, "lf", False)
        self._is_held = not (is_spread or is_part)

    @pytest.hookimpl(tryfirst=True)  # before -m chooses
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        slow = read()
        if _has_all(self._config):
            self._config.stash[UNLISTED] = slow.not_among(item.nodeid for item in items)
        if not _names_tests(self._config):  # who names a test wants to run it
            for item in items:
                if item.nodeid in slow:
                    item.add_marker(pytest.mark.slow)
                    self._outcomes.slow += item.get_closest_marker("sweep") is None
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["slow"] = self._outcomes.slow

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._outcomes.slow = getattr(node, "workeroutput", {}).get("slow", 0)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._outcomes.add(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        item.stash[_START] = work_so_far()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        before = work_so_far()
        try:
            return (yield)
        finally:
            item.stash[_CALL] = work_so_far().since(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: Any
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        is_fast = item.get_closest_marker("slow") is None and item.get_closest_marker("sweep") is None
        if call.when == "call" and report.passed and is_fast and self._is_held and self._budgets and _repeats(item):
            reason = self._budgets.why_too_much(item.nodeid, item.stash[_CALL])
            if reason:
                report.outcome, report.longrepr = "failed", reason
        if call.when == "teardown":
            work = work_so_far().since(item.stash[_START])
            report.user_properties = [*report.user_properties, ("is_fast", is_fast), ("work", list(work))]
            report.user_properties.append(("in_call", list(item.stash.get(_CALL, Work()))))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes.add(report)
        known = dict(report.user_properties)
        if known.get("is_fast"):
            folder = folder_of(report.nodeid)
            done = self._done[folder]
            self._done[folder] = Work(*map(sum, zip(done, known["work"], strict=True)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            return
        if self._is_held and self._budgets is not None:
            self._exceeded = self._budgets.exceeded(self._done)
        if self._exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._config.option.outcomes:
            Path(self._config.option.outcomes).write_text(json.dumps(asdict(self._outcomes)), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._exceeded:
            terminalreporter.write_line(f"FAILED {line}", red=True)
