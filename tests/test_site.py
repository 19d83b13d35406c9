# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The documentation site: its extensions, the size of its pages, and what a reader sees of them in a window."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.browser import Browser, headless
from tests.fresh_python import CHECKOUT, with_checkout
from tests.test_documentation import BLOCK, PAGES

DOCS = CHECKOUT / "docs"
BUILT = CHECKOUT / "build" / "docs"
WIDTHS = (1280, 1600, 400)
MOST_COLUMNS_OF_OUTPUT = 88
MOST_WORDS = 2_500
MOST_BYTES_OF_API_PAGE = 60_000
# The page of all versions, which nobody reads from top to bottom.
LONG = frozenset({"CHANGELOG.md"})


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # for its dataclasses, and for the extensions that import it
    specification.loader.exec_module(module)
    return module


docstrings = load(DOCS / "_ext" / "docstrings.py")
api_pages = load(DOCS / "_ext" / "api_pages.py")
navigation = load(DOCS / "_ext" / "navigation.py")
page_body = load(DOCS / "_ext" / "page_body.py")


@pytest.fixture(scope="module")
def configuration() -> ModuleType:
    return load(DOCS / "conf.py")


def test_every_page_stands_in_one_group(configuration: ModuleType) -> None:
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index"}
    listed = [page for pages_of_group in configuration.navigation.values() for page in pages_of_group]
    assert sorted(listed) == sorted(pages | {"reference/api/index"})


def test_the_side_bar_lists_the_pages_of_a_group_under_its_caption() -> None:
    text = navigation.contents({"Start": ["one", "two"]})
    assert text.strip().splitlines() == ["```{toctree}", ":hidden:", ":caption: Start", "", "one", "two", "```"]


# Pages as they are written.


def name_of(page: Path) -> str:
    return str(page.relative_to(CHECKOUT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_output_of_programs_fits_beside_the_side_bar(page: Path) -> None:
    """Wider lines scroll within their block, and their ends go unread."""
    blocks = [block for language, block in BLOCK.findall(page.read_text(encoding="utf-8")) if language == "text"]
    wide = [line for block in blocks for line in block.splitlines() if len(line) > MOST_COLUMNS_OF_OUTPUT]
    assert wide == [], f"wrap these lines at {MOST_COLUMNS_OF_OUTPUT} columns"


def words_of(text: str) -> int:
    """Count the words of a page without the rows of generated tables, which stand between two comments."""
    parts = re.split(r"^<!-- .* -->\n", text, flags=re.MULTILINE)
    assert len(parts) % 2, "a comment begins a generated part, and another one ends it"
    parts[1::2] = ["\n".join(line for line in part.splitlines() if line[:1] != "|") for part in parts[1::2]]
    return len(" ".join(parts).split())


def test_rows_of_generated_tables_are_no_words() -> None:
    assert words_of("One two\n| a | b |\n") == 7
    assert words_of("One two\n<!-- losses: times -->\nThree\n| a | b |\n<!-- losses: end -->\nfour\n") == 4


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in LONG], ids=name_of)
def test_a_page_is_read_in_one_sitting(page: Path) -> None:
    count = words_of(page.read_text(encoding="utf-8"))
    assert count <= MOST_WORDS, f"{count:,} words; split the page by what readers come for"


# API pages: families, order, and the text of docstrings.


def entry(name: str, kind: str = "function", home: str = "nkilib.a.b", described: str = "nkilib.a", line: int = 0):  # type: ignore[no-untyped-def]
    return api_pages.Entry("nkilib.a", name, kind, home, line, f"What {name} is.", described)


def test_every_public_module_has_an_api_page() -> None:
    modules = api_pages.public_modules((DOCS / "reference" / "public_api.txt").read_text(encoding="utf-8"))
    assert modules["nkilib.torch"]["cross_entropy"] == "function"
    assert modules["nkilib.experimental.loss"]["mse_loss_forward"] == "kernel"


def test_modules_with_families_are_public(configuration: ModuleType) -> None:
    modules = api_pages.public_modules((DOCS / "reference" / "public_api.txt").read_text(encoding="utf-8"))
    assert configuration.api_families.keys() <= modules.keys()
    for packages in configuration.api_families.values():
        assert all(package.startswith(packages[0]) for package in packages), "the first is the root of the others"


def test_an_api_page_documents_each_name_once() -> None:
    names = [entry("f"), entry("C", "class"), entry("SIZES", "constant"), entry("colour", "enum"), entry("x", "module")]
    text = api_pages.page("nkilib.a", names)
    assert ".. automodule:: nkilib.a\n   :no-members:" in text
    assert ".. autofunction:: nkilib.a.f\n" in text
    assert ".. autoclass:: nkilib.a.C\n   :members:\n" in text
    assert ".. autodata:: nkilib.a.SIZES\n   :no-value:\n" in text
    assert ".. autoclass:: nkilib.a.colour\n   :members:\n   :undoc-members:\n" in text
    assert "Modules and other names: ``x``." in text


def test_an_object_that_two_modules_offer_is_described_by_one_and_linked_from_the_other() -> None:
    text = api_pages.page("nkilib.a", [entry("f", described="nkilib.first"), entry("E", "exception")])
    assert "auto" + "function" not in text
    assert (
        "Described in :doc:`nkilib.first </reference/api/nkilib.first>`, with the same arguments and results:" in text
    )
    assert "   * - :func:`f <nkilib.first.f>`\n     - What f is.\n" in text


def test_a_family_is_a_part_of_the_packages_of_the_configuration() -> None:
    packages = ["nkilib.a", "nkilib.a.functions"]
    families = {
        "nkilib.a.functions.softmax": "nkilib.a.functions.softmax",
        "nkilib.a.functions.cross_entropy.modules": "nkilib.a.functions.cross_entropy",
        "nkilib.a.lazy.head": "nkilib.a.lazy",
        "nkilib.base.statements": "nkilib.base.statements",
        "nkilib.a.functions": "",
        "nkilib.a": "",
    }
    assert {home: api_pages.family(home, "nkilib.a", packages) for home in families} == families
    assert api_pages.place("nkilib.a.functions.softmax", "nkilib.a", packages) == "nkilib.a/functions.softmax"
    assert api_pages.place("nkilib.base.statements", "nkilib.a", packages) == "nkilib.a/base.statements"


def test_families_and_names_come_in_the_order_of_their_use() -> None:
    names = [
        entry("backward", home="nkilib.a.b", line=9),
        entry("forward", home="nkilib.a.b", line=5),
        entry("Class", "class", home="nkilib.a.b", line=sys.maxsize),
        entry("much", home="nkilib.a.c"),
        entry("LIMIT", "constant", home="nkilib.a"),
    ]
    groups = api_pages.families(names, ["nkilib.a"], {"much": 3, "forward": 1, "backward": 1})
    assert {part: [name.name for name in group] for part, group in groups.items()} == {
        "nkilib.a.c": ["much"],
        "nkilib.a.b": ["forward", "backward", "Class"],
        "": ["LIMIT"],
    }
    assert list(groups) == ["nkilib.a.c", "nkilib.a.b", ""]
    places = {"nkilib.a.c": "nkilib.a/c", "nkilib.a.b": "nkilib.a/b"}
    text = api_pages.overview("nkilib.a", "About |x|.\n\n- ``b``: a part.\n\nMore.", groups, places)
    assert "About \\|x\\|.\n\nMore.\n" in text and "a part" not in text
    assert "   much <nkilib.a/c>\n   forward, backward <nkilib.a/b>\n" in text
    assert "   * - :class:`Class <nkilib.a.Class>`\n" in text
    assert "Other names\n-----------\n\n.. autodata:: nkilib.a.LIMIT\n" in text


def test_many_names_of_a_family_are_listed_without_a_table() -> None:
    names = [entry(f"f{number}") for number in range(12)]
    assert api_pages.title(names) == "f0, f1, f2 and 9 more"
    assert api_pages.names_of(names)[0].startswith(":func:`f0 <nkilib.a.f0>`, :func:`f1 <nkilib.a.f1>`")
    assert api_pages.names_of(names[:8])[0] == ".. list-table::"


def test_a_page_counts_once_and_only_for_what_it_names_in_code() -> None:
    page = "Text of mean and `torch.nn.exp(x)`.\n\n```python\nfrom nkilib.torch import f, f  # no log\n```\n"
    counts = api_pages.uses([page, "`f`", "```text\nexp\n```\n"])
    assert {name: counts[name] for name in ("f", "exp", "mean", "log", "nkilib.torch", "nkilib")} == {
        "f": 2,
        "exp": 1,
        "mean": 0,
        "log": 0,
        "nkilib.torch": 1,
        "nkilib": 1,
    }


def test_modules_of_one_package_stand_together() -> None:
    names = ["nkilib", "nkilib.lnc", "nkilib.torch", "nkilib.torch.trl", "nkilib.jax"]
    counts = {"nkilib": 90, "nkilib.torch": 1, "nkilib.torch.trl": 9, "nkilib.jax": 5}
    assert api_pages.modules_in_order(names, counts) == [
        "nkilib.torch.trl",
        "nkilib.torch",
        "nkilib.jax",
        "nkilib.lnc",
        "nkilib",
    ]


def test_pages_of_names_that_are_gone_are_removed_and_others_left_alone(tmp_path: Path) -> None:
    old, same, new = tmp_path / "a" / "old.rst", tmp_path / "same.rst", tmp_path / "b" / "new.rst"
    old.parent.mkdir()
    old.write_text("old")
    same.write_text("same")
    before = same.stat().st_mtime_ns
    api_pages._write_new(tmp_path, {same: "same", new: "new"})
    assert [path.name for path in sorted(tmp_path.rglob("*.*"))] == ["new.rst", "same.rst"]
    assert same.stat().st_mtime_ns == before


def test_bars_of_magnitudes_are_escaped_outside_literals() -> None:
    assert docstrings.escaped("at most ``|x|`` or |x|") == r"at most ``|x|`` or \|x\|"


def test_named_results_are_listed_like_arguments_and_others_become_a_field() -> None:
    named = ["Returns:", "    loss_hbm: [N], float32.", "    lse_hbm: [N]."]
    assert docstrings.with_results(named) == ["Results:", *named[1:]]
    assert docstrings.with_results(["Returns:", "    In this order: a, b."]) == [":returns: In this order: a, b."]
    assert docstrings.with_results(["Nothing to rewrite."]) == ["Nothing to rewrite."]


def test_names_of_arguments_on_two_lines_are_joined() -> None:
    lines = ["Args:", "    a, b,", "        c: three numbers.", "    d: a fourth."]
    assert docstrings.with_joined_names(lines) == ["Args:", "    a, b, c: three numbers.", "    d: a fourth."]


def test_the_first_sentence_of_a_docstring() -> None:
    assert docstrings.first_sentence("One of 1.5\nor |x|. Two.\n\nMore.") == r"One of 1.5 or \|x\|."
    assert docstrings.first_sentence("The same, e.g. of a row::\n\n    code") == "The same, e.g. of a row."


# Pages as they are built.


def test_long_names_break_and_words_of_code_are_no_elements() -> None:
    body = '<code><span class="pre">torch.nn.linear_cross</span> <span class="pre">short.name</span></code>'
    assert page_body.compact(body) == "<code>torch.<wbr>nn.<wbr>linear_<wbr>cross short.name</code>"
    assert page_body.breakable("MultiLabelMarginLoss") == "Multi<wbr>Label<wbr>Margin<wbr>Loss"
    heading = "<h1>nkilib.simulator.api: log</h1>"
    assert page_body.compact(heading) == "<h1>nkilib.<wbr>simulator.<wbr>api: log</h1>"
    link = '<a class="reference internal" href="a.html#b.c" title="b.c">c</a>'
    assert page_body.compact(link) == '<a class="reference internal" href="a.html#b.c">c</a>'


def is_current(site: Path) -> bool:
    """Whether a site was built after the last change of what it shows."""
    last = site / "searchindex.js"
    shown = [*DOCS.rglob("*"), *(CHECKOUT / "nkilib").rglob("*.py"), *(CHECKOUT / "examples").glob("*"), *PAGES]
    sources = [path for path in shown if path.is_file() and not path.is_relative_to(DOCS / "reference" / "api")]
    return last.is_file() and last.stat().st_mtime > max(path.stat().st_mtime for path in sources)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a current site: that of `make docs` or `make lint`, or a new one, which takes half a minute."""
    pytest.importorskip("sphinx", reason="needs sphinx, which needs Python 3.11")
    if is_current(BUILT):
        return BUILT
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--jobs", "2", "-d", str(folder / "read"), str(DOCS)]
    done = subprocess.run([*command, str(folder / "site")], env=with_checkout(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def content_of(page: Path) -> str:
    """The content of a page, without the side bars of the theme."""
    _, _, rest = page.read_text(encoding="utf-8").partition('<article role="main"')
    return rest.partition("</article>")[0]


def test_an_api_page_is_one_that_a_reader_can_search(site: Path) -> None:
    pages = [*(site / "reference" / "api").rglob("*.html")]
    sizes = {str(page.relative_to(site)): len(content_of(page).encode()) for page in pages}
    assert len(sizes) > 50
    large = {page: size for page, size in sizes.items() if size > MOST_BYTES_OF_API_PAGE}
    assert large == {}, "list the package of their objects in api_families of docs/conf.py"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless() as browser:
        yield browser


@pytest.fixture(scope="module")
def seen(site: Path, browser: Browser) -> dict[int | str, list[str]]:
    """Open each page once, and note what is cut at each width, and what else is wrong."""
    result: dict[int | str, list[str]] = {width: [] for width in WIDTHS} | {"other": []}
    with browser.window() as window:
        for page in sorted(site.rglob("*.html")):
            name = str(page.relative_to(site))
            window.goto(page)
            for width in WIDTHS:
                window.resize(width)
                result[width] += [f"{name}: {line}" for line in window.cut()]
            outside = [request for request in window.requests if not request.startswith("file:")]
            result["other"] += [f"{name}: {line}" for line in (*window.errors, *window.failed, *outside)]
    return result


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_a_page_is_cut(seen: dict[int | str, list[str]], width: int) -> None:
    assert seen[width] == []


def test_a_page_has_no_errors_and_asks_nobody_else(seen: dict[int | str, list[str]]) -> None:
    assert seen["other"] == []


PAGE = """<!doctype html><body style="margin: 0"><main style="overflow-x: auto"><h1>Title</h1>
<pre style="overflow-x: auto">{wide}</pre>
<div id="table" style="overflow-x: auto"><table><tr><td>{wide}</table></div>
<aside style="position: fixed; left: -200px; width: 200px">closed</aside>
{more}</main></body>"""
WIDE = "<span style='display: block; width: 3000px'>wide</span>"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("<p>Text</p>", []),
        ("<p style='width: 1500px'>Text</p>", ['p "Text" reaches from 0 to 1500']),
        ("<p style='margin-left: -10px'>Text</p>", ['p "Text" reaches from -10 to 1280']),
        (f"<div class='a' style='overflow: hidden'>{WIDE}</div>", ['div.a "wide" hides 1720 pixels of its content']),
    ],
    ids=["nothing", "too wide", "left of the window", "hidden"],
)
def test_what_is_cut_is_found(browser: Browser, tmp_path: Path, more: str, expected: list[str]) -> None:
    """Also where the page itself scrolls; what scrolls within itself, and a closed drawer, are not cut."""
    page = tmp_path / "page.html"
    page.write_text(PAGE.format(wide=WIDE, more=more), encoding="utf-8")
    with browser.window() as window:
        window.goto(page)
        found = [line for line in window.cut() if not line.startswith(("main", "span"))]
    assert found == expected


def test_errors_and_requests_of_a_page_are_recorded(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<img src='none.png'><script>console.error('first'); null.second</script>", encoding="utf-8")
    with browser.window(width=400, scheme="dark") as window:
        window.goto(page)
        assert window.evaluate("[innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]") == [400, True]
        assert "first" in window.errors and any("second" in error for error in window.errors)
        assert [path.rpartition("/")[2] for path in window.requests] == ["page.html", "none.png"]
        assert [path.rpartition("/")[2] for path in window.failed] == ["none.png"]
    with browser.window(javascript=False) as window:
        window.goto(page)
        assert not any("first" in error for error in window.errors)
