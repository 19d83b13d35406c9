"""Tiny kernels as text, so that they may hold what a linter would object to."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

HEADER: Final = """\
import functools
import math
from dataclasses import dataclass
from enum import Enum

from nkilib.nki import nisa, nki, nl

"""
HEADER_LINES: Final = HEADER.count("\n")


def load(source: str, directory: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    """Import kernels from text that is put into a file: the compiler, and the walker, read files.

    Args:
        source: the text below `HEADER`.
        directory: where the file goes.
        patch: takes the module out of `sys.modules` after the test.
    """
    name = "kernels_of_a_test"
    file = directory / f"{name}.py"
    assert not file.exists(), "load: one directory holds one source, since trees of files are cached"
    file.write_text(HEADER + source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module
