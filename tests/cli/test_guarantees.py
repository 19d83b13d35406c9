# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The guarantees of kernels are printed, and docs/reference/guarantees.md and guarantees_errors.md show the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nkilib.base.guarantee import Guarantee
from nkilib.cli import guarantees as printed
from nkilib.cli.arguments import MOST_COLUMNS
from nkilib.cli.guarantees import error_lists, guarantees, item, promise_tables, shared_notes
from nkilib.cli.main import main
from tests.fresh_python import with_checkout
from tests.hangs import HANG_SECONDS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize(
    ("page", "marker", "printed_part"),
    [("guarantees", "promises", promise_tables), ("guarantees_errors", "errors", error_lists)],
    ids=["promises", "errors"],
)
def test_the_page_has_what_is_printed(page: str, marker: str, printed_part: Callable[[], str]) -> None:
    _, _, rest = (REFERENCE / f"{page}.md").read_text(encoding="utf-8").partition(f"<!-- {marker}: begin -->\n")
    shown, _, _ = rest.partition(f"<!-- {marker}: end -->")
    assert shown.strip() == printed_part(), "run `python -m tools.write_tables --but-times`"


def test_every_kernel_has_its_errors_on_one_page() -> None:
    pages = [path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")]
    for name, guarantee in guarantees().items():
        loss, _, direction = name.rpartition("_")
        here = [page for page in pages if f"\n### `{name}`\n" in page]
        with_loss = [page for page in pages if f"\n### `{loss}`\n" in page and "Largest error of the loss" in page]
        assert len(here) == 1 or (not here and len(with_loss) == 1 and direction in ("forward", "backward")), name
        (page,) = here or with_loss
        words = " ".join(page.replace("\\", "").split())
        clauses = (clause.removeprefix("u = ") for clause in guarantee.error.split("; "))
        assert all(clause in words for clause in clauses), name


def test_a_kernel_that_is_not_repeatable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert promise_tables().startswith("All kernels are repeatable.\n")
    by_chance = Guarantee("float32", "float32", False, True, "0", None, "none")
    monkeypatch.setattr(printed, "guarantees", lambda: {**guarantees(), "draw": by_chance})
    assert promise_tables().startswith("All kernels are repeatable except `draw`.\n")


def test_clauses_that_do_not_fit_a_line_become_a_list() -> None:
    assert item("Error", "1 u; u = 2^-23") == "- **Error:** 1 u; u = 2^-23"
    assert item("Error", f"{'one ' * 20}x_t; u = 2^-23") == (
        f"- **Error:**\n  - {'one ' * 20}x\\_t\n  - with u = 2^-23"
    )


def test_no_line_of_an_item_begins_with_an_operator() -> None:
    lines = item("Loss", f"{'x ' * 38}- t").splitlines()
    assert len(lines) == 2 and lines[1] == "  x - t"


def test_notes_of_several_things_stand_once() -> None:
    shared, text = shared_notes({"a": ["one", "own"], "b": ["one"], "c": ["other"]})
    assert shared == {"one"} and text == "- `a`, `b`:\n  - one"
    assert shared_notes({"a": ["one"], "b": []}) == (set(), "")


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
