# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The guarantees of kernels are printed, and docs/reference/guarantees.md shows the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nkilib.cli.arguments import MOST_COLUMNS
from nkilib.cli.guarantees import as_tables, guarantees
from nkilib.cli.main import main
from tests.fresh_python import with_checkout
from tests.hangs import HANG_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "guarantees.md").read_text(encoding="utf-8")


def test_the_page_has_the_tables_that_are_printed() -> None:
    _, _, rest = PAGE.partition("<!-- guarantees: begin -->\n")
    shown, _, _ = rest.partition("<!-- guarantees: end -->")
    assert shown.strip() == as_tables(), "write what `python -m nkilib.cli.guarantees` prints between the markers"


def test_the_doctor_prints_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("doctor", "--kernels")) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= MOST_COLUMNS
    paragraphs = shown.strip().split("\n\n")
    assert [paragraph.splitlines()[0] for paragraph in paragraphs] == list(guarantees())
    backward = next(paragraph for paragraph in paragraphs if paragraph.startswith("cross_entropy_backward\n"))
    assert "  workspace, bytes       0\n  in place               logits_hbm\n" in backward


def test_the_doctor_prints_them_without_frameworks() -> None:
    """Where torch and jax cannot be imported."""
    blocked = "import sys; sys.modules['torch'] = sys.modules['jax'] = None; from nkilib.cli.main import main; "
    code = blocked + "sys.exit(main(('doctor', '--kernels')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=with_checkout(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("binary_cross_entropy_backward\n")


def test_a_choice_of_nki_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKILIB_BACKEND", "nonsense")
    command = [sys.executable, "-m", "nkilib", "doctor", "--kernels"]
    done = subprocess.run(
        command, env=with_checkout(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("python -m nkilib doctor: error: nkilib.nki: NKILIB_BACKEND must be one of")
