# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Pages in a headless Chromium, for tests of the documentation site and of other HTML.

A test needs the package playwright and a Chromium of the system, since the browsers that playwright downloads are none
of ours to install. Where one of them is missing the test is skipped, and says so. A fixture of a test file::

    @pytest.fixture(scope="module")
    def browser() -> Iterator[Browser]:
        with headless() as browser:
            yield browser
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No sandbox, which a container without user namespaces cannot give; the others keep the browser from the network.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HEIGHT = 900

# Describes what a reader of a page cannot see, or only by scrolling all of the page: elements that reach over an edge
# of the window, and elements that hide a part of their content. Tables and blocks that scroll within themselves are
# fine, and so are closed drawers: fixed elements outside of the window.
_CUT = """
() => {
  const width = document.documentElement.clientWidth;
  const scrolls = style => ["auto", "scroll"].includes(style.overflowX);
  const isOwnScroller = element => scrolls(getComputedStyle(element)) && !element.querySelector("h1, main, article");
  const ancestors = element => {
    const result = [];
    for (let at = element.parentElement; at; at = at.parentElement) result.push(at);
    return result;
  };
  const isOutside = box => box.right <= 0 || box.left >= width || box.bottom <= 0 || box.top >= innerHeight;
  const isClosed = element => [element, ...ancestors(element)].some(
    at => getComputedStyle(at).position === "fixed" && isOutside(at.getBoundingClientRect()));
  const named = element => {
    const names = [...element.classList].map(name => `.${name}`).join("");
    return `${element.tagName.toLowerCase()}${names} "${element.textContent.trim().slice(0, 40)}"`;
  };
  const result = [];
  const found = document.documentElement.scrollWidth;
  if (found > width + 1) result.push(`the page is ${found} pixels wide`);
  for (const element of document.body.querySelectorAll("*:not(svg, svg *, script, style)")) {
    const box = element.getBoundingClientRect();
    if (box.width <= 1 || box.height <= 1) continue;
    if ((box.right > width + 1 || box.left < -1) && !ancestors(element).some(isOwnScroller) && !isClosed(element))
      result.push(`${named(element)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)}`);
    const style = getComputedStyle(element);
    if (["hidden", "clip"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1)
      result.push(`${named(element)} hides ${element.scrollWidth - element.clientWidth} pixels of its content`);
  }
  return result;
}
"""


@dataclass
class Opened:
    """A page in the browser.

    Attributes:
        page: the page of playwright, to click and to evaluate JavaScript.
        errors: errors that the console showed or a script raised.
        requests: the address of each request.
        failed: the address of each request without an answer or with an error status.
    """

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def goto(self, path: Path) -> None:
        """Open a file, and forget what the page before it has recorded."""
        for recorded in (self.errors, self.requests, self.failed):
            recorded.clear()
        self.page.goto(path.resolve().as_uri())

    def resize(self, width: int, height: int = HEIGHT) -> None:
        """Give the window another size, in CSS pixels."""
        self.page.set_viewport_size({"width": width, "height": height})

    def cut(self) -> list[str]:
        """Return a line for each element that is wider than the page, or that hides a part of its content."""
        return list(self.page.evaluate(_CUT))

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """Return the value of a JavaScript expression, or the result of a JavaScript function."""
        return self.page.evaluate(script, argument)


@dataclass
class Browser:
    """A running Chromium; ``driver`` is the browser of playwright."""

    driver: Any

    @contextmanager
    def window(self, width: int = 1280, scheme: str = "light", javascript: bool = True) -> Iterator[Opened]:
        """Open a window with a profile of its own.

        Args:
            width: the width of the content, in CSS pixels.
            scheme: ``"light"`` or ``"dark"``, what pages learn of the reader's preference.
            javascript: whether scripts of pages run.
        """
        context = self.driver.new_context(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, java_script_enabled=javascript
        )
        try:
            yield _recorded(context.new_page())
        finally:
            context.close()


def _recorded(page: Any) -> Opened:
    opened = Opened(page)
    page.on("console", lambda message: opened.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("request", lambda request: opened.requests.append(request.url))
    page.on("requestfailed", lambda request: opened.failed.append(request.url))
    page.on("response", lambda answer: opened.failed.append(answer.url) if answer.status >= 400 else None)
    return opened


def program() -> str:
    """Return the path of the Chromium of this system; empty if there is none."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), "")


@contextmanager
def headless() -> Iterator[Browser]:
    """Run a Chromium without windows, with a new profile; skip the test where there is none, or no playwright."""
    path = program()
    if not path:
        pytest.skip(f"needs a browser: none of {', '.join(_PROGRAMS)} is installed")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        driver = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            yield Browser(driver)
        finally:
            driver.close()
