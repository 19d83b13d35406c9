# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The extensions of the documentation site: its API pages and its side bar. ``make lint`` builds the site itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.fresh_python import CHECKOUT

DOCS = CHECKOUT / "docs"


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


api_pages, navigation = load(DOCS / "_ext" / "api_pages.py"), load(DOCS / "_ext" / "navigation.py")


@pytest.fixture(scope="module")
def groups() -> dict[str, list[str]]:
    loaded: dict[str, list[str]] = load(DOCS / "conf.py").navigation
    return loaded


def test_every_page_stands_in_one_group(groups: dict[str, list[str]]) -> None:
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index"}
    listed = [page for pages_of_group in groups.values() for page in pages_of_group]
    assert sorted(listed) == sorted(pages | {"reference/api/index"})


def test_the_side_bar_lists_the_pages_of_a_group_under_its_caption() -> None:
    text = navigation.contents({"Start": ["one", "two"]})
    assert text.strip().splitlines() == ["```{toctree}", ":hidden:", ":caption: Start", "", "one", "two", "```"]


def test_every_public_module_has_an_api_page() -> None:
    modules = api_pages.public_modules((DOCS / "reference" / "public_api.txt").read_text(encoding="utf-8"))
    assert modules["nkilib.torch"]["cross_entropy"] == "function"
    assert modules["nkilib.experimental.loss"]["mse_loss_forward"] == "kernel"


def test_an_api_page_documents_each_name_once() -> None:
    text = api_pages.page(
        "nkilib.lnc", {"of_kernel": "function", "Choice": "class", "SIZES": "constant", "x": "module"}, {}
    )
    assert ".. autofunction:: nkilib.lnc.of_kernel" in text
    assert ".. autoclass:: nkilib.lnc.Choice\n   :members:" in text
    assert ".. autodata:: nkilib.lnc.SIZES" in text
    assert "``x``" in text


def test_an_object_that_two_modules_offer_is_indexed_once() -> None:
    text = api_pages.page("nkilib.a", {"f": "function"}, {"f": False})
    assert ".. autofunction:: nkilib.a.f\n   :no-index:" in text


def test_bars_of_magnitudes_are_escaped_outside_literals() -> None:
    assert api_pages.escaped("at most ``|x|`` or |x|") == r"at most ``|x|`` or \|x\|"


def test_named_results_are_listed_like_arguments_and_others_become_a_field() -> None:
    named = ["Returns:", "    loss_hbm: [N], float32.", "    lse_hbm: [N]."]
    assert api_pages.with_results(named) == ["Results:", *named[1:]]
    assert api_pages.with_results(["Returns:", "    In this order: a, b."]) == [":returns: In this order: a, b."]
    assert api_pages.with_results(["Nothing to rewrite."]) == ["Nothing to rewrite."]


def test_names_of_arguments_on_two_lines_are_joined() -> None:
    lines = ["Args:", "    a, b,", "        c: three numbers.", "    d: a fourth."]
    assert api_pages.with_joined_names(lines) == ["Args:", "    a, b, c: three numbers.", "    d: a fourth."]
