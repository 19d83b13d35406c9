# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The example of the page prints what the page shows, and its table lists what findings are about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from nkilib.simulator.profiling.why.finding import Finding
from tests.fresh_python import with_checkout

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
    listed = re.findall(r"^\| `([\w ]+)` \| .* \| \d+% \|$", SECTION, re.MULTILINE)
    assert Finding.__doc__ is not None
    assert listed == re.findall(r'``"([\w ]+)"``', Finding.__doc__)
