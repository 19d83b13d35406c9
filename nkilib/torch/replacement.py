# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions of other packages replaced by ours while they run, and what puts them back."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from nkilib.torch.dispatch.native import NATIVE_DEVICE

# The native device of torch-neuronx, the older one, and the CPU, where kernels are simulated.
_DEVICES: Final = (NATIVE_DEVICE, "xla", "cpu")


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


def checked_devices(caller: str, devices: Any) -> frozenset[str]:
    """The types of devices whose tensors go to ours.

    Args:
        caller: who is named in errors.
        devices: an iterable of types, as in ``tensor.device.type``.

    Raises:
        TypeError: no iterable of strings, or a string itself.
        ValueError: none is named, or one on which no kernel runs.
    """
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        remedy = f"; pass ({devices!r},)" if isinstance(devices, str) else ""
        raise TypeError(f"{caller}: argument 'devices' must be an iterable of device types, not {devices!r}{remedy}")
    names = tuple(devices)
    if not names or not all(isinstance(each, str) for each in names):
        error = TypeError if names else ValueError
        raise error(f"{caller}: devices must name one or more of {', '.join(_DEVICES)}, got {names!r}")
    for name in names:
        if name not in _DEVICES:
            raise ValueError(
                f"{caller}: devices must be among {', '.join(_DEVICES)}, got {name!r}; leave it out: the function "
                f"that is replaced runs there"
            )
    return frozenset(names)
