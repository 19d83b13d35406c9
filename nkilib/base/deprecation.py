# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Deprecation of public names and arguments: a deprecated name warns for two minor versions before it is removed.

:class:`Deprecation` holds the first version that warns and the version of the removal. :func:`deprecated` decorates a
function, :func:`deprecated_argument` warns of an argument, and :func:`moved_names` serves the old names of a module.
docs/reference/public_api.md has the rules.

The warning is a ``FutureWarning``, because Python hides a ``DeprecationWarning`` of any call outside the main script.
Training programs call losses in other modules, so their users would not see it. A permanent alias, such as
:mod:`nkilib.lnc`, does not warn.

Traced code cannot warn. To deprecate a kernel, use :func:`moved_names` in the public module that exports the kernel.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LEAST_VERSIONS: Final = 2
"""Minor versions from the first warning to the removal, at least."""


def _numbers(version: str) -> tuple[int, int]:
    major, dot, minor = version.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise ValueError(f"nkilib.base.deprecation: a version must be major.minor, such as '0.3'; got {version!r}")
    return int(major), int(minor)


@dataclass(frozen=True)
class Deprecation:
    """A deprecated name, the first version that warns, the version that removes the name, and the replacement.

    Attributes:
        what: the full public name, such as ``nkilib.torch.old``; for an argument, ``nkilib.torch.f(old=)``.
        since: the first version that warns, ``major.minor``.
        removed_in: the first version without the name, ``major.minor``.
        instead: the remedy, an imperative without a full stop: ``use nkilib.torch.new``.
    """

    what: str
    since: str
    removed_in: str
    instead: str

    def __post_init__(self) -> None:
        (major, minor), (end_major, end_minor) = _numbers(self.since), _numbers(self.removed_in)
        if end_major < major or (end_major == major and end_minor < minor + LEAST_VERSIONS):
            raise ValueError(
                f"nkilib.base.deprecation: {self.what} must stay for {LEAST_VERSIONS} minor versions or until the next "
                f"major one; got since={self.since!r}, removed_in={self.removed_in!r}"
            )

    def __str__(self) -> str:
        return (
            f"{self.what} is deprecated since nkilib {self.since} and will be removed in nkilib {self.removed_in}; "
            f"{self.instead}."
        )

    def warn(self, frames: int = 1) -> None:
        """Warn at the line that called the deprecated function.

        Args:
            frames: the number of calls between that line and this method; 1 if the deprecated function itself calls
                ``warn``.
        """
        warnings.warn(str(self), FutureWarning, stacklevel=frames + 2)


def deprecated(
    what: str, *, since: str, removed_in: str, instead: str
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator for a deprecated host function; every call of the function then warns at the line of the call.

    Args:
        what, since, removed_in, instead: see :class:`Deprecation`.
    """
    deprecation = Deprecation(what, since, removed_in, instead)

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def warning(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            deprecation.warn()
            return function(*args, **kwargs)

        return warning

    return decorate


def deprecated_argument(
    function: str, argument: str, *, since: str, removed_in: str, instead: str, frames: int = 1
) -> None:
    """Warn of a deprecated argument. A public function calls this function if its caller passed the argument.

    Args:
        function: the full public name of the function.
        argument: the name of the argument.
        since, removed_in, instead: see :class:`Deprecation`.
        frames: 1 if the public function itself makes this call; 1 more for every helper function in between.
    """
    Deprecation(f"{function}({argument}=)", since, removed_in, instead).warn(frames + 1)


def moved_names(module: str, moved: Mapping[str, str], *, since: str, removed_in: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module whose names have moved; an import of an old name warns at the line of the
    import.

    Example::

        __getattr__ = moved_names(__name__, {"old": "nkilib.torch.new"}, since="0.3", removed_in="0.5")

    Args:
        module: the module that had the names.
        moved: a mapping from old names to full new names.
        since, removed_in: see :class:`Deprecation`.
    """
    deprecations = {
        name: Deprecation(f"{module}.{name}", since, removed_in, f"use {new}") for name, new in moved.items()
    }

    def get(name: str) -> Any:
        if name not in deprecations:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        deprecations[name].warn()
        home, _, now = moved[name].rpartition(".")
        return getattr(import_module(home), now)

    return get
