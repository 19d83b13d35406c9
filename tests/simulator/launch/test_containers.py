# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nkilib.simulator.launch.containers`: what is rebuilt, and how paths name the leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from nkilib.nki import nl
from nkilib.simulator.launch.containers import map_leaves


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Settings(nl.NKIObject):
    sizes: Any
    rate: Any = 3


def paths(value: Any) -> Any:
    """Every leaf replaced by its path."""
    return map_leaves(value, "x", lambda leaf, path: path)


def test_a_leaf_is_given_to_the_function_itself() -> None:
    seen: list[Any] = []
    assert map_leaves(7, "x", lambda leaf, path: seen.append((leaf, path))) is None
    assert seen == [(7, "x")]


def test_containers_keep_their_kinds() -> None:
    assert paths((1, [2, 3])) == ("x[0]", ["x[1][0]", "x[1][1]"])
    assert paths({"a": 1, 2: (3,)}) == {"a": "x['a']", 2: ("x[2][0]",)}
    assert paths(Pair(1, [2])) == Pair("x[0]", ["x[1][0]"])
    assert isinstance(paths(Pair(1, 2)), Pair)


def test_objects_are_copied_frozen_ones_too() -> None:
    settings = Settings([1, 2])
    rebuilt = paths(settings)
    assert rebuilt == Settings(["x.sizes[0]", "x.sizes[1]"], "x.rate")
    assert settings == Settings([1, 2], 3)


def test_tensors_strings_and_types_are_leaves() -> None:
    tensor = nl.NkiTensor((2, 3), nl.float32, None)
    seen: list[Any] = []
    map_leaves([tensor, "text", nl.bfloat16, None], "x", lambda leaf, path: seen.append(leaf))
    assert seen[0] is tensor
    assert seen[1:] == ["text", nl.bfloat16, None]
