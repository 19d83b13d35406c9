# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pictures of the documentation are what their data say, and legible; `python -m tools.write_plots` draws them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nkilib.experimental.loss import mse_loss_forward
from nkilib.simulator import profile, spec
from tests.fresh_python import CHECKOUT
from tools.pictures import decisions, diagrams, figures, svg, timelines
from tools.pictures.charts import errors_in, percent
from tools.write_plots import IMAGES, PICTURES, Point

SVG = sorted(IMAGES.glob("*.svg"))
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
EMBEDDED = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_SPACE = "{http://www.w3.org/2000/svg}"
REMEDY = "draw it again: python -m tools.write_plots --svg"


@cache
def pages() -> tuple[str, ...]:
    """The pages, each in one line: prose is wrapped."""
    return tuple(" ".join(page.read_text(encoding="utf-8").split()) for page in PAGES)


def is_on_a_page(*texts: str) -> bool:
    """Whether one page has all of these texts."""
    return any(all(text in page for text in texts) for page in pages())


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_figures_say(name: str) -> None:
    if name == "memory":
        pytest.importorskip("torch")  # the command that measures needs it, and has the figures
    assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == PICTURES[name]().svg(), REMEDY


def test_timelines_are_those_of_the_steps_of_the_tutorial() -> None:
    steps = timelines.steps()
    page = timelines.PAGE.read_text(encoding="utf-8")
    assert [name for name in re.findall(r"\(\.\./images/(rms_norm_\w+)\.svg\)", page)] == list(steps)
    for name, picture in steps.items():
        assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == picture.svg(), REMEDY
    for version in timelines.versions():
        assert f"| {version.time_us:,.1f} us |" in page


def test_each_file_is_drawn() -> None:
    names = set(re.findall(r"images/([\w-]+)\.svg", timelines.PAGE.read_text(encoding="utf-8"))) | set(PICTURES)
    assert {path.stem for path in SVG} == names


@pytest.mark.parametrize("path", SVG, ids=lambda path: path.stem)
def test_a_picture_is_small_and_legible_and_says_what_it_shows(path: Path) -> None:
    assert path.stat().st_size < 60_000
    root = ElementTree.parse(path).getroot()
    title, description = (root.findtext(f"{_SPACE}{name}") or "" for name in ("title", "desc"))
    assert 10 < len(title) < 80 and len(description) > 100
    assert root.get("viewBox") == f"0 0 {svg.WIDTH} {root.get('height')}"
    for item in root.iter(f"{_SPACE}text"):
        size, x, y = (float(item.get(name, "0")) for name in ("font-size", "x", "y"))
        # A narrow estimate: fonts differ.
        wide = 0.9 * svg.width_of(item.text or "", size, "m" if "m" in item.get("class", "").split() else "")
        left = x - wide * {"start": 0.0, "middle": 0.5, "end": 1.0}[item.get("text-anchor", "start")]
        assert size >= 12, item.text
        assert left > 4 and left + wide < svg.WIDTH - 4 and 0 < y < float(root.get("height", "0")), item.text


def _cells() -> Iterator[tuple[str, ...]]:
    """The cells that figures of charts were taken from, those of one row together."""
    for errors in (*figures.CROSS_ENTROPY_ERRORS, *figures.DIVERGENCE_ERRORS):
        yield errors[1:]
    for by_dtype in figures.SOFTMAX_TIMES.values():
        yield from by_dtype.values()
    yield from figures.DISTILLATION_TIMES.values()


@pytest.mark.parametrize("cells", list(_cells()), ids=lambda cells: cells[-1])
def test_figures_of_charts_stand_on_a_page(cells: tuple[str, ...]) -> None:
    assert is_on_a_page(*cells)


def test_ratios_of_linear_distillation_stand_on_a_page() -> None:
    assert is_on_a_page(*(cell.removesuffix(")") for cell in figures.LINEAR_DISTILLATION_TIMES))


def test_launches_of_a_chart_have_their_directions_and_options() -> None:
    launches = figures.launches()
    assert {launch.is_forward for launch in launches} == {True, False}
    assert min(launch.ratio for launch in launches) >= 1.0
    assert [launch.form for launch in launches if launch.kernel == "multi_margin_loss" and launch.has_options] == [
        "forward, mean, p = 2"
    ] * 2
    assert not any(launch.has_options for launch in launches if launch.kernel == "linear_cross_entropy")


def test_the_tree_names_what_the_page_names() -> None:
    leaves = [leaf for question in decisions.QUESTIONS for leaf in question.leaves] + [decisions.LAST]
    page = (CHECKOUT / "docs" / "how_to" / "choose_a_loss.md").read_text(encoding="utf-8")
    for leaf in leaves:
        assert leaf.call.partition("(")[0] in page


def test_bytes_of_an_example_are_those_of_the_page() -> None:
    page = (CHECKOUT / "docs" / "how_to" / "choose_a_loss.md").read_text(encoding="utf-8")
    written = " ".join(diagrams.logits_or_fused().svg().split())
    for size in ("13.7 GiB", "2.0 GiB", "320 MiB"):
        assert size in page and f"+ {size}" in written


def test_percentages_have_two_digits_and_no_exponent() -> None:
    assert [percent(error) for error in (1.0, 0.1, 1.82e-3, 4.6e-2, 3e-6, 1.5e-7, 2e-2)] == [
        "100%",
        "10%",
        "0.18%",
        "4.6%",
        "0.0003%",
        "0.000015%",
        "2%",
    ]
    assert errors_in("mean 3.0e-6") == [3.0e-6] and errors_in("2.0e-2, 4.6e-2") == [2.0e-2, 4.6e-2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_embedded_pictures_exist_and_have_a_text(page: Path) -> None:
    for text, target in EMBEDDED.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).is_file(), target
        assert len(text) > 20, target


def test_a_kernel_lies_below_the_roof() -> None:
    matrix = spec((256, 4096), "bfloat16")
    point = Point.of_profile("MSE", profile(mse_loss_forward[2], matrix, matrix))
    assert 0 < point.speed < min(1.0, point.balance)
