# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Traversal of the nested arguments and results of a kernel."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from ..tensors.scalars import DeviceInteger
from ..tensors.view import View
from ..terms.objects import NKIObject


def map_leaves(value: Any, path: str, function: Callable[[Any, str], Any]) -> Any:
    """Return ``value`` with ``function(leaf, path)`` in place of every leaf.

    Tuples (named ones too), lists, dictionaries and :class:`NKIObject` instances other than tensors, registers and
    scalars are rebuilt; everything else is a leaf.

    Args:
        value: the nested value.
        path: the name of ``value`` in messages; the path of an item is ``path[0]``, ``path['key']`` or ``path.field``.
        function: the function that is called with every leaf and its path.
    """
    if isinstance(value, tuple | list):
        items = [map_leaves(item, f"{path}[{number}]", function) for number, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_leaves(item, f"{path}[{key!r}]", function) for key, item in value.items()}
    if isinstance(value, NKIObject) and not isinstance(value, View | DeviceInteger):
        rebuilt = copy.copy(value)
        for field, item in vars(value).items():
            object.__setattr__(rebuilt, field, map_leaves(item, f"{path}.{field}", function))
        return rebuilt
    return function(value, path)


def parts_of(value: Any) -> dict[str, Any] | None:
    """Return the items of a nested value, by what their paths add to its own path; None for a leaf."""
    if isinstance(value, tuple | list):
        return {f"[{number}]": item for number, item in enumerate(value)}
    if isinstance(value, dict):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, NKIObject) and not isinstance(value, View | DeviceInteger):
        return {f".{field}": item for field, item in vars(value).items()}
    return None


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves of ``value`` in the order of :func:`map_leaves`."""
    leaves: list[Any] = []
    _collect(value, leaves)
    return leaves


def _collect(value: Any, leaves: list[Any]) -> None:
    items: Iterable[Any]
    if isinstance(value, tuple | list):
        items = value
    elif isinstance(value, dict):
        items = value.values()
    elif isinstance(value, NKIObject) and not isinstance(value, View | DeviceInteger):
        items = vars(value).values()
    else:
        leaves.append(value)
        return
    for item in items:
        _collect(item, leaves)
