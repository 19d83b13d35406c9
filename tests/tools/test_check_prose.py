# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tools.check_prose`: what it reports of docstrings and pages, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_prose


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
