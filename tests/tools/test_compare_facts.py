# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tools.compare_facts`: which facts of a page it sees, and which differences it lists."""

from __future__ import annotations

import pytest

from tools.compare_facts import differences, facts, main

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
        main(["--revision", "HEAD", "--before", "docs/none.md"])
