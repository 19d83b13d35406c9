# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The package as it is installed: what importing it does, its public names, its licences, and a reproducible release.

It changes nothing outside itself, and it lives beside another package of the same name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from email.policy import compat32
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from nkilib import __version__
from nkilib.base.installation import extra_remedy
from nkilib.cli.main import parser
from nkilib.simulator import spec
from tests.fresh_python import CHECKOUT, run_fresh, with_checkout
from tools.write_licences import files, has_header
from tools.write_public_api import HEAD, MODULES, PAGE, described, imported, parameters

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


def names_imported(file: Path) -> set[str]:
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
    result = set().union(*(names_imported(file) for file in (CHECKOUT / "nkilib" / extra).rglob("*.py")))
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


# docs/reference/public_api.txt has what the code offers, and the pages use nothing else.

WRITTEN = PAGE.read_text(encoding="utf-8")
BLOCKS = dict(block.partition("\n")[::2] for block in WRITTEN.removeprefix(HEAD).strip().split("\n\n"))
LISTED = {
    module: dict(line.strip().partition(": ")[::2] for line in lines.splitlines()) for module, lines in BLOCKS.items()
}
# Pages for contributors to nkilib itself.
OF_DEVELOPERS = {
    "CONTRIBUTING.md",
    "add_a_loss.md",
    "add_a_loss_of_your_own.md",
    "add_a_loss_with_kernels.md",
    "add_an_option.md",
    "contribute.md",
    "finish_a_loss.md",
    "further_checks.md",
    "where_things_are.md",
}


def needs_what_is_there(module: str) -> None:
    """Skip the test where a module needs PyTorch or JAX and that is not installed."""
    part = module.split(".")[1] if "." in module else ""
    if part in ("torch", "jax"):
        pytest.importorskip(part)


def test_the_file_has_the_modules_that_the_script_writes() -> None:
    assert WRITTEN.startswith(HEAD)
    assert list(LISTED) == list(MODULES)


@pytest.mark.parametrize("module", LISTED)
def test_each_name_of_the_file_is_offered_as_it_says_and_no_other(module: str) -> None:
    """A changed signature shows here: run ``python -m tools.write_public_api`` and read what changed."""
    needs_what_is_there(module)
    offered = import_module(module).__all__
    assert sorted(offered) == list(LISTED[module]), (
        f"__all__ of {module} and docs/reference/public_api.txt differ; run `python -m tools.write_public_api`, and "
        f"read what changed"
    )
    assert len(set(offered)) == len(offered)
    result = {name: described(imported(module, name)) for name in offered}
    assert result == LISTED[module]


def test_a_name_outside_all_is_not_public() -> None:
    """Some names of public modules are imported for their own use."""
    module = import_module("nkilib.nki")
    assert hasattr(module, "find_spec") and "find_spec" not in LISTED["nkilib.nki"]


def test_kinds_and_parameters_are_told_apart() -> None:
    def function(a, /, b, c=1, *, d, e=2, **rest): ...  # type: ignore[no-untyped-def]

    assert parameters(function) == "(a, /, b, c=, *, d, e=, **rest)"
    assert parameters(lambda a, /: a) == "(a, /)"
    assert parameters(lambda *args, key: key) == "(*args, key)"
    assert described(spec) == "function (shape, dtype)"
    assert described(inspect) == "module" and described(3) == "constant" and described(list[int]) == "type"
    assert described(ValueError) == "exception" and described(Path) == described(Path)


@pytest.mark.parametrize("module", LISTED)
def test_a_public_path_has_no_private_part(module: str) -> None:
    assert not any(part.startswith("_") for part in module.split("."))
    assert not any(name.startswith("_") for name in LISTED[module] if name != "__version__")


def test_the_page_names_each_module_and_each_command() -> None:
    page = (CHECKOUT / "docs" / "reference" / "public_api.md").read_text(encoding="utf-8")
    assert [module for module in LISTED if f"`{module}`" not in page] == []
    [commands] = (action for action in parser()._actions if action.choices)
    assert [name for name in commands.choices or () if f"python -m nkilib {name}" not in page] == []
    for runs in re.findall(r"python -m (nkilib[\w.]*)", page):
        result = find_spec(runs)
        assert result is not None and (result.submodule_search_locations is None or find_spec(f"{runs}.__main__"))


def documented() -> Iterator[tuple[str, str, str]]:
    """Page or example, module and name of each import of nkilib in the pages for users and the examples."""
    pages = [
        path for path in (CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")) if path.name not in OF_DEVELOPERS
    ]
    sources = [
        (path.name, block)
        for path in pages
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    sources += [(path.name, path.read_text(encoding="utf-8")) for path in (CHECKOUT / "examples").rglob("*.py")]
    for where, source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "nkilib":
                yield from ((where, node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "nkilib"]
                yield from ((where, name, "") for name in names)


# Imports of private modules: an example that compares memory counts workspace as the plan of the kernels does.
PRIVATE = {("_distillation_costs.py", "nkilib.experimental.loss.linear.tiling", "backward_bytes")}


def is_public(module: str, name: str) -> bool:
    """Whether ``from module import name``, or ``import module`` where the name is empty, is of public paths alone."""
    if not name:
        return module in LISTED
    return name in LISTED.get(module, ()) or f"{module}.{name}" in LISTED


def test_pages_and_examples_import_what_is_public_alone() -> None:
    imports = set(documented())
    assert len(imports) > 50
    assert {item for item in imports if not is_public(*item[1:])} == PRIVATE


def test_names_that_two_public_modules_share_are_one_object() -> None:
    """But for kernels and the functions that they launch, which have the same name in a module of their own."""
    loss, tiling = import_module("nkilib.experimental.loss"), import_module("nkilib.experimental.loss.tiling")
    shared: set[str] = set(loss.__all__) & set(tiling.__all__)
    assert shared and all(getattr(loss, name) is getattr(tiling, name) for name in shared)
    extended: ModuleType = import_module("nkilib.experimental.loss.extended")
    assert all(getattr(loss, name) is getattr(extended, name) for name in extended.__all__)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WHEEL, SDIST = f"nkilib-{__version__}-py3-none-any.whl", f"nkilib-{__version__}.tar.gz"


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders with a wheel and an sdist each, built one after the other."""
    folders = [tmp_path_factory.mktemp("build") for _ in range(2)]
    for folder in folders:
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
        done = subprocess.run(command, cwd=CHECKOUT, env=with_checkout(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("name", [WHEEL, SDIST])
def test_two_builds_are_bitwise_identical(name: str, builds: list[Path]) -> None:
    first, second = ((folder / name).read_bytes() for folder in builds)
    assert first == second and len(first) > 100_000


def test_the_wheel_has_the_package_its_path_files_and_the_licence_and_no_test(builds: list[Path]) -> None:
    with zipfile.ZipFile(builds[0] / WHEEL) as wheel:
        names = wheel.namelist()
    outside = {name for name in names if not name.startswith("nkilib-packages/nkilib/")}
    info = f"nkilib-{__version__}.dist-info"
    metadata = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert outside == {"_nkilib_first.py", "nkilib-packages.pth"} | metadata
    assert [name for name in names if re.search(r"(^|/)(tests?|conftest|test_\w+)(/|\.py$)", name)] == []
    assert "nkilib-packages/nkilib/py.typed" in names
    shipped = {name.removeprefix("nkilib-packages/") for name in names if name.startswith("nkilib-packages/")}
    kinds = (".py", ".html", ".css", ".js")
    files = [path for path in (CHECKOUT / "nkilib").rglob("*") if path.suffix in kinds]
    assert {path.suffix for path in files} == set(kinds)
    assert {str(path.relative_to(CHECKOUT)) for path in files} <= shipped


def test_every_shipped_source_names_its_licence(builds: list[Path]) -> None:
    with zipfile.ZipFile(builds[0] / WHEEL) as wheel:
        heads = {name: wheel.read(name)[:200].decode() for name in wheel.namelist() if name.endswith(".py")}
    assert [name for name, head in heads.items() if "SPDX-License-Identifier: Apache-2.0" not in head] == []


def test_the_metadata_are_complete(builds: list[Path]) -> None:
    with zipfile.ZipFile(builds[0] / WHEEL) as wheel:
        text = wheel.read(f"nkilib-{__version__}.dist-info/METADATA").decode()
    metadata = HeaderParser(policy=compat32).parsestr(text)
    for field in ("Summary", "Author", "License-Expression", "Keywords", "Requires-Python", "Description-Content-Type"):
        assert metadata[field], field
    assert metadata["Version"] == __version__
    assert str(metadata.get_payload()).startswith("# nkilib")


def test_the_sdist_has_what_builds_tests_and_documents(builds: list[Path]) -> None:
    with tarfile.open(builds[0] / SDIST) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        included = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    # Stray files of a checkout are not shipped; hatchling adds these two.
    assert {name.partition("/")[0] for name in names} == {*included, "PKG-INFO", ".gitignore"}
    expected = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt"}
    assert expected | {"docs/conf.py", "docs/index.md", "tests/conftest.py", "layout/nkilib-packages.pth"} <= names


def test_every_file_begins_with_the_licence() -> None:
    """``python -m tools.write_licences`` adds it."""
    without = [str(path.relative_to(CHECKOUT)) for path in files() if not has_header(path.read_text(encoding="utf-8"))]
    assert without == []
