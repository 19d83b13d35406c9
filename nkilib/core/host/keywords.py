# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Keywords that public functions share by ``**options: Unpack[...]`` (PEP 692) instead of repeating them.

Type checkers know them from the TypedDict, people from the signature that is shown, and a call from what is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from inspect import Parameter
from typing import Any, TypeVar

from nkilib.core.host.options import Dataclass, Group, options_of

Function = TypeVar("Function", bound=Callable[..., Any])


def shows(shared: type, defaults: type[Dataclass]) -> Callable[[Function], Function]:
    """Decorate a function with ``**keywords`` so that ``inspect.signature`` and ``help`` name what they may be.

    Args:
        shared: the TypedDict of the keywords.
        defaults: a dataclass with fields of these names.
    """
    further = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(defaults)
        if field.name in shared.__annotations__
    ]

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *named, rest = signature.parameters.values()
        # Other keywords are accepted too only if they are not typed.
        shown = [*named, *further, *([rest] if rest.annotation in ("Any", Any) else [])]
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


def numbers(caller: object, function: Callable[..., Any], group: type[Group], given: Mapping[str, Any]) -> Group:
    """Options from the keywords of a public function, Python's or numpy's numbers.

    Args:
        caller: who is named in errors.
        function: whose keywords they are.
        group: the dataclass.
        given: by name; the others have their default.

    Raises:
        TypeError: no such option, or another type.
        ValueError: an integer of more than 64 bits.
    """
    options = options_of(group)
    refuse_unknown(function, given, [each.name for each in options])
    return group(**{each.name: each.as_python(caller, given[each.name]) for each in options if each.name in given})


def refuse_unknown(function: Callable[..., Any], given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a keyword that is not there, as Python does where keywords are not shared.

    Raises:
        TypeError: with the function, the keyword and those that there are.
    """
    for name in given:
        if name not in known:
            there_are = ", ".join(inspect.signature(function).parameters)
            raise TypeError(f"{function.__name__}: there is no argument {name!r}; the arguments are {there_are}")
