# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The findings as lines: none is longer than a terminal or a page of this repository is wide, and none shorter."""

from __future__ import annotations

import pytest

from nkilib.simulator.profiling.why.critical import Kind, Link
from nkilib.simulator.profiling.why.finding import Finding
from nkilib.simulator.profiling.why.report import Report


@pytest.mark.parametrize("first", ["w", "ww"])
def test_a_finding_is_wrapped_at_118_columns(first: str) -> None:
    text = f"{first} " + "w " * 200
    link = Link(0, 0, Kind.work, 0.0, 1000.0)
    result = Report((Finding("waits", text, 1.0, "kernel.py:1"),), {"vector": 1.0}, {"kernel.py:1": 1.0}, {}, (link,))
    lines = result.lines()
    wrapped = lines[lines.index("why:") + 1 :]
    assert wrapped[0].startswith("- w") and all(line.startswith("  w") for line in wrapped[1:])
    assert " ".join(line[2:] for line in wrapped) == text.strip()
    assert {len(line) for line in wrapped[:-1]} <= {117, 118} and len(wrapped[-1]) <= 118
