# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The source: commands and hooks of contributors, layers of imports, and how the code of kernels is written."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

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
    assert linters()[:4] == ["ruff check .", "ruff format --check .", "tools.check_prose", "mypy"]
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


ROOT = Path(__file__).resolve().parent.parent
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
LIBRARY, BASE, SIMULATOR, REPOSITORY, BENCHMARKS = (
    contract for contract in SETTINGS["contracts"] if contract["type"] == "layers"
)

Graph = Mapping[str, set[str]]


def imports_of(root: Path, package: str) -> dict[str, set[str]]:
    """Return by module of a package the names of all modules that it imports, the package's own and others."""
    files = {_name(root, file): file for file in sorted((root / package).rglob("*.py"))}
    return {name: set(_imported(name, file, files)) - {name} for name, file in files.items()}


def _name(root: Path, file: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, file: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    here = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                member = f"{base}.{alias.name}"
                yield member if member in modules else base


def circle_in(graph: Graph) -> list[str]:
    """Modules of which each is imported by the next, and the last one by the first; empty if there are none."""
    try:
        TopologicalSorter({name: others & graph.keys() for name, others in graph.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def arrows_up(graph: Graph, layers: Sequence[str]) -> list[tuple[str, str]]:
    """The imports from a layer to a higher one, or to one beside it; ``layers`` start with the highest."""
    place_of = {
        module: (depth, layer if _may_know_each_other(layer) else name)
        for module in graph
        for depth, layer in enumerate(layers)
        for name in packages_of(layer)
        if f"{module}.".startswith(f"{name}.")
    }
    return [
        (module, other)
        for module, place in place_of.items()
        for other in sorted(graph[module])
        if not _may_import(place, place_of.get(other, place))
    ]


def _may_import(place: tuple[int, str], other: tuple[int, str]) -> bool:
    return other == place or other[0] > place[0]


def packages_of(layer: str) -> list[str]:
    """``a | b`` are two that do not know each other, ``a : b`` two that may."""
    return [name for name in layer.split() if name not in "|:"]


def _may_know_each_other(layer: str) -> bool:
    return ":" in layer


def layers_of(contract: Mapping[str, Any]) -> list[str]:
    """Names of the layers of a contract about the packages of one container, in full."""
    (container,) = contract["containers"]
    return [re.sub(r"[\w.]+", rf"{container}.\g<0>", layer) for layer in contract["layers"]]


CONTAINERS = {
    "nkilib": LIBRARY["layers"],
    "nkilib/base": layers_of(BASE),
    "nkilib/simulator": layers_of(SIMULATOR),
    "benchmarks": layers_of(BENCHMARKS),
}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return imports_of(ROOT, "nkilib") | imports_of(ROOT, "benchmarks")


def test_no_module_imports_itself_by_way_of_others(graph: Graph) -> None:
    assert circle_in(graph) == []


def test_the_library_imports_nothing_that_is_not_installed_with_it(graph: Graph) -> None:
    """Nor does an example. What the highest of the packages import is free: they are not read, only named."""
    free, *lower = (packages_of(layer) for layer in REPOSITORY["layers"])
    assert {*free, *(name for layer in lower for name in layer)} == set(SETTINGS["root_packages"])
    named = {_name(ROOT, file): set[str]() for package in free for file in (ROOT / package).rglob("*.py")}
    assert arrows_up({**graph, **imports_of(ROOT, "examples"), **named}, REPOSITORY["layers"]) == []


def test_every_package_of_the_checkout_is_a_root() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(SETTINGS["root_packages"])


def test_commands_of_the_benchmarks_stand_above_what_they_share() -> None:
    is_private = [[name.startswith("_") for name in packages_of(layer)] for layer in BENCHMARKS["layers"]]
    assert [all(layer) for layer in is_private] == [any(layer) for layer in is_private], "a layer has both"
    assert is_private == sorted(is_private, key=all), "what is private stands lower"


@pytest.mark.parametrize("layers", CONTAINERS.values(), ids=CONTAINERS)
def test_imports_go_down(graph: Graph, layers: list[str]) -> None:
    assert all(name in graph for layer in layers for name in packages_of(layer))
    assert arrows_up(graph, layers) == []


def test_every_package_and_module_is_in_a_layer() -> None:
    ignored = {f"nkilib.simulator.{name}" for name in (*SIMULATOR["exhaustive_ignores"], "__init__")}
    ignored |= {f"benchmarks.{name}" for name in BENCHMARKS["exhaustive_ignores"]}
    for folder, layers in CONTAINERS.items():
        result = {_name(ROOT, path) for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"}
        result |= {_name(ROOT, path.parent) for path in (ROOT / folder).glob("*/__init__.py")}
        assert result - ignored == {name for layer in layers for name in packages_of(layer)}


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_only_the_side_of_a_framework_imports_it(graph: Graph, framework: str) -> None:
    library = {name: others for name, others in graph.items() if name.startswith("nkilib")}
    users = {name for name, others in library.items() if any(other.split(".")[0] == framework for other in others)}
    assert users
    assert {name for name in users if not name.startswith(f"nkilib.{framework}")} == set()


def test_packages_of_one_layer_do_not_know_each_other() -> None:
    graph = {"p.low": {"p.left.a"}, "p.left.a": {"p.right", "p.left.b"}, "p.left.b": {"p.low"}, "p.right": set[str]()}
    assert arrows_up(graph, ["p.left | p.right", "p.low"]) == [("p.low", "p.left.a"), ("p.left.a", "p.right")]
    assert arrows_up(graph, ["p.left : p.right", "p.low"]) == [("p.low", "p.left.a")]


@pytest.mark.parametrize(
    "line",
    [
        "from .high import name",
        "from . import high",
        "import package.high",
        "from package import high",
        "def later():\n    from package.high import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .high import name",
    ],
)
def test_every_way_to_import_is_seen(tmp_path: Path, line: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name, text in {"__init__": "", "high": "from . import low\nname = low", "low": line}.items():
        (package / f"{name}.py").write_text(text)
    result = imports_of(tmp_path, "package")
    assert arrows_up(result, ["package.high", "package.low"]) == [("package.low", "package.high")]
    assert set(circle_in(result)) == {"package.high", "package.low"}


PACKAGE = CHECKOUT / "nkilib"
KERNELS = [*sorted((PACKAGE / "core").rglob("*.py")), *sorted((PACKAGE / "experimental").rglob("*.py"))]
# Code beside the device, which no kernel calls: in folders named host, and in files of these names.
UNTRACED = {
    "bounds.py",
    "host.py",
    "profiling.py",
    "public_kernels.py",
    "reference.py",
    "registry_entry.py",
    "tiling.py",
    "triplet_margin_host.py",
}
TRACED = [path for path in KERNELS if path.parent.name != "host" and path.name not in UNTRACED]
WRAPPERS = [*sorted((PACKAGE / "torch").rglob("*.py")), *sorted((PACKAGE / "jax").rglob("*.py"))]
OTHERS = sorted({*PACKAGE.rglob("*.py")} - {*KERNELS, *WRAPPERS})

# A rule finds what breaks it in a module.
Rule = Callable[[ast.Module], Iterator[ast.AST]]


def annotated(module: ast.Module) -> Iterator[ast.expr]:
    """Yield the annotations of parameters, results, fields and variables; those in quotes are read too."""
    for node in ast.walk(module):
        results: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            results = [node.returns]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            results = [node.annotation]
        for annotation in results:
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                yield ast.copy_location(ast.parse(annotation.value, mode="eval").body, annotation)
            elif annotation is not None:
                yield annotation


def aliases(module: ast.Module) -> Iterator[ast.expr]:
    """Yield the values that names of a module stand for: `Pair = tuple[A, B]` is an annotation elsewhere."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Subscript | ast.Name):
            yield node.value


def anonymous_tuples(module: ast.Module) -> Iterator[ast.AST]:
    """`tuple[A, B, C]`: what each of more than two items is has to be remembered by whoever reads it."""
    for annotation in (*annotated(module), *aliases(module)):
        for node in ast.walk(annotation):
            if (
                isinstance(node, ast.Subscript)
                and ast.unparse(node.value) in ("tuple", "Tuple", "typing.Tuple")
                and isinstance(node.slice, ast.Tuple)
                and len(node.slice.elts) > 2
            ):
                yield node


def unknown_types(module: ast.Module) -> Iterator[ast.AST]:
    """`Any` and `object`: nothing that is done with such a value is checked."""
    for annotation in (*annotated(module), *aliases(module)):
        for node in ast.walk(annotation):
            if ast.unparse(node) in ("Any", "typing.Any", "object"):
                yield node


def missing_types(module: ast.Module) -> Iterator[ast.AST]:
    """A parameter without a type is `Any` by another name; `self` and `cls` have theirs."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inputs = node.args
            every = [*inputs.posonlyargs, *inputs.args, *inputs.kwonlyargs, inputs.vararg, inputs.kwarg]
            for parameter in every:
                if parameter is not None and parameter.annotation is None and parameter.arg not in ("self", "cls"):
                    yield parameter
            if node.returns is None:
                yield node


def evasions(module: ast.Module) -> Iterator[ast.AST]:
    """`typing.cast`, which nobody checks."""
    for node in ast.walk(module):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "typing"
            and any(name.name == "cast" for name in node.names)
        ):
            yield node
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "typing.cast":
            yield node


def lookups_by_string(module: ast.Module) -> Iterator[ast.AST]:
    """`options["..."]`: a field of a dataclass is checked, a key is not. `Literal["..."]` is a type."""
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
            and ast.unparse(node.value) != "Literal"
        ):
            yield node


def comparisons_with_none(module: ast.Module) -> Iterator[ast.AST]:
    """`== None`, which kernels for NKI before 0.7 needed."""
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for op, *pair in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(op, ast.Eq | ast.NotEq) and any(
                    isinstance(side, ast.Constant) and side.value is None for side in pair
                ):
                    yield node


def asserts(module: ast.Module) -> Iterator[ast.AST]:
    """`assert`, which `python -O` drops."""
    return (node for node in ast.walk(module) if isinstance(node, ast.Assert))


def asserts_of_input(module: ast.Module) -> Iterator[ast.AST]:
    """Asserts that do more than tell a type checker what is known: those say `is not None`, `isinstance`, a flag."""
    for node in ast.walk(module):
        if isinstance(node, ast.Assert):
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            if node.msg is not None or not all(_narrows(part) for part in parts):
                yield node


def _narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.Call):
        return ast.unparse(test.func) == "isinstance"
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.IsNot) and ast.unparse(test.comparators[0]) == "None"
    return isinstance(test, ast.Attribute) and test.attr.startswith("is_")


RULES: list[tuple[Rule, list[Path]]] = [
    (anonymous_tuples, KERNELS),
    (unknown_types, TRACED),
    (missing_types, KERNELS),
    (evasions, TRACED),
    (lookups_by_string, TRACED),
    (comparisons_with_none, KERNELS),
    (asserts, [*KERNELS, *WRAPPERS]),
    (asserts_of_input, OTHERS),
]
# What each rule has to find, and what it has to let pass.
BROKEN: dict[Rule, str] = {
    anonymous_tuples: "def f(x: tuple[int, str, float] | None) -> int: ...",
    unknown_types: "class A:\n    x: dict[str, Any]",
    missing_types: "def f(x, *, y: int) -> int: ...",
    evasions: "from typing import Final, cast",
    lookups_by_string: "def f(x: A) -> int:\n    return x['key']",
    comparisons_with_none: "a = b == None",
    asserts: "def f() -> None:\n    assert x is not None",
    asserts_of_input: "assert value > 0",
}
KEPT: dict[Rule, str] = {
    anonymous_tuples: "def f(x: tuple[int, str]) -> tuple[int, ...]: ...",
    unknown_types: "class A:\n    x: dict[str, int]",
    missing_types: "class A:\n    def f(self, x: int) -> None: ...",
    evasions: "from nkilib.core.rows.tiles import cast",
    lookups_by_string: "def f(x: A) -> int:\n    return x[0]",
    comparisons_with_none: "a = b is None",
    asserts: "require(x is not None, 'x')",
    asserts_of_input: "assert value is not None and isinstance(value.of, View)",
}


def places(rule: Rule, paths: list[Path]) -> list[str]:
    """Where files break a rule."""
    return [
        f"{path.relative_to(CHECKOUT)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        for path in paths
        for node in rule(ast.parse(path.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize(("rule", "paths"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_is_kept(rule: Rule, paths: list[Path]) -> None:
    assert len(paths) > 10
    assert places(rule, paths) == []


@pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.__name__)
def test_a_rule_finds_what_breaks_it(rule: Rule) -> None:
    assert list(rule(ast.parse(BROKEN[rule])))
    assert not list(rule(ast.parse(KEPT[rule])))


def test_no_warning_is_silenced() -> None:
    """Complaints of ruff and mypy about traced code are mended; an import may be there for its effect alone."""
    silencing = re.compile(r"noqa(?!: F401$)|type: ignore", re.MULTILINE)
    assert [path for path in TRACED if silencing.search(path.read_text(encoding="utf-8"))] == []


def test_the_syntax_of_annotations_is_read_where_it_stands_in_quotes() -> None:
    module = ast.parse("def f(x: 'tuple[int, str, float]') -> 'Any': ...")
    assert len(list(anonymous_tuples(module))) == 1
    assert len(list(unknown_types(module))) == 1
