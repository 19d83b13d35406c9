# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The maps of the linear losses, docstrings of their packages, name every file, and no file that there is not."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import nkilib.experimental.loss.linear as linear
import nkilib.experimental.loss.linear_cross_entropy as linear_cross_entropy
import nkilib.experimental.loss.linear_distillation as linear_distillation

ROOMS = ("forward", "backward", "mixture", "host")


def named_in(text: str) -> set[str]:
    """The modules that a map names by a path: ``linear.launch``, ``forward.one_core``."""
    return set(re.findall(rf"``((?:linear|{'|'.join(ROOMS)})\.[\w.]+)``", text))


@pytest.mark.parametrize("package", [linear, linear_cross_entropy, linear_distillation], ids=lambda item: item.__name__)
def test_a_map_names_the_files_that_there_are(package: object) -> None:
    folder, name, text = Path(str(getattr(package, "__file__", ""))).parent, getattr(package, "__name__", ""), ""
    for file in sorted(folder.rglob("__init__.py")):
        place = file.parent.relative_to(folder).parts
        text = str(import_module(".".join((name, *place))).__doc__)
        modules = {path.stem for path in file.parent.glob("*.py")} - {"__init__"}
        modules |= {path.parent.name for path in file.parent.glob("*/__init__.py")}
        assert modules
        assert {module for module in modules if f"``{module}``" not in text} == set()
    for path in named_in(str(getattr(package, "__doc__", ""))):
        at = Path(linear.__path__[0]) if path.startswith("linear.") else folder
        assert (at / f"{path.removeprefix('linear.').replace('.', '/')}.py").exists(), path


def test_a_name_of_a_room_is_seen_in_a_map() -> None:
    assert named_in("``forward.one_core`` and ``linear.backward.rounds``, but ``kernels``") == {
        "forward.one_core",
        "linear.backward.rounds",
    }
