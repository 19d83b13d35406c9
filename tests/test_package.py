# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The package: importing it changes nothing outside itself, and it lives beside another package of the same name."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from nkilib.base.installation import extra_remedy
from tests.fresh_python import CHECKOUT, run_fresh

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Compares the process before and after `{imports}`; numpy and ml_dtypes, which have effects of their own, come first.
COMPARE = """
import os, sys, threading, warnings
import ml_dtypes, numpy
def state():
    return (dict(os.environ), list(sys.path), list(sys.meta_path), list(sys.path_hooks), sys.excepthook,
            sys.getswitchinterval(), threading.active_count(), list(warnings.filters), numpy.geterr(),
            numpy.get_printoptions())
before, modules = state(), set(sys.modules)
{imports}
print(state() == before)
loaded = {{name.partition(".")[0] for name in set(sys.modules) - modules}}
print(sorted(loaded - {{"numpy", "ml_dtypes"}} - set(sys.stdlib_module_names)))
"""
DISTRIBUTIONS = """
import sys
from importlib.metadata import distributions
{imports}
loaded = {{name.partition(".")[0] for name in sys.modules}} - {{"nkilib"}}
owners = set()
for distribution in distributions():  # packages_distributions() misses those without top_level.txt on Python 3.10
    if loaded & {{file.parts[0].removesuffix(".py") for file in distribution.files or ()}}:
        owners.add(distribution.metadata["Name"])
print(*sorted(owners))
"""
EVERYTHING = "import nkilib, nkilib.nki, nkilib.simulator, nkilib.core, nkilib.experimental.loss"


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


def test_importing_nkilib_alone_loads_nothing_else() -> None:
    # An editable installation has loaded a module of its own by the time that the first line runs.
    code = "import sys; before = set(sys.modules); import nkilib; print(*sorted(set(sys.modules) - before))"
    outcome = run_fresh(code)
    assert outcome.error == ""
    loaded = [name for name in outcome.output.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    assert loaded == ["nkilib"]


@pytest.mark.parametrize("imports", ["import nkilib", EVERYTHING])
def test_importing_changes_nothing_outside_nkilib(imports: str) -> None:
    outcome = run_fresh(COMPARE.format(imports=imports), "simulator")
    assert outcome.error == ""
    assert outcome.output.splitlines() == ["True", "['nkilib']"]


def test_the_comparison_sees_a_change() -> None:
    outcome = run_fresh(COMPARE.format(imports="os.environ['NKILIB_SEEN'] = '1'; import pytest"), "simulator")
    assert outcome.error == ""
    state_is_equal, modules = outcome.output.splitlines()
    assert state_is_equal == "False"
    assert "pytest" in modules


def test_the_core_loads_the_declared_dependencies_and_no_others() -> None:
    declared = {Requirement(text).name for text in project()["dependencies"]}
    assert declared == {"numpy", "ml_dtypes"}
    startup = run_fresh(DISTRIBUTIONS.format(imports="")).output.split()
    outcome = run_fresh(DISTRIBUTIONS.format(imports=EVERYTHING), "simulator")
    assert outcome.error == ""
    assert set(outcome.output.split()) - set(startup) == {"numpy", "ml_dtypes"}


def imported(file: Path) -> set[str]:
    """The packages that a module imports when it runs, wherever in it; not what only type checkers see."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0}
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"nkilib"}


# What is imported only by a call that takes an object of it.
BROUGHT_BY_THE_CALLER = {"transformers"}


@pytest.mark.parametrize("extra", ["torch", "jax"])
def test_what_a_package_imports_is_in_the_extra_of_its_name(extra: str) -> None:
    """Even what another requirement brings along: that one may stop to."""
    table = project()
    declared = {Requirement(text).name for text in (*table["dependencies"], *table["optional-dependencies"][extra])}
    result = set().union(*(imported(file) for file in (CHECKOUT / "nkilib" / extra).rglob("*.py")))
    assert extra in result
    assert result - BROUGHT_BY_THE_CALLER <= declared


def test_messages_name_extras_that_there_are() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in (CHECKOUT / "nkilib").rglob("*.py"))
    named = set(re.findall(r"extra_remedy\([\"'](\w+)[\"']\)", sources))
    assert named >= {"plot", "torch", "jax"} and named <= project()["optional-dependencies"].keys()
    assert "pip install 'nkilib" not in sources, "no package index has nkilib: use extra_remedy of base/installation.py"
    assert extra_remedy("plot") == (
        "install nkilib with its extra 'plot': pip install '.[plot]' in a checkout, or "
        "'./nkilib-VERSION-py3-none-any.whl[plot]'"
    )


def test_nkilib_torch_needs_the_release_that_its_extra_asks_for() -> None:
    from nkilib.torch._requirement import REQUIREMENT  # not above: without PyTorch the other tests run

    requirements = [Requirement(text) for text in project()["optional-dependencies"]["torch"]]
    [bounds] = [requirement.specifier for requirement in requirements if requirement.name == "torch"]
    assert str(bounds) == ">=" + ".".join(map(str, REQUIREMENT.needed))


def test_the_command_is_there_and_no_address_is_made_up() -> None:
    table = project()
    assert table["authors"] == [{"name": "The nkilib authors"}]
    assert not {"urls", "maintainers"} & table.keys()
    module, _, function = table["scripts"]["nkilib"].partition(":")
    assert getattr(importlib.import_module(module), function)(["profile", "--positions", "128", "--vocab", "512"]) == 0


def test_every_directory_with_code_is_a_package_and_so_is_shipped() -> None:
    directories = {path.parent for path in (CHECKOUT / "nkilib").rglob("*.py")}
    assert [str(directory) for directory in sorted(directories) if not (directory / "__init__.py").is_file()] == []


@pytest.mark.parametrize(
    ("name", "others", "real"),
    [
        ("nki", ["0.0.1", "0.1", "0.6.0"], "0.7.0"),
        ("neuronx-cc", ["1.0.post1"], "2.27.5334.0"),
        ("torch-neuronx", ["1.0", "2.9.0.2.15.32035", "2.13.0.2.16.1"], "2.13.3.0.1"),
        ("torch-neuronx", ["1.0"], "2.14.3.0.1"),
    ],
)
def test_the_neuron_extra_accepts_neither_stubs_nor_older_products(name: str, others: list[str], real: str) -> None:
    """Stubs are on the public index; torch-neuronx on PyTorch/XLA is another product of the name."""
    requirements = [Requirement(text) for text in project()["optional-dependencies"]["neuron"]]
    [bounds] = [requirement.specifier for requirement in requirements if requirement.name == name]
    assert [version for version in (*others, real) if Version(version) in bounds] == [real]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("target", "extras"),
    [
        ("demo", "cli"),
        ("sweep", "cli"),
        ("bench", "cli,torch"),
        ("test", "test"),
        ("test-core", "test-core"),
        ("test-torch", "test-torch"),
    ],
)
def test_make_installs_what_the_target_needs(target: str, extras: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(CHECKOUT / name, tmp_path)
    # An outer make passes its options on to an inner one through these.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    process = subprocess.run(
        ["make", "--dry-run", target], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    installs = [line for line in process.stdout.splitlines() if "pip" in line and "--editable" in line]
    assert len(installs) == 1
    assert installs[0].endswith(f"install --constraint constraints.txt --editable '.[{extras}]'")


def bundled_packages() -> list[str]:
    """Our packages that the bundled package has too; those below them are ours alone."""
    return ["nkilib", "nkilib.core", "nkilib.experimental", "nkilib.experimental.loss"]


@pytest.fixture
def two_trees(tmp_path: Path) -> tuple[Path, Path]:
    """A checkout of ours, and the directory of a package nkilib as a compiler bundles it.

    In each of `bundled_packages` both sides have a module `both`, and the other side has a module `only_bundled` and an
    __init__ that fails when it is executed. A whole package, core.only_bundled_package, is on the other side alone.
    """
    checkout, bundle = tmp_path / "checkout", tmp_path / "site-packages"
    shutil.copytree(CHECKOUT / "nkilib", checkout / "nkilib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in bundled_packages():
        ours, theirs = checkout.joinpath(*name.split(".")), bundle.joinpath(*name.split("."))
        theirs.mkdir(parents=True, exist_ok=True)
        (theirs / "__init__.py").write_text("raise AssertionError('the bundled package was imported')")
        (ours / "both.py").write_text("OWNER = 'ours'")
        (theirs / "both.py").write_text("OWNER = 'bundled'")
        (theirs / "only_bundled.py").write_text("OWNER = 'bundled'")
    package = bundle / "nkilib" / "core" / "only_bundled_package"
    package.mkdir()
    (package / "__init__.py").write_text("from nkilib.core.only_bundled import OWNER")
    (package / "part.py").write_text("from . import OWNER")
    return checkout, bundle


@pytest.mark.parametrize("package", bundled_packages())
def test_ours_wins_and_the_rest_of_the_bundled_package_stays_importable(
    package: str, two_trees: tuple[Path, Path]
) -> None:
    checkout, bundle = two_trees
    code = f"import {package}.both, {package}.only_bundled\nprint({package}.both.OWNER, {package}.only_bundled.OWNER)"
    outcome = run_fresh(code, "simulator", home=checkout, after=[bundle])
    assert outcome.error == ""
    assert outcome.output == "ours bundled"


def test_a_package_that_only_the_bundled_one_has_stays_importable(two_trees: tuple[Path, Path]) -> None:
    checkout, bundle = two_trees
    code = "import nkilib.core.only_bundled_package.part as part\nprint(part.OWNER, part.__file__)"
    outcome = run_fresh(code, "simulator", home=checkout, after=[bundle])
    assert outcome.error == ""
    assert outcome.output == f"bundled {bundle / 'nkilib' / 'core' / 'only_bundled_package' / 'part.py'}"


def test_behind_the_bundled_package_ours_is_hidden(two_trees: tuple[Path, Path]) -> None:
    checkout, bundle = two_trees
    outcome = run_fresh("import nkilib", home=checkout, before=[bundle])
    assert outcome.error == "AssertionError: the bundled package was imported"
