# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The message of `import nkilib.jax` without JAX, or with one that is too old."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is imported afresh; the package is that of the other tests again afterwards."""
    import nkilib

    for name in [name for name in sys.modules if name.startswith("nkilib.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(nkilib, "jax", raising=False)


def test_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"^nkilib.jax: needs jax 0.7 or later, .*pip install '\.\[jax\]'"):
        importlib.import_module("nkilib.jax")


def test_with_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    older = ModuleType("jax")
    vars(older).update(__version__="0.6.2", __version_info__=(0, 6, 2), __file__="here.py")
    monkeypatch.setitem(sys.modules, "jax", older)
    with pytest.raises(
        ImportError, match=r"^nkilib.jax: needs jax 0.7 or later, got 0.6.2 in here.py; install nkilib with"
    ):
        importlib.import_module("nkilib.jax")
