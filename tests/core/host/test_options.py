# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Options as fields of dataclasses: what operators can take, and what becomes of a caller's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nkilib.core.host.options import options_from, options_of, values_of


@dataclass(frozen=True)
class Some:
    count: int
    share: float = 0.5
    cap: float | None = None
    limit: int | None = 3
    is_on: bool = True
    mode: str = "mean"


def test_each_field_is_a_keyword_of_the_schema() -> None:
    assert [item.schema for item in options_of(Some)] == [
        "int count",
        "float share=0.5",
        "float? cap=None",
        "int? limit=3",
        "bool is_on=True",
        'str mode="mean"',
    ]


@dataclass(frozen=True)
class WithList:
    sizes: list[int]


@dataclass(frozen=True)
class WithUnion:
    size: int | float = 0


@pytest.mark.parametrize("group", [WithList, WithUnion])
def test_what_an_operator_cannot_take_is_refused(group: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"^{group.__name__}.sizes? must be bool, int, float or str, or one of them or N"
    ):
        options_of(group)


OPTIONS = {entry.name: entry for entry in options_of(Some)}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("share", np.float32(0.5), 0.5),
        ("share", np.int64(2), 2.0),
        ("share", np.array(0.5), 0.5),
        ("count", np.array(3), 3),
        ("cap", None, None),
        ("cap", 3, 3.0),
        ("count", np.uint8(7), 7),
        ("limit", None, None),
        ("is_on", False, False),
        ("mode", "sum", "sum"),
    ],
)
def test_values_become_pythons(name: str, value: Any, expected: Any) -> None:
    result = OPTIONS[name].as_python("f", value)
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("share", "a", TypeError, "f: argument 'share' must be float, not str"),
        ("share", None, TypeError, "f: argument 'share' must be float, not NoneType"),
        ("share", True, TypeError, "f: argument 'share' must be float, not bool"),
        ("cap", 2j, TypeError, "f: argument 'cap' must be float, not complex"),
        ("count", 1.0, TypeError, "f: argument 'count' must be int, not float"),
        ("count", True, TypeError, "f: argument 'count' must be int, not bool"),
        ("count", -(2**63) - 1, ValueError, "f: count must fit 64 bits, got -9223372036854775809"),
        ("is_on", 1, TypeError, "f: argument 'is_on' must be bool, not int"),
        ("mode", 1, TypeError, "f: argument 'mode' must be str, not int"),
    ],
)
def test_other_values_are_refused(name: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        OPTIONS[name].as_python("f", value)


def test_an_instance_to_keywords_and_back() -> None:
    values = values_of(Some(1, cap=2.0))
    assert values == {"count": 1, "share": 0.5, "cap": 2.0, "limit": 3, "is_on": True, "mode": "mean"}
    assert options_from(Some, {**values, "unknown": 5}) == Some(1, cap=2.0)
