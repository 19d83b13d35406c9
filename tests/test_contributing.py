# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The worked examples of docs/how_to/add_a_loss.md: their diffs apply, touch the named files, and their tests pass."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS

PAGE = CHECKOUT / "docs" / "how_to" / "add_a_loss.md"
SECTIONS = ("Add a loss with its own kernels", "Add an elementwise loss", "Add an option to cross-entropy")
# The losses are public, and the tests that are named pass.
TESTS = """
import sys
import pytest
from nkilib.torch import soft_margin_loss, squared_error
assert callable(squared_error) and callable(soft_margin_loss)
sys.exit(pytest.main(sys.argv[1:]))
"""
# Tests that go through tables, of which those of the new row run.
OF_TABLES = (
    "tests/experimental/loss/skeletons/elementwise",
    "tests/experimental/loss/test_registry.py",
    "tests/experimental/test_shared_refusals.py",
    "tests/torch/functions/test_losses.py",
    "tests/torch/losses/test_elementwise.py",
)
CHOSEN = "squared_error or smoothing_skips_target or (soft_margin_loss and not multilabel) or listed_once"
COPIED = ("nkilib", "tests", "docs", "tools", "pyproject.toml", "README.md", "constraints.txt")


@dataclass(frozen=True)
class Change:
    """One file of a diff.

    Attributes:
        path: the path of the file.
        is_new: it is not there yet.
        hunks: for each its lines with their first character: " ", "+" or "-"; an empty line stands for " ".
    """

    path: str
    is_new: bool
    hunks: tuple[tuple[str, ...], ...]

    def apply(self, root: Path) -> None:
        """Change the file below ``root``; where a hunk belongs must be clear from its context alone."""
        file = root / self.path
        assert file.exists() != self.is_new, f"{self.path} is there already, or not there"
        text = "" if self.is_new else file.read_text(encoding="utf-8")
        for hunk in self.hunks:
            before, after = (
                "".join(f"{line[1:]}\n" for line in hunk if (line[:1] or " ") in kinds) for kinds in (" -", " +")
            )
            assert self.is_new or text.count(before) == 1, f"{self.path} has not this once:\n{before}"
            text = after if self.is_new else text.replace(before, after)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def changes_of(section: str) -> list[Change]:
    """The diffs in a section of the page."""
    (text,) = re.findall(
        rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    results = []
    for block in re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for old, path, body in re.findall(
            r"^--- (\S+)\n\+\+\+ b/(\S+)\n(.*?)(?=^--- |\Z)", block, re.MULTILINE | re.DOTALL
        ):
            hunks = [hunk.splitlines() for hunk in re.split(r"^@@.*\n", body, flags=re.MULTILINE)[1:]]
            assert hunks and all(line[:1] in ("", " ", "+", "-") for hunk in hunks for line in hunk), path
            results.append(Change(path, old == "/dev/null", tuple(tuple(hunk) for hunk in hunks)))
    return results


def assert_runs(root: Path, *command: str) -> None:
    """Run Python there; it must succeed."""
    environment = with_checkout(PYTHONPATH=str(root))
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr


def copy_to(root: Path) -> Path:
    """A copy of the code, with what Python has compiled of it: the times of the files are kept, so that it is used."""
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, root / name)
        else:
            root.mkdir(exist_ok=True)
            shutil.copy2(source, root / name)
    return root


def copy_changed(root: Path, paths: Iterable[str]) -> Path:
    """A copy of those of the files that the checkout has."""
    for path in paths:
        if (CHECKOUT / path).exists():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / path, root / path)
    return root


def paths_of(section: str) -> list[str]:
    return [change.path for change in changes_of(section)]


def new_tests() -> list[str]:
    """The files of tests that the page adds."""
    changes = [change for section in SECTIONS for change in changes_of(section)]
    return [change.path for change in changes if change.is_new and change.path.startswith("tests")]


def test_all_apply_pass_ruff_and_their_own_tests(tmp_path: Path) -> None:
    """Each applies alone; checked and run together, since a process that runs tests of torch takes its time."""
    sources: list[str] = []
    every = copy_to(tmp_path / "every")
    for section in SECTIONS:
        alone = copy_changed(tmp_path / section, paths_of(section))
        for change in changes_of(section):
            change.apply(alone)
            change.apply(every)
        sources += [path for path in paths_of(section) if path.endswith(".py")]
    assert_runs(every, "-m", "ruff", "check", "--quiet", *sources)
    assert_runs(every, "-m", "ruff", "format", "--quiet", "--check", *sources)
    assert_runs(every, "-m", "tools.write_tables", "--but-times")
    assert_runs(every, "-c", TESTS, "-q", "-x", "-m", "not sweep", "-k", CHOSEN, *new_tests(), *OF_TABLES)


def test_a_loss_is_a_kernel_folder_a_file_for_torch_tests_and_a_row() -> None:
    paths = paths_of("Add a loss with its own kernels")
    assert {path.rpartition("/")[0] for path in paths if "experimental" in path} == {
        "nkilib/experimental/loss/squared_error"
    }
    others = [path for path in paths if "experimental" not in path]
    assert others == [
        "nkilib/torch/functions/squared_error.py",
        "nkilib/torch/__init__.py",
        "docs/reference/torch.md",
        "tests/torch/functions/test_squared_error.py",
    ]


def test_a_loss_of_elements_is_two_files_names_and_a_row_of_a_test() -> None:
    """Nothing that is there changes: lines are added."""
    changes = changes_of("Add an elementwise loss")
    assert [change.path for change in changes if change.is_new] == [
        "nkilib/experimental/loss/soft_margin.py",
        "nkilib/torch/functions/soft_margin_loss.py",
    ]
    assert [change.path for change in changes if not change.is_new] == [
        "nkilib/experimental/loss/registry.py",
        "nkilib/experimental/loss/__init__.py",
        "nkilib/experimental/loss/inline.py",
        "nkilib/torch/__init__.py",
        "tests/torch/functions/losses.py",
    ]
    assert not [line for change in changes for hunk in change.hunks for line in hunk if line.startswith("-")]


def test_an_option_takes_at_most_five_files_and_no_code_of_torch() -> None:
    paths = paths_of("Add an option to cross-entropy")
    assert len(paths) == len(set(paths)) <= 5
    assert not [path for path in paths if path.startswith("nkilib/torch")]
    assert [path for path in paths if path.startswith("tests")] and "docs/reference/torch.md" in paths
