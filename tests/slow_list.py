# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``tests/slow.txt``: the tests of the slow tier, grouped by file.

A line without an indent is a file. Below it is a test a line: ``name[case]`` for one case, ``name`` for a test without
cases, and ``name *`` for all cases of a test but those that follow with a ``!``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

LISTED = Path(__file__).resolve().parent / "slow.txt"
_HEAD = """\
# Tests that make test-slow runs and make test does not: CONTRIBUTING.md, "Two tiers". Written by
# python -m tools.write_slow_tests; "name *" stands for all cases of a test but those with a "!".
"""


def function_of(test: str) -> str:
    """The id of a test without its case."""
    return test.partition("[")[0]


class SlowTests:
    """The tests of a list."""

    def __init__(self, text: str) -> None:
        self._single: set[str] = set()
        self._functions: set[str] = set()
        self._but: set[str] = set()
        file = function = ""
        for line in text.splitlines():
            name = line.strip()
            if not name or line.startswith("#"):
                continue
            if not line.startswith(" "):
                file = name
            elif name.startswith("!"):
                self._but.add(f"{function}{name[1:]}")
            elif name.endswith(" *"):
                function = f"{file}::{name[:-2]}"
                self._functions.add(function)
            else:
                self._single.add(f"{file}::{name}")

    def __contains__(self, test: str) -> bool:
        return test in self._single or (function_of(test) in self._functions and test not in self._but)

    def not_among(self, tests: Iterable[str]) -> list[str]:
        """What is listed and is none of ``tests``."""
        known = set(tests)
        functions = {function_of(test) for test in known}
        return sorted([*(self._single - known), *(self._functions - functions), *(self._but - known)])


def read() -> SlowTests:
    """The list of this checkout; empty where there is none."""
    return SlowTests(LISTED.read_text(encoding="utf-8") if LISTED.is_file() else "")


def written(slow: Collection[str], tests: Iterable[str]) -> str:
    """The text of a list of ``slow``, which are some of ``tests``."""
    cases: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests):
        cases[function_of(test)].append(test)
    files: dict[str, list[str]] = defaultdict(list)
    for function, of_function in cases.items():
        file, _, name = function.partition("::")
        files[file] += _lines(
            name,
            [test[len(function) :] for test in of_function if test in slow],
            [test[len(function) :] for test in of_function if test not in slow],
        )
    return _HEAD + "".join(f"{file}\n{''.join(lines)}" for file, lines in sorted(files.items()) if lines)


def _lines(name: str, slow: list[str], fast: list[str]) -> Iterator[str]:
    if len(slow) > len(fast) + 1:
        yield f"  {name} *\n"
        yield from (f"    !{case}\n" for case in fast)
    else:
        yield from (f"  {name}{case}\n" for case in slow)
