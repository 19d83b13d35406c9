# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How a run of tests is laid out: pieces for processes, what is asked for, what is collected, what is absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import collected_imports, optional_packages, scheduling
from tests.collected_imports import SLOW, first_with, note_imports
from tests.fresh_python import CHECKOUT
from tests.optional_packages import ROOT, missing_for, missing_in, missing_in_text, summary
from tests.scheduling import DIVISIBLE, FileScheduling
from tests.selected import read_names, selected, write_names

pytest.importorskip("xdist")


LONG, SHORT = "tests/test_long.py", "tests/test_short.py"
TESTS = [f"{LONG}::test_row[{row}]" for row in range(25)] + [f"{SHORT}::test_{name}" for name in range(12)]


class _Process:
    """A process of pytest-xdist that runs the tests it is given in order."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.ended: list[str] = []
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(processes: int) -> list[_Process]:
    """Hand out ``TESTS``, each process running one test after another at the same speed, until all have ended."""
    config = SimpleNamespace(
        getvalue=lambda _: ["popen"] * processes, option=SimpleNamespace(loadscopereorder=True), rootpath=CHECKOUT
    )
    handed_out, nodes = FileScheduling(config), [_Process() for _ in range(processes)]
    node: Any
    for node in nodes:
        handed_out.add_node(node)
        handed_out.add_node_collection(node, TESTS)
    handed_out.schedule()
    while any(node.given for node in nodes):
        for node in nodes:
            if node.given:
                place = node.given.pop(0)
                node.ended.append(TESTS[place])
                handed_out.mark_test_complete(node, place)
    assert handed_out.tests_finished and not handed_out.has_pending
    return nodes


def of_file(node: _Process, file: str) -> list[str]:
    """Return the tests of a file that a process has run, in order."""
    return [test for test in node.ended if test.startswith(file)]


def test_a_file_is_run_by_one_process() -> None:
    nodes = run(3)
    assert sorted(test for node in nodes for test in node.ended) == sorted(TESTS)
    for file in (LONG, SHORT):
        assert [of_file(node, file) for node in nodes if of_file(node, file)] == [
            [test for test in TESTS if test.startswith(file)]
        ]


@pytest.mark.parametrize(("processes", "with_pieces"), [(1, 1), (2, 2), (3, 2)])
def test_a_file_that_is_divided_is_run_by_several(
    processes: int, with_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "DIVISIBLE", {LONG: 10})
    nodes = run(processes)
    assert sorted(test for node in nodes for test in node.ended) == sorted(TESTS)
    assert len([node for node in nodes if of_file(node, LONG)]) == with_pieces
    assert len([node for node in nodes if of_file(node, SHORT)]) == 1
    pieces = [TESTS[:10], TESTS[10:20], TESTS[20:25]]
    for piece in pieces:
        (node,) = (node for node in nodes if piece[0] in node.ended)
        first = node.ended.index(piece[0])
        assert node.ended[first : first + len(piece)] == piece


def test_files_that_are_divided_are_there() -> None:
    assert all((CHECKOUT / file).is_file() for file in DIVISIBLE)


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest) -> list[str]:
    return selected(request, "name")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["a", "b", pytest.param("swept", marks=pytest.mark.sweep)])
def test_every_name_that_is_asked_for_is_given_once(name: str, number: int, names: list[str]) -> None:
    assert names.count(name) == 1


@pytest.mark.parametrize("name", ["c"])
def test_a_name_is_not_given_to_a_fixture_that_its_test_does_not_use(name: str, request: pytest.FixtureRequest) -> None:
    assert name not in request.getfixturevalue("names")


def test_a_deselected_test_asks_for_nothing(request: pytest.FixtureRequest, names: list[str]) -> None:
    is_selected = any("swept" in item.name for item in request.session.items)
    assert ("swept" in names) == is_selected


def test_names_are_read_as_they_were_written(tmp_path: Path) -> None:
    names = ["a step, bfloat16", "of 2^-24"]
    assert read_names(str(write_names(tmp_path, names))) == names


OF_TORCH = ROOT / "tests" / "torch"
FILES = sorted(path for name in ("test_*.py", "conftest.py") for path in (ROOT / "tests").rglob(name))
REMEDY = "import it in the tests and fixtures that need it, or move the file to tests/torch"


def test_no_file_outside_of_the_tests_of_pytorch_imports_it_at_its_top() -> None:
    wrong = [str(path) for path in FILES if OF_TORCH not in path.parents and missing_in(path, frozenset({"torch"}))]
    assert not wrong, REMEDY


def test_no_file_imports_transformers_at_its_top() -> None:
    wrong = [str(path) for path in FILES if missing_in(path, frozenset({"transformers", "trl"}))]
    assert not wrong, "import it in the tests and fixtures that need it"


def test_collection_has_imported_pytorch_for_its_tests_alone_and_nothing_that_takes_longer() -> None:
    first = dict(first_with)
    of_torch = first.pop("torch", None) or OF_TORCH  # the conftest.py of a folder that is asked for comes before all
    assert of_torch == OF_TORCH or OF_TORCH in of_torch.parents, REMEDY
    assert not first


def test_the_first_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected_imports, "first_with", {})
    monkeypatch.setattr(collected_imports, "SLOW", ("pytest", "no such module"))
    for name in ("first", "second"):
        note_imports(Path(name))
    assert collected_imports.first_with == {"pytest": Path("first")}
    assert "torch._dynamo" in SLOW


TORCH, JAX = frozenset({"torch"}), frozenset({"jax"})


@pytest.mark.parametrize(
    ("path", "without_torch", "without_jax"),
    [
        ("tests/torch/conftest.py", "torch", ""),
        ("tests/torch/functions/test_likelihood.py", "torch", ""),
        ("tests/jax/functions/test_names.py", "", "jax"),
        ("tests/torch/examples/test_policy_gradient.py", "torch", ""),  # by the example
        ("tests/torch/benchmarks/test_bench.py", "torch", ""),  # by the benchmark
        ("tests/simulator/replay/test_random_kernels.py", "", ""),  # the package beside it needs it
        ("tests/core/test_hardware.py", "", ""),
        ("tests/test_package.py", "", ""),  # in a test
        ("tests/conftest.py", "", ""),
    ],
)
def test_a_file_is_left_out_for_what_it_imports_at_its_top(path: str, without_torch: str, without_jax: str) -> None:
    assert missing_in(ROOT / path, TORCH) == without_torch
    assert missing_in(ROOT / path, JAX) == without_jax
    assert missing_in(ROOT / path, frozenset()) == ""


def test_a_package_above_a_module_and_a_with_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages, "ROOT", tmp_path)
    (tmp_path / "tests" / "above").mkdir(parents=True)
    for name, text in {
        "above/__init__.py": "with x:\n    import torch",
        "above/module.py": "",
        "test_a.py": "import tests.above.module",
    }.items():
        (tmp_path / "tests" / name).write_text(text, encoding="utf-8")
    assert missing_in(tmp_path / "tests" / "test_a.py", TORCH) == "torch"


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import torch", "torch"),
        ("from nkilib.torch import mse_loss", "torch"),
        ("from nkilib import torch", "torch"),
        ("def f():\n    import nkilib.torch.trl", "torch"),
        ("import nkilib.simulator", ""),
        ("from nkilib import simulator", ""),
    ],
)
def test_a_program_in_a_page_needs_what_it_imports(source: str, missing: str) -> None:
    assert missing_in_text(source, TORCH) == missing


def test_most_files_need_neither() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    left_out = [path for path in files if missing_in(path, TORCH | JAX)]
    assert 0 < len(left_out) < len(files) / 3
    assert not [path for path in left_out if path.relative_to(ROOT).parts[1] in ("base", "cli", "core", "neuron")]


def error_in(file: Path, name: str) -> ImportError:
    """The error of an import that stands in a file."""
    code = f"def fail():\n    raise ModuleNotFoundError('No module', name={name!r})\n"
    names: dict[str, Callable[[], None]] = {}
    exec(compile(code, str(file), "exec"), names)
    with pytest.raises(ImportError) as caught:
        names["fail"]()
    return caught.value


@pytest.mark.parametrize(
    ("file", "name", "missing"),
    [
        ("tests/test_package.py", "torch", "torch"),
        ("tests/test_package.py", "torch.nn", "torch"),
        ("nkilib/torch/functions/new.py", "torch", "torch"),
        ("nkilib/core/hardware.py", "torch", ""),  # must not import it: the test fails
        ("nkilib/experimental/loss/new.py", "torch", ""),
        ("tests/test_package.py", "numpy", ""),
        ("tests/test_package.py", "jax", ""),  # is there
    ],
)
def test_a_test_is_skipped_for_an_import_that_may_be_where_it_is(file: str, name: str, missing: str) -> None:
    assert missing_for(error_in(ROOT / file, name), TORCH) == missing


def test_the_report_counts_them() -> None:
    left_out = {Path("a"): "torch", Path("b"): "torch", Path("c"): "jax"}
    assert summary(left_out) == "test files left out: 1 for want of jax, 2 for want of torch"
    assert summary({}) == ""
