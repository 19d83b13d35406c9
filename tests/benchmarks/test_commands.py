# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m benchmarks --help` lists every command with what it measures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import commands, main

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


def test_each_line_says_what_a_command_measures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for name, measured in commands().items():
        assert re.search(rf"^  {re.escape(name)} +{re.escape(measured)}$", printed, re.MULTILINE)
        assert 15 < len(measured) < 90 and "``python" not in measured


def test_no_command_is_missing() -> None:
    run = re.findall(r"-m (benchmarks\.\w+)", MAKEFILE.read_text(encoding="utf-8"))
    assert run and set(run) <= set(commands())


def test_it_has_no_options_of_its_own() -> None:
    with pytest.raises(SystemExit):
        main(["--quick"])
