# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write the screenshots of the page of a profile into docs/images: ``python -m tools.write_screenshots``.

It needs playwright, of the extra ``test``, and a Chromium or Google Chrome of the system. The page is that of
``python -m examples.profile_report``: report_timeline.png shows the slow kernel with an instruction selected, and
report_comparison.png both kernels over one time. It takes some seconds.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from examples.profile_report import profiles
from tests.browser import Opened, headless

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH: Final = 1100
NAMES: Final = ("report_timeline", "report_comparison")


def _open(window: Opened, page: Path) -> Any:
    window.goto(page)
    window.page.wait_for_selector("html[data-drawn]")
    return window.page


def _shoot(page: Any, first: str, last: str, name: str) -> None:
    """Save what lies between the top of one element and the bottom of another one."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    page.evaluate("document.querySelector('header').style.position = 'static'")
    page.evaluate("document.getElementById('details').style.position = 'static'")
    boxes = [page.locator(selector).first.bounding_box() for selector in (first, last)]
    scrolled = page.evaluate("scrollY")
    top, bottom = boxes[0]["y"] + scrolled, boxes[1]["y"] + boxes[1]["height"] + scrolled
    clip = {"x": 0, "y": top - 8, "width": WIDTH, "height": bottom - top + 16}
    page.screenshot(path=IMAGES / f"{name}.png", full_page=True, clip=clip)


def _timeline(window: Opened, page: Path) -> None:
    opened = _open(window, page)
    window.evaluate("axis.show(axis.end * 0.2, axis.end * 0.32)")
    name = "tensor_reduce"
    window.evaluate(
        f"select(profiles[0], [...profiles[0].core.keys()].find(i => profiles[0].start[i] > axis.from + axis.end * 0.05"
        f" && profiles[0].name[profiles[0].site[i]] === '{name}'))"
    )
    _shoot(opened, "#timeline", "#tiles", NAMES[0])


def _comparison(window: Opened, page: Path) -> None:
    opened = _open(window, page)
    _shoot(opened, "#timeline", "#legend", NAMES[1])


def main() -> None:
    """Write the screenshots."""
    slow, mended = profiles()
    with TemporaryDirectory() as folder, headless() as browser, browser.window(WIDTH) as window:
        first, second = Path(folder) / "slow.html", Path(folder) / "mended.html"
        slow.to_html(first)
        mended.to_html(second, against=slow)
        _timeline(window, first)
        _comparison(window, second)


if __name__ == "__main__":
    try:
        main()
    except pytest.skip.Exception as error:
        raise SystemExit(f"tools.write_screenshots: {error}") from None
