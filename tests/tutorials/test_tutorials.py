# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tutorials as a reader follows them: scripts, changes and commands in the order of the page.

A ``python`` block is a new script under the name that the page gives it. ``diff`` blocks change the script; consecutive
ones are one change. A change after which the script runs is kept, one that makes it fail is undone. A ``text`` block is
a command, if it begins with ``python -m nkilib``, or what the last script or command printed.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fresh_python import CHECKOUT, with_checkout
from tests.optional_packages import missing_in_text
from tests.test_documentation import BLOCK
from tests.warm_python import run_script

PAGES = sorted((CHECKOUT / "docs" / "tutorials").glob("*.md"))
NUMBER = re.compile(r"\d+\.\d+")
# What pip does is not run here, nor is its index set.
NOT_RUN = ("pip ", "export PIP_")
# By page, how far a number may be off: PyTorch's random numbers and sums differ between CPUs in their last bits.
TOLERANCES = {"first_loss_in_torch": 0.05}


@dataclass(frozen=True)
class Shown:
    """A ``text`` block, and what the script or command before it printed.

    Attributes:
        text: the block.
        printed: the output, without the directory of the script and the modules of exceptions.
        script: the script that ran, or that was there when the command ran.
        has_failed: whether it ended with an exception.
    """

    text: str
    printed: str
    script: str
    has_failed: bool


def words(text: str) -> str:
    """A text in one line: pages wrap what is printed."""
    return " ".join(text.split())


def changed(script: str, diff: str) -> str:
    """A script after the change of a ``diff`` block, whose old lines stand in it once, one after the other."""
    old, new = ("".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] != sign) for sign in "+-")
    assert script.count(old) == 1, f"the script has these lines {script.count(old)} times, not once:\n{old}"
    return script.replace(old, new)


@cache
def follow(page: Path) -> tuple[Shown, ...]:
    """Do what a page says, in a directory of its own, and note what each of its ``text`` blocks shows."""
    text = page.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    named = re.search(r"Save this as `(\w+\.py)`", text)
    assert named, f"{page.name} does not name its script"
    shown: list[Shown] = []
    kept = tried = printed = ""
    has_failed = False
    with TemporaryDirectory() as folder:
        path = Path(folder).resolve() / named[1]

        def run(script: str) -> None:
            nonlocal printed, has_failed
            path.write_text(script, encoding="utf-8")
            ended = run_script(path)
            printed, has_failed = ended.output, bool(ended.returncode)

        for (language, block), (following, _) in pairwise([*blocks, ("", "")]):
            if language == "python":
                kept = tried = block
                run(kept)
                assert not has_failed, printed
            elif language == "diff":
                tried = changed(tried, block)
                if following == "diff":
                    continue
                run(tried)
                kept = kept if has_failed else tried
            elif language == "text" and block.startswith("python -m nkilib"):
                path.write_text(kept, encoding="utf-8")
                command = [sys.executable, *shlex.split(block.replace("\\\n", ""))[1:]]
                done = subprocess.run(command, cwd=folder, env=with_checkout(), capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                printed, has_failed = done.stdout, False
            elif language == "text" and not block.startswith(NOT_RUN):
                here = printed.replace(f"{path.parent}/", "")
                shown.append(Shown(block, re.sub(r"^nkilib[\w.]*\.(?=\w+:)", "", here, flags=re.M), tried, has_failed))
            if following != "text":
                tried = kept
    return tuple(shown)


def followed(page: Path) -> tuple[Shown, ...]:
    """The same, where the packages that the page imports are installed."""
    missing = {missing_in_text(block) for kind, block in BLOCK.findall(page.read_text("utf-8")) if kind == "python"}
    if missing - {""}:
        pytest.skip(f"needs {', '.join(sorted(missing - {''}))}")
    return follow(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_is_printed(page: Path) -> None:
    shown = followed(page)
    assert len(shown) >= 4
    for item in shown:
        text, printed = words(item.text), words(item.printed)
        if page.stem not in TOLERANCES:
            assert text in printed
            continue
        assert NUMBER.sub("#", text) == NUMBER.sub("#", printed)
        pairs = zip(NUMBER.findall(text), NUMBER.findall(printed), strict=True)
        assert all(math.isclose(float(a), float(b), rel_tol=TOLERANCES[page.stem]) for a, b in pairs), (text, printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_times_and_shares_in_the_text_are_among_those_shown(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = " ".join(block for kind, block in BLOCK.findall(text) if kind == "text")
    figures = re.findall(r"[\d.,]*\d(?: us\b|%)", BLOCK.sub("", text))
    assert [figure for figure in figures if not re.search(rf"(?<![\d.,]){re.escape(figure)}", words(blocks))] == []


def test_the_table_of_steps_has_the_figures_of_the_steps() -> None:
    page = CHECKOUT / "docs" / "tutorials" / "from_a_slow_kernel_to_the_bound.md"
    rows = re.findall(r"^\| \[.*\| ([\d.,]+) us \| (\d+)% \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    printed = [re.search(r"; ([\d.,]+) us, (\d+)% of the bound", item.printed) for item in followed(page)]
    assert rows == [item.groups() for item in printed if item]
    assert len(rows) == len(printed) and int(rows[-1][1]) >= 90


def test_messages_of_the_first_kernel_are_shown_and_one_mistake_is_invisible_without_its_option(tmp_path: Path) -> None:
    page = CHECKOUT / "docs" / "tutorials" / "first_kernel_on_the_simulator.md"
    failed = {item.text.partition(":")[0]: item.script for item in followed(page) if item.has_failed}
    expected = [
        "TensorTypeError",
        "NkiValidationError",
        "OutOfRangeError",
        "UninitializedReadError",
        "IdenticalWritesError",
    ]
    assert list(failed) == expected
    script = tmp_path / "lse.py"
    script.write_text(failed["UninitializedReadError"].replace("strict=True", ""), encoding="utf-8")
    done = run_script(script)
    assert done.returncode == 0, done.output
