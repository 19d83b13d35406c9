# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Mutants are drawn by a seed, live in copies alone, and are told from the code by tests that pass without them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.mutate import main
from tools.mutation import judging
from tools.mutation.checkout import Outcome, Run, copies_of, mutants_in, run
from tools.mutation.checkout import tests_of as suite_of
from tools.mutation.operators import mutations_of

# Of three changes the tests below notice two: nothing asks for `twice(0)`, and no test calls `half`.
CODE = """\
def twice(x: int) -> int:
    if x < 0:
        raise ValueError
    return x + x


def half(x):
    return x / y
"""
TESTS = """\
import pytest

from nkilib.tiny.numbers import twice


def test_broken_in_the_checkout():
    assert False


def test_twice():
    assert twice(3) == 6
    with pytest.raises(ValueError):
        twice(-1)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package of one file, and its tests."""
    root = tmp_path / "checkout"
    for name, text in (("nkilib/tiny/numbers.py", CODE), ("tests/tiny/test_numbers.py", TESTS), (".git/config", "")):
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for package in ("nkilib", "nkilib/tiny"):
        (root / package / "__init__.py").touch()
    return root


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", ["a <= b"]),
        ("a == b", ["a != b"]),
        ("a is None", ["a is not None"]),
        ("a in b", ["a not in b"]),
        ("a < b >= c", ["a <= b >= c", "a < b > c"]),
        ("a + b", ["a - b"]),
        ("a * b", ["a // b"]),
        ("a // b % c", ["a // b // c", "a * b % c"]),
        ("x[1]", ["x[2]"]),
        ("f(1.5)", ["f(2.5)"]),
        ("f(True)", ["f(False)"]),
        ("f(a and b)", ["f(a or b)"]),
        ("not a", ["a"]),
        ("a if b else c", ["a if not b else c"]),
        ("-(2 ** 116)", ["-(2 * 116)", "-3 ** 116", "-2 ** 117"]),
        ("4096", []),
        ("f'{a + 1}'", []),
        ("zip(a, b, strict=True)", []),
        ("'text'", []),
    ],
)
def test_each_change_is_of_one_thing(before: str, after: list[str]) -> None:
    results = [ast.unparse(ast.parse(item.applied(before))) for item in mutations_of(before)]
    assert sorted(results) == sorted(after)


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("if a:\n    pass\n", "if (not (a)):\n    pass\n"),
        ("while f(\n    a\n):\n    b\n", "while (not (f(a))\n\n):\n    b\n"),
        ("é = 'ü'; x = a <\\\n b\n", "é = 'ü'; x = (a <= b\n)\n"),
    ],
)
def test_what_follows_a_change_keeps_its_line(code: str, changed: str) -> None:
    (result,) = mutations_of(code)
    assert result.applied(code) == changed
    assert ast.parse(result.raising(code)) and result.raising(code).count("\n") == code.count("\n")


def test_what_no_run_can_tell_is_left_alone() -> None:
    code = "@dataclass(frozen=True)\nclass A:\n    x: Literal[1]\n\n\n@cache(1)\ndef f(x: 1 | 2 = None) -> 1 | 2: ..."
    assert mutations_of(f"__all__ = ['a'] + ['b']\n{code}\nif TYPE_CHECKING:\n    x = 1\n") == []


@pytest.mark.parametrize(("body", "outcome"), [("pass", Outcome.PASSED), ("time.sleep(60)", Outcome.LATE)])
def test_a_run_that_takes_too_long_is_ended(body: str, outcome: Outcome, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(f"import time\n\n\ndef test_it():\n    {body}\n")
    assert run(tmp_path, ["test_it.py"], 60.0 if outcome is Outcome.PASSED else 3.0) == Run(outcome)


def test_the_tests_of_a_file_are_those_of_its_package_nearest_first(tmp_path: Path) -> None:
    folders = ("core/rows", "experimental/plans", "experimental/loss/ctc/host", "experimental/softmax")
    for folder in folders:
        (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests/core/rows/test_sbuf.py").touch()
    of = lambda path: suite_of(tmp_path, path)  # noqa: E731
    assert of("nkilib/core/rows/sbuf.py") == ["tests/core/rows/test_sbuf.py", "tests/core/rows"]
    loss = "tests/experimental/loss/ctc"
    plans = "tests/experimental/plans"
    assert of("nkilib/experimental/loss/ctc/host/bounds.py") == [f"{loss}/host", loss, plans]
    assert of("nkilib/experimental/loss/ctc/forward/rows.py") == [loss, plans]
    assert of("nkilib/experimental/softmax/plan.py") == ["tests/experimental/softmax", plans]
    assert of("nkilib/base/lnc.py") == []


def test_a_seed_draws_the_same_mutants_and_another_seed_others(checkout: Path, tmp_path: Path) -> None:
    pages = []
    for number, seed in enumerate((1, 1, 2)):
        page = tmp_path / f"{number}.md"
        options = ["--seed", str(seed), "--count", "3", "--seconds", "0", "--out", str(page)]
        assert main([*options, "nkilib"], checkout) == 0
        pages.append(page.read_text().partition("\n")[2])
    assert pages[0] == pages[1] != pages[2]
    assert "3 not run: no time was left" in pages[0]


def test_survivors_are_listed_and_the_checkout_is_left_as_it_is(checkout: Path, tmp_path: Path) -> None:
    """A test that fails in the checkout too kills nothing."""
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    page = tmp_path / "page.md"
    assert main(["--count", "9", "--workers", "2", "--reach", "--out", str(page), "nkilib/tiny"], checkout) == 0
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before
    text = page.read_text()
    assert "5 mutants" in text and "2 killed; 3 survived" in text
    survivors, _, killed = text.partition("| killed |")
    assert "| nkilib/tiny/numbers.py:2 | `x < 0` | `x <= 0` | yes |" in survivors
    assert "| nkilib/tiny/numbers.py:8 | `x / y` | `x * y` | no |" in survivors
    assert killed.count("tests/tiny/test_numbers.py::test_twice") == 2
    assert "broken_in_the_checkout" not in text


@pytest.mark.parametrize(("options", "marks"), [([], "not sweep"), (["--fast"], "not sweep and not slow")])
def test_both_tiers_judge_a_mutant_unless_the_fast_one_is_asked_for(
    options: list[str], marks: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ran(root: Path, tests: list[str], seconds: float, *more: str) -> Run:
        asked.append(more)
        return Run(Outcome.PASSED)

    monkeypatch.setattr(judging, "run", ran)
    assert main(["--count", "1", *options, "--out", str(tmp_path / "page.md"), "nkilib/tiny"], checkout) == 0
    assert asked == [("-m", marks)]


def test_a_copy_has_what_the_tests_need_and_takes_a_mutant_back(checkout: Path, tmp_path: Path) -> None:
    first, second = copies_of(checkout, tmp_path, 2)
    mutant = mutants_in(checkout, ["nkilib/tiny/numbers.py"])[0]
    path = second.root / mutant.path
    assert not (second.root / ".git").exists()
    second.write(mutant)
    assert path.read_text() == mutant.change.applied(CODE) != CODE
    assert (first.root / mutant.path).read_text() == CODE
    second.restore(mutant)
    assert path.read_text() == CODE


def test_a_package_that_is_not_there_is_refused(checkout: Path) -> None:
    with pytest.raises(ValueError, match=r"a folder of Python files or a file below .*, got 'nkilib/large'"):
        main(["nkilib/large"], checkout)
