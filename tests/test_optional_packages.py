# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Without PyTorch or JAX the tests that need them are left out, those alone, and the report says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import optional_packages
from tests.optional_packages import ROOT, missing_for, missing_in, missing_in_text, summary

TORCH, JAX = frozenset({"torch"}), frozenset({"jax"})


@pytest.mark.parametrize(
    ("path", "without_torch", "without_jax"),
    [
        ("tests/torch/conftest.py", "torch", ""),
        ("tests/torch/functions/test_kl_div.py", "torch", ""),
        ("tests/jax/functions/test_names.py", "", "jax"),
        ("tests/torch/examples/test_grpo.py", "torch", ""),  # by the example
        ("tests/torch/benchmarks/test_bench.py", "torch", ""),  # by the benchmark
        ("tests/simulator/replay/test_random_kernels.py", "", ""),  # the package beside it needs it
        ("tests/core/test_tiling.py", "", ""),
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
        ("nkilib/core/tiling.py", "torch", ""),  # must not import it: the test fails
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
