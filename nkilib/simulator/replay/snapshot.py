# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that code read when it was recorded, to be compared by identity with those that it would read now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_
from types import CellType
from typing import Any, NamedTuple

import numpy.typing as npt


class Items(NamedTuple):
    """A list, dictionary or set that code read, and the items that were in it.

    Attributes:
        value: the container.
        items: the items that were in it; None if it is too long.
        size: the number of items that were in it.
    """

    value: Any
    items: Sequence[Any] | None
    size: int

    def is_current(self) -> bool:
        if len(self.value) != self.size:
            return False
        return self.items is None or all(map(is_, items_of(self.value), self.items))


class ArrayContent(NamedTuple):
    """An array that code read, and the bytes that were in it.

    Attributes:
        value: the array.
        content: the bytes of its elements at that time.
    """

    value: npt.NDArray[Any]
    content: bytes

    def is_current(self) -> bool:
        return self.value.tobytes() == self.content


content_of_cell = attrgetter("cell_contents")
defaults_of = attrgetter("__defaults__")
keyword_defaults_of = attrgetter("__kwdefaults__")


class Names(NamedTuple):
    """The values of names that code read in modules, classes and objects.

    Attributes:
        getters: for each mapping, a function that returns the values of the names in it.
        mappings: the mappings of names to values, such as the globals of a module.
        values: the recorded values, a tuple for each mapping.
    """

    getters: tuple[Callable[[Any], Any], ...]
    mappings: tuple[Mapping[str, Any], ...]
    values: list[Any]

    def current_values(self) -> list[Any]:
        """Return the current values of the names.

        Raises:
            KeyError: if a name was deleted.
        """
        return [get(mapping) for get, mapping in zip(self.getters, self.mappings, strict=True)]


class Absent(NamedTuple):
    """Names that modules, classes and objects lacked; if they got them, the code would read other values.

    Attributes:
        mappings: the mappings that lack the names.
        names: the names that each mapping lacks.
        sizes: the sizes of the mappings when they were last seen to lack the names.
    """

    mappings: tuple[Mapping[str, Any], ...]
    names: tuple[frozenset[str], ...]
    sizes: list[int]

    def is_current(self) -> bool:
        sizes = [*map(len, self.mappings)]
        if sizes == self.sizes:
            return True
        if any(not names.isdisjoint(mapping) for names, mapping in zip(self.names, self.mappings, strict=True)):
            return False
        self.sizes[:] = sizes
        return True


@dataclass(frozen=True)
class Snapshot:
    """The values that code read when it was recorded.

    Attributes:
        objects: names of values that equal only themselves, such as functions and classes, all compared in one step.
        values: names of all other values.
        absent: names that did not exist.
        cells, contents: the cells of closures and their contents.
        functions: the functions with default values of parameters.
        defaults, keyword_defaults: the default values of these functions.
        others: containers and arrays.
    """

    objects: Names
    values: Names
    absent: Absent
    cells: tuple[CellType, ...]
    contents: tuple[Any, ...]
    functions: tuple[Any, ...]
    defaults: tuple[Any, ...]
    keyword_defaults: tuple[Any, ...]
    others: tuple[Items | ArrayContent, ...]

    def is_current(self) -> bool:
        """Tell whether the same code would read the same values now."""
        try:
            return (
                bool(self.objects.current_values() == self.objects.values)
                and _are_same(
                    chain.from_iterable(self.values.current_values()), chain.from_iterable(self.values.values)
                )
                and self.absent.is_current()
                and _are_same(map(content_of_cell, self.cells), self.contents)
                and _are_same(map(defaults_of, self.functions), self.defaults)
                and _are_same(map(keyword_defaults_of, self.functions), self.keyword_defaults)
                and all(other.is_current() for other in self.others)
            )
        except (
            KeyError,
            ValueError,
            ReferenceError,
        ):  # a name or the content of a cell was deleted, or a function is gone
            return False


def _are_same(values: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(map(is_, values, others))


def items_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return [*value]
