"""Functions of other packages replaced by ours while they run, and what puts them back."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Replacement:
    """One name that is replaced.

    Attributes:
        owner: the module or class that has the name.
        name: of the attribute.
        theirs: what the owner has.
        ours: what it gets.
    """

    owner: Any
    name: str
    theirs: Any
    ours: Any


class Undo:
    """Puts back what was replaced when it is called, or when a ``with`` block of it ends.

    A second call does nothing. A name that something else has replaced by then stays as it is. Gradients of results
    from before the undo are computed as if it had not happened.
    """

    def __init__(self, package: str, replacements: tuple[Replacement, ...]) -> None:
        self._package = package
        self._replacements = replacements

    def __call__(self) -> None:
        replacements, self._replacements = self._replacements, ()
        for each in replacements:
            if isinstance(each.owner, ModuleType):
                _replace_in_modules(self._package, each.ours, each.theirs)
            elif vars(each.owner).get(each.name) is each.ours:
                setattr(each.owner, each.name, each.theirs)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def replace(package: str, replacements: tuple[Replacement, ...]) -> Undo:
    """Replace functions of a package, also where its modules have imported them by name.

    Args:
        package: the root package. Of a module's function every module of it that has been imported is searched.
        replacements: the functions.
    """
    for each in replacements:
        if isinstance(each.owner, ModuleType):
            _replace_in_modules(package, each.theirs, each.ours)
        else:
            setattr(each.owner, each.name, each.ours)
    return Undo(package, replacements)


def _replace_in_modules(package: str, old: object, new: object) -> None:
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            namespace = getattr(module, "__dict__", {})
            for attribute in [key for key, value in namespace.items() if value is old]:
                setattr(module, attribute, new)


@dataclass(frozen=True)
class Release:
    """The release of a package whose functions ours stand in for.

    Attributes:
        caller: who asks, for messages.
        package: the name under which it is imported.
        version: the release that was read.
    """

    caller: str
    package: str
    version: str

    def check(self, found: str, signatures: Mapping[str, tuple[Callable[..., Any], str]]) -> None:
        """Refuse functions with other arguments than those that were read.

        Args:
            found: the version that is installed. Another one than was read is accepted with a warning if the arguments
                are the same.
            signatures: by the full name of a function, the function and its arguments, as :func:`arguments_of` has
                them.

        Raises:
            RuntimeError: arguments differ; it says which.
        """
        differing = {
            name: f"{name} must be called with {expected}, got {arguments_of(function)}"
            for name, (function, expected) in signatures.items()
            if arguments_of(function) != expected
        }
        if differing:
            raise RuntimeError(
                f"{self.caller}: {'; '.join(differing.values())}; it knows {self.package} {self.version} and there is "
                f"{found}; install {self.package}=={self.version}, or call nkilib.torch.linear_token_scores yourself"
            )
        if found.split(".")[:2] != self.version.split(".")[:2]:
            warnings.warn(
                f"{self.caller}: knows {self.package} {self.version}, got {found}; the arguments of what it replaces "
                f"are the same, what is around them was not read",
                stacklevel=3,
            )


def arguments_of(function: Callable[..., Any]) -> str:
    """The arguments of a function with their defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
