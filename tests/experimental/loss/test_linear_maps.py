# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The maps of the linear losses, docstrings of their packages, name every file of their rooms, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nkilib.experimental.loss.linear as linear
import nkilib.experimental.loss.linear_cross_entropy as linear_cross_entropy
import nkilib.experimental.loss.linear_distillation as linear_distillation

ROOMS = ("forward", "backward", "mixture", "shared", "host")


def named_in(text: str) -> set[str]:
    """The modules of rooms that a map names: ``linear.forward.plan``, ``forward.one_core``."""
    return set(re.findall(rf"``((?:linear\.)?(?:{'|'.join(ROOMS)})\.[\w.]+)``", text))


@pytest.mark.parametrize("package", [linear, linear_cross_entropy, linear_distillation], ids=lambda item: item.__name__)
def test_a_map_names_the_files_that_there_are(package: object) -> None:
    folder, text = Path(str(getattr(package, "__file__", ""))).parent, str(package.__doc__)
    results = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.glob("*/*.py")}
    of_rooms = {name for name in results if not name.startswith("host.") and not name.endswith(".__init__")}
    assert of_rooms
    named = named_in(text)
    assert of_rooms - named == set()
    others = {name.removeprefix("linear.") for name in named if name.startswith("linear.")}
    assert {name for name in named if not name.startswith("linear.")} <= results
    assert {
        name for name in others if not (Path(linear.__path__[0]) / f"{name.replace('.', '/')}.py").exists()
    } == set()


def test_a_name_of_a_room_is_seen_in_a_map() -> None:
    assert named_in("``forward.plan`` and ``linear.shared.sizes``, but ``kernels``") == {
        "forward.plan",
        "linear.shared.sizes",
    }
