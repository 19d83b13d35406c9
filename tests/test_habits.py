# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rules that keep checkouts alike: hooks, linters and tests run the same commands; root pages are as they say."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nkilib import __version__
from tests.fresh_python import CHECKOUT
from tools import run_tests

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOOKS = (CHECKOUT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
CHANGELOG = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")


def dry_run(target: str, directory: Path = CHECKOUT) -> str:
    """Return the commands that `make` would run for a target."""
    # An outer make passes its options on to an inner one through these.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", "--dry-run", target]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def commands_of(target: str, directory: Path = CHECKOUT) -> list[str]:
    """Return the commands that `make` would run for a target without those that install."""
    lines = dry_run(target, directory).splitlines()
    return [line for line in lines if re.match(r"\.venv/bin/python -m (?!pip|venv)", line)]


def test_the_hook_is_the_target_that_lints_and_has_no_versions_of_its_own() -> None:
    assert re.findall(r"^ *entry: (.*)$", HOOKS, re.MULTILINE) == ["make lint"]
    assert re.findall(r"^ *(?:- )?repo: (.*)$", HOOKS, re.MULTILINE) == ["local"]
    assert re.findall(r"^ *language: (.*)$", HOOKS, re.MULTILINE) == ["system"]
    assert "pass_filenames: false" in HOOKS and "rev:" not in HOOKS and "additional_dependencies" not in HOOKS


def linters(packages: str = "all", tier: str = "fast") -> list[str]:
    """Return the commands of the linters, without the interpreter."""
    checks = [*run_tests.first_checks(), *run_tests.checks_of(tier, packages)]
    return [shlex.join(check.command).removeprefix(f"{shlex.quote(sys.executable)} -m ") for check in checks]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("lint", "lint"),
        ("test", "fast"),
        ("test-slow", "slow"),
        ("test-all", "all"),
        ("test-core", "fast --packages core"),
        ("test-torch", "fast --packages torch"),
    ],
)
def test_targets_run_the_linters_and_a_tier(target: str, arguments: str) -> None:
    assert commands_of(target) == [f".venv/bin/python -m tools.run_tests {arguments}"]


def test_make_test_runs_ruff_and_mypy_on_everything_and_make_lint_the_same() -> None:
    assert linters()[:3] == ["ruff check .", "ruff format --check .", "mypy"]
    checked = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["files"]
    assert set(checked) == {path.parent.name for path in CHECKOUT.glob("*/__init__.py")}
    # The pages are the same whatever is installed, and the site needs everything.
    prose, site = "tools.check_prose", "sphinx --fail-on-warning --keep-going --quiet docs build/docs"
    assert prose in linters() and (site in linters()) == (sys.version_info >= (3, 11))
    # Packages that are not there leave types unknown: of the tests and benchmarks that use them, and of nkilib.torch.
    for packages, checked_alone in (("torch", "mypy nkilib"), ("core", "mypy nkilib --exclude '^nkilib/torch/'")):
        expected = [checked_alone if command == "mypy" else command for command in linters()]
        assert linters(packages) == [command for command in expected if command not in (prose, site)]
    assert any("lint-imports" in command for command in linters("core")) == (sys.version_info >= (3, 11))


def test_the_share_of_any_is_left_to_the_slow_tier_and_no_check_to_none() -> None:
    share = ["mypy --any-exprs-report .mypy_cache/any_exprs", "tools.any_share .mypy_cache/any_exprs"]
    assert linters(tier="slow")[2:] == share
    assert set(linters(tier="all")) == {*linters(), *share} - {"mypy"}  # one that does the same and more


def test_hosted_ci_runs_the_targets_of_make_on_every_python() -> None:
    workflow = (CHECKOUT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert re.findall(r"^ *(?:- )?run: (.*)$", workflow, re.MULTILINE) == ["make ${{ matrix.target }}"]
    [targets] = re.findall(r"^ *target: \[(.*)\]$", workflow, re.MULTILINE)
    assert targets.split(", ") == ["test-core", "test-torch", "test"]
    assert re.findall(r'\{python: "(.*)", target: (.*)\}', workflow) == [("3.11", "test-slow"), ("3.13", "test-slow")]
    [pythons] = re.findall(r"^ *python: \[(.*)\]$", workflow, re.MULTILINE)
    project = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'"(3\.\d+)"', pythons) == re.findall(r"Python :: (3\.\d+)", project)


def test_the_changelog_has_the_versions_newest_first_this_one_among_them_and_unreleased_changes_before() -> None:
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert "Unreleased" not in headings[1:]
    versions = [heading.split()[0] for heading in headings if heading != "Unreleased"]
    assert versions == sorted(set(versions), key=lambda version: [*map(int, version.split("."))], reverse=True)
    assert __version__ in versions
    kinds = set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def calls_without_environment(source: str) -> list[int]:
    """The lines that start a program and do not say in which environment."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("subprocess.")
        and "env" not in {keyword.arg for keyword in node.keywords}
    ]


def test_a_program_that_gets_no_environment_is_seen() -> None:
    source = "import subprocess\nsubprocess.run(['python'], env={})\nsubprocess.Popen(['python'], cwd='/')\n"
    assert calls_without_environment(source) == [3]


def test_programs_that_tests_start_get_an_environment() -> None:
    """Every program gets an environment: the tests' own would let it import whichever nkilib is installed, or none."""
    sources = {file: file.read_text("utf-8") for file in sorted((CHECKOUT / "tests").rglob("*.py"))}
    results = {
        str(file.relative_to(CHECKOUT)): calls_without_environment(source)
        for file, source in sources.items()
        if "subprocess" in source
    }
    assert len(results) > 10
    assert {file: lines for file, lines in results.items() if lines} == {}


def test_a_limit_of_more_than_seconds_is_the_one_for_hangs() -> None:
    """Others have failed where a machine was slow: ``tests.hangs`` has the one that is waited for."""
    own = re.compile(r"\b(?:timeout\b[^=,)\n]*=|seconds=|\.wait\(|\.join\() *([0-9]+(?:\.[0-9]+)?)\b(?! *[*/])")
    found = {
        f"{file.relative_to(CHECKOUT)}: {match[0]}"
        for file in (CHECKOUT / "tests").rglob("*.py")
        for match in own.finditer(file.read_text(encoding="utf-8"))
        if float(match[1]) > 2.0
    }
    assert not found
