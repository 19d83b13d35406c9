"""Keywords that public functions share by ``**options: Unpack[...]`` (PEP 692) instead of repeating them.

Type checkers know them from the TypedDict, people from the signature that is shown, and a call from what is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from inspect import Parameter
from typing import Any, TypeVar

from nkilib.torch.dispatch.options import Dataclass

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
        shown = [*named, *further, *([rest] if rest.annotation == "Any" else [])]
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


def refuse_unknown(function: Callable[..., Any], given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse a keyword that is not there, as Python does where keywords are not shared.

    Raises:
        TypeError: with the function, the keyword and those that there are.
    """
    for name in given:
        if name not in known:
            there_are = ", ".join(inspect.signature(function).parameters)
            raise TypeError(f"{function.__name__}: there is no argument {name!r}; the arguments are {there_are}")
