# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Objects that functions of tests read: changed by tests, which put them back."""

from __future__ import annotations

import functools
import math
import os
import random
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

SCALE: Any = 2
TABLE = {"a": 1, "b": 2}
ITEMS = [1, 2, 3]
CHOSEN = {1, 2}
WEIGHTS = np.arange(8.0)
LARGE = np.zeros(10_000)
CONSTANT = np.zeros(10_000)
CONSTANT.flags.writeable = False
MANY = [*range(100)]


class Base:
    """Is inherited from."""

    factor = 3

    def inherited(self) -> int:
        return self.factor


class Shape(Base):
    """A class that has methods."""

    def method(self) -> int:
        return self.inherited()

    @property
    def area(self) -> int:
        return 7

    @staticmethod
    def static() -> int:
        return 8


class Other:
    """A class whose name no function of the tests says."""

    def hidden(self) -> int:
        return 1


@dataclass
class Settings:
    """An object that is global."""

    width: int = 1
    inner: Any = None


class Strange:
    """Makes attributes for whoever asks."""

    def __getattr__(self, name: str) -> Strange:
        return Strange()


STRANGE = Strange()
NAMESPACE = SimpleNamespace(width=1)
SETTINGS = Settings(1, Settings(2))
OTHER = Other()
HANDLERS: dict[str, Callable[[], int]] = {}


def helper(x: int = 1, *, y: int = 2) -> int:
    return x + y


def decorated(function: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(function)
    def wrapper() -> int:
        return function() + 1

    return wrapper


def closing_over(value: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return value

    return inner


WRAPPED = decorated(closing_over(5))
HANDLERS["first"] = closing_over(6)
PARTIAL = functools.partial(helper, 4)


def reads_all() -> int:
    """Reads what the tests change."""
    shape = Shape()
    total = SCALE + TABLE["a"] + ITEMS[0] + len(CHOSEN) + helper() + shape.method() + shape.area + Shape.static()
    total += SETTINGS.width + SETTINGS.inner.width + OTHER.hidden() + WRAPPED() + HANDLERS["first"]() + PARTIAL()
    return total + int(WEIGHTS[0]) + int(CONSTANT[0]) + MANY[0] + math.floor(1.5) + len([*map(int, "12")])


def imports_when_it_runs() -> int:
    from collections import abc

    from tests.simulator.replay.scenery import helper as renamed

    from . import planners

    return renamed() + len(planners.__name__) + len(abc.__name__)


def imports_os() -> Any:
    import os as system

    return system.environ


def imports_numpy_random() -> Any:
    import numpy.random as generator

    return generator.rand()


def computes_a_name() -> int:
    return globals()["hel" + "per"]()


def reads_a_namespace() -> int:
    return NAMESPACE.width


def reads_a_strange_object() -> Any:
    return STRANGE.anything


def reads_getenv() -> Any:
    return os.getenv("HOME")


def reads_environ() -> Any:
    return os.environ.get("HOME")


def reads_random() -> Any:
    return random.random()


def reads_choice() -> Any:
    return random.choice(ITEMS)


def reads_numpy_random() -> Any:
    return np.random.rand()


def reads_time() -> Any:
    return time.time()


def reads_uuid() -> Any:
    return uuid.uuid4()


def prints() -> None:
    print(end="")


def opens() -> None:
    with open(os.devnull):
        pass


def warns() -> None:
    warnings.simplefilter("ignore")


def reads_large() -> float:
    return float(LARGE[0])


def has_an_attribute_called_print() -> int:
    """Calls no builtin."""
    return functools.partial(helper, 4).func() if hasattr(SETTINGS, "width") else SETTINGS.print.open.input  # type: ignore[attr-defined]


def reads_nothing() -> int:
    return 1
