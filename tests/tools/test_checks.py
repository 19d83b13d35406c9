# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tools that check sources: prose, the share of Any, lines of code, facts of pages, licences."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import any_share, check_prose, compare_facts
from tools.compare_facts import differences, facts
from tools.count_lines import Count, code_lines, count, import_lines
from tools.write_licences import HEADER, files, has_header, with_header


def findings_of_module(tmp_path: Path, source: str) -> list[str]:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    return [finding.text for finding in check_prose.check_docstrings(path)]


def findings_of_page(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return [finding.text for finding in check_prose.check_page(path)]


@pytest.mark.parametrize("text", ["Of a launch.", "Those that read it.", "As a slice of it.", "New tiles."])
def test_a_fragment_is_reported(tmp_path: Path, text: str) -> None:
    [finding] = findings_of_module(tmp_path, f'"""A module of tests."""\n\n\ndef f():\n    """{text}"""\n')
    assert "docstring is a fragment" in finding and text in finding


@pytest.mark.parametrize(
    "text", ["Return the next tile.", "The number of tiles.", "Whether it is on chip.", "Implement ``f``."]
)
def test_a_sentence_and_a_noun_phrase_are_not(tmp_path: Path, text: str) -> None:
    assert findings_of_module(tmp_path, f'"""A module of tests."""\n\n\ndef f():\n    """{text}"""\n') == []


def test_private_objects_may_be_terse(tmp_path: Path) -> None:
    source = '"""A module of tests."""\n\n\nclass _A:\n    """Of it."""\n\n    def f(self):\n        """Of it."""\n'
    assert findings_of_module(tmp_path, source) == []


def test_a_description_of_an_argument_that_is_a_fragment_is_reported_with_its_line(tmp_path: Path) -> None:
    source = '"""A module of tests."""\n\n\ndef f(a, b):\n    """Add two numbers.\n\n    Args:\n'
    source += '        a: of the left side.\n        b: the right side.\n    """\n'
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    [finding] = check_prose.check_docstrings(path)
    assert finding.line == 8 and "'a'" in finding.text and str(finding).endswith(finding.text)


def test_a_phrase_is_reported_with_its_replacement_in_docstrings_and_pages(tmp_path: Path) -> None:
    [finding] = findings_of_module(tmp_path, '"""A module that is held against float64."""\n')
    assert "checked against" in finding
    [finding] = findings_of_page(tmp_path, "Kernels of losses of\nelements.\n")
    assert "elementwise losses" in finding


def test_each_phrase_has_another_term_to_write_instead() -> None:
    """A replacement is a term, not advice such as "the noun"."""
    assert check_prose.PHRASES and "the noun" not in check_prose.PHRASES.values()


def test_phrases_in_code_are_left_alone(tmp_path: Path) -> None:
    assert findings_of_page(tmp_path, "See `held to`.\n\n```text\nheld to\n```\n") == []


def test_a_long_line_of_prose_is_reported_and_tables_code_and_addresses_are_not(tmp_path: Path) -> None:
    word = "word " * 30
    [finding] = findings_of_page(tmp_path, f"{word}\n")
    assert "at most 120" in finding
    assert findings_of_page(tmp_path, f"| {word} |\n\n```text\n{word}\n```\n\n{word} https://example.org\n") == []


def test_the_docstrings_of_tests_and_benchmarks_are_checked_too() -> None:
    assert {"nkilib", "tests", "benchmarks", "examples", "tools"} == {
        path.relative_to(check_prose.ROOT).parts[0] for path in check_prose.modules()
    }


TABLE = """\
                    Name   Anys   Exprs   Coverage
--------------------------------------------------
             nkilib.core      1      30     96.67%
        nkilib.core.rows      2      50     96.00%
     nkilib.experimental      {anys}      20     50.00%
      nkilib.core_of_all    900    1000     10.00%
        nkilib.simulator    500    1000     50.00%
                   Total   1403    2100     33.19%
"""


def test_only_the_kernels_count() -> None:
    assert any_share.any_share(TABLE.format(anys=4)) == 7 / 100


@pytest.mark.parametrize(("anys", "code"), [(5, 0), (6, 1)])
def test_more_than_eight_percent_fail(anys: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "any-exprs.txt").write_text(TABLE.format(anys=anys))
    assert any_share.main(str(tmp_path)) == code
    expected = f"{(3 + anys)}.0% of the expressions of nkilib.core and nkilib.experimental are Any; allowed are 8%\n"
    assert capsys.readouterr().out == expected


def test_a_report_without_the_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a line for each of nkilib\.core, nkilib\.experimental"):
        any_share.any_share("nkilib.core 0 10 100%\n")


SOURCE = '''"""A page.

Of two paragraphs."""
# A comment.

import os  # with a comment

LIMIT = 3
"""What is documented below it."""


def work(
    size: int,
) -> str:
    """One line."""

    text = """of
two lines"""
    return text * size
'''


def test_only_lines_with_code_count() -> None:
    """An import, a constant, a head of three lines, a text of two lines that is a value, and what is returned."""
    assert code_lines(SOURCE) == 8
    assert import_lines(SOURCE) == 1


def test_an_empty_module_has_no_lines() -> None:
    """Nor has one of a licence and a docstring."""
    assert code_lines("") == code_lines('# A licence.\n"""A page."""\n') == 0


def test_folders_count_with_what_is_below(tmp_path: Path) -> None:
    """Modules only, at any depth."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "page.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "inner" / "page.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "notes.md").write_text(SOURCE, encoding="utf-8")
    assert count(tmp_path) == Count(2, 16, 2, 8)
    assert count(tmp_path).row.split() == ["2", "16", "8", "12.5%"]


# `tools.compare_facts`: which facts of a page it sees, and which differences it lists.

PAGE = """# Title

It takes 1,234.5 us, 12% of 3e-7, as `f(x)` says ([source](https://example.org/a.html), [page](docs/b.md#c)).

```python
print(99)
```
"""


def test_facts_of_a_page() -> None:
    result = facts([PAGE])
    assert result.numbers == {"1234.5", "12%", "3e-7"}
    assert result.names == {"f(x)"}
    assert result.blocks == {"```python\nprint(99)\n```"}
    assert result.links == {"https://example.org/a.html", "b.md"}


def test_a_moved_page_and_other_words_make_no_difference() -> None:
    moved = PAGE.replace("It takes", "The launch takes").replace("docs/b.md#c", "../reference/b.md#d")
    assert differences(facts([PAGE]), facts([moved])) == []


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("1,234.5", "1,243.5", ["lost numbers  1234.5", "new  numbers  1243.5"]),
        ("`f(x)`", "`g(x)`", ["lost names    f(x)", "new  names    g(x)"]),
        ("a.html", "z.html", ["lost links    https://example.org/a.html", "new  links    https://example.org/z.html"]),
    ],
)
def test_a_changed_fact_is_listed_on_both_sides(old: str, new: str, lines: list[str]) -> None:
    listed = differences(facts([PAGE]), facts([PAGE.replace(old, new)]))
    assert [line.strip() for line in listed] == lines


def test_a_lost_block_is_listed_by_its_first_lines() -> None:
    [line] = differences(facts([PAGE]), facts([PAGE.replace("print(99)", "print(99)", 1).split("```")[0]]))
    assert line.startswith("lost blocks") and "print(99)" in line


def test_a_page_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"docs/none\.md is not in HEAD"):
        compare_facts.main(["--revision", "HEAD", "--before", "docs/none.md"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A module."""\n', f'{HEADER}\n"""A module."""\n'),
        ('\n"""A module."""\n', f'{HEADER}\n"""A module."""\n'),
        ("", HEADER),
        ("#!/usr/bin/env python3\nimport os\n", f"#!/usr/bin/env python3\n{HEADER}\nimport os\n"),
        ("# -*- coding: utf-8 -*-\nimport os\n", f"# -*- coding: utf-8 -*-\n{HEADER}\nimport os\n"),
        ("# Why this is here.\nimport os\n", f"{HEADER}\n# Why this is here.\nimport os\n"),
    ],
)
def test_a_file_gets_it_once(before: str, after: str) -> None:
    assert not has_header(before)
    assert with_header(before) == after
    assert has_header(after) and with_header(after) == after
    if before:
        assert ast.get_docstring(ast.parse(after)) == ast.get_docstring(ast.parse(before))


def test_one_line_of_it_is_not_enough() -> None:
    text = HEADER.splitlines(keepends=True)[0]
    assert not has_header(text + "import os\n")


def test_every_folder_with_python_is_looked_at(tmp_path: Path) -> None:
    for name in ("nkilib/a/b.py", "tests/c.py", "layout/d.py", "docs/e.py", "nkilib/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in files(tmp_path)] == [
        "nkilib/a/b.py",
        "tests/c.py",
        "layout/d.py",
    ]
    assert len(list(files())) > 1000
