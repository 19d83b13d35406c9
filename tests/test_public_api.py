# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""docs/reference/public_api.txt has what the code offers, and the pages use nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from nkilib.cli.main import parser
from nkilib.simulator import spec
from tests.fresh_python import CHECKOUT
from tools.write_public_api import HEAD, MODULES, PAGE, described, imported, parameters

WRITTEN = PAGE.read_text(encoding="utf-8")
BLOCKS = dict(block.partition("\n")[::2] for block in WRITTEN.removeprefix(HEAD).strip().split("\n\n"))
LISTED = {
    module: dict(line.strip().partition(": ")[::2] for line in lines.splitlines()) for module, lines in BLOCKS.items()
}
# Pages for contributors to nkilib itself.
OF_DEVELOPERS = {"contribute.md", "add_a_loss.md", "CONTRIBUTING.md"}


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
PRIVATE = {("_distillation_costs.py", "nkilib.experimental.loss.linear.host.memory", "backward_bytes")}


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
