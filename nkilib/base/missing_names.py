# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The error for a name that a public module does not have: :func:`missing_name` suggests the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NoReturn


def missing_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for ``module.name``. It names the nearest one of ``names``, if one is similar.

    Python adds a suggestion of its own only where a traceback is printed, and only if the error has a name and an
    object. An error that names the nearest name has neither, so that there are not two suggestions.
    """
    text = f"module {module!r} has no attribute {name!r}"
    nearest = [] if name.startswith("_") else get_close_matches(name, names, 1)
    return (
        AttributeError(f"{text}; did you mean {nearest[0]!r}?", name=None, obj=None)
        if nearest
        else AttributeError(text)
    )


def refusing(module: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a module that already has all its public names: it raises :func:`missing_name`.

    Args:
        module: ``__name__`` of the module.
        names: its ``__all__``.
    """

    def get(name: str) -> NoReturn:
        raise missing_name(module, name, names)

    return get
