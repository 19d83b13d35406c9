# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The code blocks of README and docs run as they stand, each in a process that has seen nothing of nkilib."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.fresh_python import with_checkout
from tests.neuron import machine
from tests.optional_packages import missing_in_text
from tests.warm_python import run_script

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# Scripts of these are run by tests/tutorials, in the order of the page, and their output is compared.
TUTORIALS = frozenset((ROOT / "docs" / "tutorials").glob("*.md"))


def blocks(language: str, without: frozenset[Path] = frozenset()) -> list[Any]:
    """The blocks in ``language`` of all pages but ``without``, each with the page and line as its name."""
    marked = []
    for page in PAGES:
        if page in without:
            continue
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match.group(1) == language:
                line = text[: match.start()].count("\n") + 1
                marked.append(pytest.param(match.group(2), id=f"{page.relative_to(ROOT)}:{line}"))
    return marked


def _is_for_any_nki(source: str) -> bool:
    return "nkilib.nki" in source and not re.search(r"nkilib\.simulator|nkilib import simulator|SIMULATED", source)


def skip_without_packages(source: str) -> None:
    """Skip the test of a block that imports PyTorch or JAX where that is not installed."""
    missing = missing_in_text(source)
    if missing:
        pytest.skip(f"needs {missing}")


@pytest.mark.parametrize("source", blocks("python", without=TUTORIALS))
def test_python_block_runs(source: str, tmp_path: Path) -> None:
    skip_without_packages(source)
    script = tmp_path / "block.py"
    script.write_text(source, encoding="utf-8")
    done = run_script(script)
    assert done.returncode == 0, done.output


@pytest.mark.parametrize("source", [block for block in blocks("python") if _is_for_any_nki(block.values[0])])
def test_blocks_that_do_not_ask_for_the_simulator_run_on_the_documented_nki(source: str, tmp_path: Path) -> None:
    skip_without_packages(source)
    script = tmp_path / "block.py"
    script.write_text(source, encoding="utf-8")
    done = machine.run(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", blocks("bash"))
def test_commands_of_bash_blocks_work(source: str, tmp_path: Path) -> None:
    """`make` finds its target; `python -m` runs, on a script of one line where the command names one."""
    (tmp_path / "script.py").write_text("import nki.language as nl")
    for line in source.splitlines():
        words = shlex.split(line, comments=True)
        variables = dict(word.split("=", 1) for word in takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
        program, *arguments = words[len(variables) :]
        assert program in ("make", "python"), f"neither make nor python: {line!r}"
        command = [sys.executable, *arguments] if program == "python" else ["make", "--dry-run", "-C", ROOT, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=with_checkout(**variables), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([\w/.-]+\.md|(?=#))(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
            linked = page.parent / target if target else page
            assert linked.is_file(), f"{page.name} links to {target}"
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in slugs, f"{page.name} links to {target}#{anchor}"


def test_tests_that_a_page_names_exist() -> None:
    """`module::function`, in whatever words around it: a name that is misspelt must not go unread. Not in blocks."""
    named = 0
    for page in PAGES:
        for module, function in re.findall(r"\b(\w+)::(\w+)", BLOCK.sub("", page.read_text(encoding="utf-8"))):
            if (module, function) in (("module", "function"), ("namespace", "name")):
                continue  # how names of tests are written, and those of operators
            sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(f"{module}.py")]
            assert any(f"\ndef {function}(" in source for source in sources), f"{page.name} names {module}::{function}"
            named += 1
    assert named > 0
