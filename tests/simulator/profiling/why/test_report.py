# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The report in lines no longer than a terminal or a page of this repository is wide, and the page that shows one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nkilib.simulator.profiling.why.critical_path import Link, LinkKind
from nkilib.simulator.profiling.why.facts import Finding
from nkilib.simulator.profiling.why.report import Report
from tests.fresh_python import with_checkout


@pytest.mark.parametrize("first", ["w", "ww"])
def test_a_finding_is_wrapped_at_88_columns(first: str) -> None:
    text = f"{first} " + "w " * 200
    link = Link(0, 0, LinkKind.work, 0.0, 1000.0)
    result = Report((Finding("waits", text, 1.0, "kernel.py:1"),), {"vector": 1.0}, {"kernel.py:1": 1.0}, {}, (link,))
    lines = result.lines()
    wrapped = lines[lines.index("why:") + 1 :]
    assert wrapped[0].startswith("- w") and all(line.startswith("  w") for line in wrapped[1:])
    assert " ".join(line[2:] for line in wrapped) == text.strip()
    assert {len(line) for line in wrapped[:-1]} <= {87, 88} and len(wrapped[-1]) <= 88


PAGE = (Path(__file__).parents[4] / "docs" / "how_to" / "profile_a_kernel.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Find out why a kernel is slow") : PAGE.index("## Compare tilings")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    (_, source), (_, shown) = BLOCK.findall(SECTION)
    (tmp_path / "doubled.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "doubled.py"], cwd=tmp_path, env=with_checkout(), capture_output=True, text=True, check=True
    )
    assert " ".join(done.stdout.split()) == " ".join(shown.split())


def test_the_table_lists_what_findings_are_about() -> None:
    listed = re.findall(r"^\| `([\w ]+)` \| .* \|$", SECTION, re.MULTILINE)
    assert Finding.__doc__ is not None
    assert listed == re.findall(r'``"([\w ]+)"``', Finding.__doc__)
