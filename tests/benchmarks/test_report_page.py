# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m benchmarks.report_page` measures pages; the screenshots of the documentation are taken of such a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report_page
from tests.browser import headless
from tools import write_screenshots


def test_a_page_is_measured_without_a_browser(tmp_path: Path) -> None:
    figures = report_page.measure(100, tmp_path)
    assert (figures.instructions, figures.drawn_ms, figures.frames) == (100, None, None)
    assert figures.nbytes == (tmp_path / "100.html").stat().st_size and figures.meets_goals


@pytest.mark.parametrize(
    ("figures", "meets"),
    [
        (report_page.Figures(1_000, 1.0, 300_000, 1_000.0, 30.0), True),
        (report_page.Figures(1_000, 1.0, 300_001), False),
        (report_page.Figures(30_000, 1.0, 3_000_000, 1_001.0, 60.0), False),
        (report_page.Figures(30_000, 1.0, 3_000_000, 1.0, 29.0), False),
        (report_page.Figures(77, 1.0, 9_000_000, 9_000.0, 1.0), True),
    ],
)
def test_goals(figures: report_page.Figures, meets: bool) -> None:
    assert figures.meets_goals == meets


def test_it_prints_what_a_browser_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with headless():
        pass  # or skip
    assert report_page.main(["--instructions", "200"]) == 0
    assert "no browser" not in capsys.readouterr().out


def test_screenshots_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{name}.png" for name in write_screenshots.NAMES}
    assert all((write_screenshots.IMAGES / name).is_file() for name in names)
    monkeypatch.setattr(write_screenshots, "IMAGES", tmp_path)
    write_screenshots.main()
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())
