# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The training step of docs/how_to/on_an_instance.md prints, in the simulator, what the page shows."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fresh_python import CHECKOUT
from tests.optional_packages import missing_in_text
from tests.test_documentation import BLOCK
from tests.tutorials.test_tutorials import NUMBER, words
from tests.warm_python import run_script

PAGE = CHECKOUT / "docs" / "how_to" / "on_an_instance.md"
# PyTorch's random numbers and sums differ between CPUs in their last bits.
TOLERANCE = 0.05


def test_the_step_prints_what_the_page_shows(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    [(script, shown)] = [
        (first, then) for (kind, first), (_, then) in pairwise(BLOCK.findall(text)) if kind == "python"
    ]
    if missing_in_text(script):
        pytest.skip(f"needs {missing_in_text(script)}")
    path = tmp_path / "step.py"
    path.write_text(script, encoding="utf-8")
    ended = run_script(path)
    assert not ended.returncode, ended.output
    assert NUMBER.sub("#", words(shown)) == NUMBER.sub("#", words(ended.output))
    pairs = [*zip(NUMBER.findall(shown), NUMBER.findall(ended.output), strict=True)]
    assert len(pairs) == 3 and all(math.isclose(float(a), float(b), rel_tol=TOLERANCE) for a, b in pairs), ended.output


def test_every_number_of_a_source_is_listed() -> None:
    prose, _, sources = BLOCK.sub("", PAGE.read_text(encoding="utf-8")).partition("## Sources")
    named = {
        int(number) for group in re.findall(r"(?<!\])\[(\d+(?:, \d+)*)\](?!\()", prose) for number in group.split(", ")
    }
    assert named == {int(number) for number in re.findall(r"^\| (\d+) \|", sources, re.MULTILINE)}
