# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A plugin of pytest: what each test costs, and which lines and branches of nkilib it reaches.

Under ``python -m pytest -p tests.measuring --measure DIRECTORY`` each process writes a file of JSON lines there, a line
for each test, for `tools.write_slow_tests` to read. With ``--measure-reach`` coverage.py notes what is reached, which
takes longer: costs are measured without it. Code that only child processes run is not seen.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from tests.optional_packages import ROOT

_VARIABLE = "PYTEST_PLUGINS"


class Reach:
    """The arcs, from line to line of a file, that coverage.py has seen: each has a number."""

    def __init__(self) -> None:
        from coverage import Coverage

        self._coverage = Coverage(
            data_file=None, branch=True, include=[f"{ROOT}/nkilib/*"], config_file=False, messages=False
        )
        self._coverage.set_option("run:core", "ctrace")
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "couldnt-parse"])
        self._coverage.start()
        self._tracer = type(sys.gettrace())
        self.arcs: dict[tuple[str, int, int], int] = {}

    def taken(self) -> int:
        """The arcs since the last call, as a number with a bit for each; they are forgotten."""
        data = self._coverage.get_data()
        bits = bytearray(len(self.arcs) // 8 + 1)
        for file in data.measured_files():
            name = str(Path(file).relative_to(ROOT))
            for start, end in data.arcs(file) or ():
                number = self.arcs.setdefault((name, start, end), len(self.arcs))
                if number >= 8 * len(bits):
                    bits.extend(bytes(number // 8 + 1 - len(bits)))
                bits[number // 8] |= 1 << number % 8
        data.erase()
        return int.from_bytes(bits, "little")

    def continue_(self) -> None:
        """Begin again if a test has left another tracer, or none."""
        if not isinstance(sys.gettrace(), self._tracer):
            self._coverage.stop()
            self._coverage.start()

    def let_launches_replay(self) -> None:
        """A tracer keeps launches from being replayed, and one that only takes notes need not."""
        from nkilib.simulator.replay import launch

        def other_tracer() -> Any:
            found = sys.gettrace()
            return None if isinstance(found, self._tracer) else found

        launch.sys = SimpleNamespace(gettrace=other_tracer)  # type: ignore[attr-defined]


def _seconds() -> float:
    """The CPU time of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Measuring:
    """Measures the tests of this process."""

    def __init__(self, directory: Path, reach: Reach | None) -> None:
        self._directory, self._reach = directory, reach
        self._file: IO[str] | None = None
        self._before, self._setup = (0.0, 0.0), 0.0

    def _write(self, **line: Any) -> None:
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            name = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}.jsonl.gz"
            self._file = gzip.open(self._directory / name, "wt", compresslevel=5, encoding="utf-8")  # noqa: SIM115
        self._file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        if self._reach is not None:
            self._reach.let_launches_replay()
            self._write(test="", reached=f"{self._reach.taken():x}")  # by imports, which every run has

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        if self._reach is not None:
            self._reach.continue_()
        self._before = (_seconds(), time.perf_counter())
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: Any
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "setup":
            self._setup = call.duration  # with fixtures that later tests of a file share
        if call.when == "call":
            item.user_properties.append(("outcome", report.outcome))
        if call.when == "teardown":
            known = dict(report.user_properties)
            # The larger of both: processes that a server forks are nobody's children.
            seconds = max(_seconds() - self._before[0], time.perf_counter() - self._before[1])
            line = {"test": item.nodeid, "seconds": round(seconds, 4), "setup": round(self._setup, 4)}
            line |= {"work": known["work"], "in_call": known["in_call"], "outcome": known.get("outcome", "skipped")}
            if self._reach is not None:
                line["reached"] = f"{self._reach.taken():x}"
            self._write(**line)
        return report

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            if self._reach is not None:
                self._write(arcs=list(self._reach.arcs))
            self._file.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", help="measure each test, and write files into this directory")
    parser.addoption("--measure-reach", action="store_true", help="with --measure: what it reaches in nkilib too")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before nkilib is imported. Processes of pytest-xdist get a plugin of ``-p`` too late for that."""
    options = early_config.known_args_namespace
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not options.measure:
        return
    if is_worker:
        os.environ.pop(_VARIABLE, None)  # the tests start pytest too
    elif getattr(options, "numprocesses", None):
        os.environ[_VARIABLE] = __name__
        return
    reach = Reach() if options.measure_reach else None
    directory = early_config.invocation_params.dir / options.measure
    early_config.pluginmanager.register(Measuring(directory, reach), "measuring-tests")
