# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Keywords that public functions share by ``**options: Unpack[...]`` (PEP 692) instead of repeating them.

Type checkers know the keywords from the TypedDict, readers from the signature that ``help`` shows; a call with an
unknown keyword raises a TypeError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, TypedDict, TypeVar

from nkilib.core.host.options import Dataclass, Group, options_of

Function = TypeVar("Function", bound=Callable[..., Any])


def shows(shared: type, defaults: type[Dataclass]) -> Callable[[Function], Function]:
    """Decorate a function with ``**keywords`` so that ``inspect.signature`` and ``help`` list the keywords.

    Args:
        shared: the TypedDict of the keywords.
        defaults: a dataclass with fields of these names, whose defaults are shown.
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


def numbers(caller: object, function: Callable[..., Any], group: type[Group], keywords: Mapping[str, Any]) -> Group:
    """Make the options of a public function from its keywords, which may be numbers of any kind that
    :func:`~nkilib.core.host.options.as_float` takes.

    Args:
        caller: the name that errors begin with.
        function: the function that the keywords were passed to.
        group: the dataclass of the options.
        keywords: the keywords by name; missing ones get their default.

    Raises:
        TypeError: an unknown option, or a value of another type.
        ValueError: an integer of more than 64 bits.
    """
    options = options_of(group)
    refuse_unknown(function, keywords, [option.name for option in options])
    return group(
        **{
            option.name: option.as_python(caller, keywords[option.name])
            for option in options
            if option.name in keywords
        }
    )


class NoKeywords(TypedDict):
    """The keywords of a function that has none by ``**unknown``.

    Such a function has ``**unknown`` nevertheless, so that :func:`refuse_unknown` can name the nearest argument of a
    misspelt one, which Python itself does not do before 3.13. It is decorated with :func:`hides_unknown`.
    """


def hides_unknown(function: Function) -> Function:
    """Decorate a function with ``**unknown`` so that ``inspect.signature`` and ``help`` do not show it."""
    signature = inspect.signature(function)
    shown = [item for item in signature.parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def refuse_unknown(function: Callable[..., Any], keywords: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Check that every keyword of a call is known. Python checks this itself where keywords are not shared.

    Raises:
        TypeError: an unknown keyword; the message names the function, the keyword, the known ones and the nearest one.
    """
    for name in keywords:
        if name not in known:
            parameters = list(inspect.signature(function).parameters)
            nearest = get_close_matches(name, parameters, n=1)
            guess = f" (did you mean {nearest[0]!r}?)" if nearest else ""
            raise TypeError(
                f"{function.__name__}: there is no argument {name!r}{guess}; the arguments are {', '.join(parameters)}"
            )
