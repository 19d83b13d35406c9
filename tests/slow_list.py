# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``tests/slow.txt``: the tests of the slow tier, grouped by file.

A line without an indent is a file. Below it is a test a line: ``name[case]`` for one case, ``name`` for a test without
cases, and ``name *`` for all cases of a test but those that follow with a ``!``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

LISTED = Path(__file__).resolve().parent / "slow.txt"
_HEAD = """\
# Tests that make test-slow runs and make test does not: docs/how_to/contribute.md, "Two tiers". By
# python -m tools.write_slow_tests; "name *" stands for all cases of a test but those with a "!".
"""


def function_of(test: str) -> str:
    """The id of a test without its case."""
    return test.partition("[")[0]


class SlowTests:
    """The tests of a list: single ones, and those of functions but some cases."""

    def __init__(self, single: Iterable[str] = (), functions: Iterable[str] = (), but: Iterable[str] = ()) -> None:
        self._single, self._functions, self._but = set(single), set(functions), set(but)

    @classmethod
    def parsed(cls, text: str) -> SlowTests:
        """The list of a text."""
        slow = cls()
        file = function = ""
        for line in text.splitlines():
            name = line.strip()
            if not name or line.startswith("#"):
                continue
            if not line.startswith(" "):
                file = name
            elif name.startswith("!"):
                slow._but.add(f"{function}{name[1:]}")
            elif name.endswith(" *"):
                function = f"{file}::{name[:-2]}"
                slow._functions.add(function)
            else:
                slow._single.add(f"{file}::{name}")
        return slow

    @classmethod
    def of(cls, slow: Collection[str], tests: Iterable[str]) -> SlowTests:
        """The shortest list of ``slow``, which are some of ``tests``."""
        cases: dict[str, list[str]] = defaultdict(list)
        for test in tests:
            cases[function_of(test)].append(test)
        found = cls()
        for function, of_function in cases.items():
            listed = [test for test in of_function if test in slow]
            if len(listed) > len(of_function) - len(listed) + 1:
                found._functions.add(function)
                found._but.update(test for test in of_function if test not in slow)
            else:
                found._single.update(listed)
        return found

    def __contains__(self, test: str) -> bool:
        return test in self._single or (function_of(test) in self._functions and test not in self._but)

    def changed(self, slow: Iterable[str], fast: Iterable[str]) -> SlowTests:
        """The list with some tests more and others less."""
        found = SlowTests(self._single, self._functions, self._but)
        for test in slow:
            found._but.discard(test)
            if test not in found:
                found._single.add(test)
        for test in fast:
            found._single.discard(test)
            if test in found:
                found._but.add(test)
        return found

    def not_among(self, tests: Iterable[str]) -> list[str]:
        """Return what is listed and is none of ``tests``."""
        known = set(tests)
        functions = {function_of(test) for test in known}
        return sorted([*(self._single - known), *(self._functions - functions), *(self._but - known)])

    def text(self) -> str:
        """The text of the list."""
        entries = [*self._single, *(f"{function} *" for function in self._functions)]
        lines, last = [_HEAD], ""
        but: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self._but):
            but[function_of(test)].append(test)
        for entry in sorted(entries):
            file, _, name = entry.partition("::")
            if file != last:
                lines.append(f"{file}\n")
            last = file
            lines.append(f"  {name}\n")
            if name.endswith(" *"):
                function = entry[:-2]
                lines += [f"    !{test[len(function) :]}\n" for test in but[function]]
        return "".join(lines)


def read() -> SlowTests:
    """The list of this checkout; empty where there is none."""
    return SlowTests.parsed(LISTED.read_text(encoding="utf-8") if LISTED.is_file() else "")
