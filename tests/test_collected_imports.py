# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Collection is quick, since every process of a run collects all tests: it imports little that takes long.

What a file needs at its top is read from it. What else imported it, such as another package, is seen in the process
that runs this test, as far as that collected other files before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import collected_imports
from tests.collected_imports import SLOW, first_with, note_imports
from tests.optional_packages import ROOT, missing_in

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
