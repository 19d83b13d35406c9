# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The documented names of NKI 0.7, and signatures built from them.

The names of the simulator are checked against the same data: ``tests.simulator.api.documented``.
"""

from __future__ import annotations

import inspect
from typing import Any

from tests.simulator.api.documented import DOCUMENTED as API

__all__ = ["API", "bind", "signature"]


def signature(parameters: list[list[str]]) -> inspect.Signature:
    """The signature that the documentation gives; a default is its text."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made = []
    for name, *default in parameters:
        if name == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif name.startswith("**"):
            made.append(inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD))
        elif name.startswith("*"):
            made.append(inspect.Parameter(name[1:], inspect.Parameter.VAR_POSITIONAL))
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            made.append(inspect.Parameter(name, kind, default=default[0] if default else inspect.Parameter.empty))
    return inspect.Signature(made)


def bind(what: str, documented: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; TypeError for one that is not documented, as Python words it."""
    try:
        return dict(documented.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise TypeError(f"{what}() {error}") from None
