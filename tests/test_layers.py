# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Who imports whom in nkilib and benchmarks: in layers, in no circle, torch in one place and jax in another.

The layers are those of ``[tool.importlinter]`` in pyproject.toml, which import-linter holds too where it runs. Here
every file is read, so that imports for annotations only and imports inside functions count like all others.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
LIBRARY, BASE, SIMULATOR, CHECKOUT, BENCHMARKS = (
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
    free, *lower = (packages_of(layer) for layer in CHECKOUT["layers"])
    assert {*free, *(name for layer in lower for name in layer)} == set(SETTINGS["root_packages"])
    named = {_name(ROOT, file): set[str]() for package in free for file in (ROOT / package).rglob("*.py")}
    assert arrows_up({**graph, **imports_of(ROOT, "examples"), **named}, CHECKOUT["layers"]) == []


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
