# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The public functions of NKI by Python's names, and errors for calls of them that Python itself refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import CodeType, FrameType
from typing import Any

from .argument_checks import keyword_suggestions
from .errors import ArgumentTypeError


class PublicNames:
    """The functions, and the methods of the classes, that modules of NKI offer to kernels.

    Only those are listed for which Python itself checks the arguments of a call.
    """

    def __init__(self) -> None:
        self._modules: dict[str, tuple[Sequence[str], Mapping[str, Any]]] = {}
        self._found: dict[str, tuple[str, Callable[..., Any]]] = {}

    def offer(self, called: str, names: Sequence[str], namespace: Mapping[str, Any]) -> None:
        """Register the ``names`` of a module with the contents ``namespace``, which kernels know as ``called``."""
        self._modules[called] = names, namespace
        self._found.clear()

    def find(self, qualname: str) -> tuple[str, Callable[..., Any]] | None:
        """Return the function that Python's messages call ``qualname``, preceded by its name in ours; or None."""
        return self._all().get(qualname)

    def label_of(self, code: CodeType) -> str:
        """Return the name of the function with this code in messages; any other function has its own name."""
        labels = [label for label, function in self._all().values() if function.__code__ is code]
        return labels[0] if labels else code.co_name

    def _all(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        if not self._found:
            for called, (names, namespace) in self._modules.items():
                for name in names:
                    self._add(called, name, namespace[name])
        return self._found

    def _add(self, called: str, name: str, item: Any) -> None:
        if inspect.isfunction(item) and not hasattr(item, "__wrapped__"):
            self._found.setdefault(item.__qualname__, (f"{called}.{name}", item))
        elif inspect.isclass(item) and not issubclass(item, Enum):
            for attribute in dir(item):
                method = getattr(item, attribute)
                if inspect.isfunction(method):
                    self._found.setdefault(method.__qualname__, (f"{item.__name__}.{attribute}", method))


PUBLIC_NAMES = PublicNames()


# How Python begins its message about a call that does not fit a signature.
_PYTHONS_MESSAGE = re.compile(r"([\w.]+)\(\) (missing|takes|got) ")


def wrong_call_in(frame: FrameType, error: Exception) -> ArgumentTypeError | None:
    """Return the error for a call of a public function whose arguments Python itself refused, or None for other errors.

    Args:
        frame: the frame that made the call.
        error: the exception of Python.
    """
    match = _PYTHONS_MESSAGE.match(str(error)) if isinstance(error, TypeError) else None
    known = None if match is None else PUBLIC_NAMES.find(match[1])
    if match is None or known is None:
        return None
    label, function = known
    called = frame.f_locals.get(match[1], frame.f_globals.get(match[1], function))
    if inspect.isfunction(called) and called is not function:  # a function of the user that has the same name
        return None
    message = str(error)[match.end(1) + 3 :]
    _, _, keyword = message.partition("got an unexpected keyword argument ")
    suggestion = keyword_suggestions(inspect.signature(function), (), {keyword.split("'")[1]: None}) if keyword else ""
    return ArgumentTypeError(f"{label}: {suggestion or message}")
