# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The message of `import nkilib.torch` without PyTorch, or with one that is too old."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from nkilib.torch._requirement import REQUIREMENT


def pretend(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    other = ModuleType("torch")
    vars(other).update(__version__=version, __file__="here.py")
    monkeypatch.setitem(sys.modules, "torch", other)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"^nkilib.torch: needs torch 2.13 or later, .*pip install '\.\[torch\]'"):
        REQUIREMENT.check()


def test_with_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "2.12.1+cpu")
    with pytest.raises(ImportError, match=r"^nkilib.torch: needs torch 2.13 or later, got 2.12.1\+cpu in here.py; "):
        REQUIREMENT.check()


@pytest.mark.parametrize("version", ["2.13.0a0+git1234", "2.14.1+cpu", "3.0"])
def test_with_one_that_is_new_enough(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, version)
    REQUIREMENT.check()
