# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacement of other packages' functions by nkilib's at run time, which ``install`` of a trainer's module uses.

:func:`replace` replaces functions of a package (:class:`Replacement`), and :class:`Undo` restores them. Before that,
:class:`Release` checks that the installed package has the expected functions, :func:`checked_devices` checks the
argument of ``install``, and :func:`warn_without_effect` warns if no kernel would run.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from nkilib.nki import SIMULATED
from nkilib.torch.dispatch.devices import NATIVE_DEVICE

# The native device of torch-neuronx, the older one, and the CPU, where kernels are simulated.
_DEVICES: Final = (NATIVE_DEVICE, "xla", "cpu")


@dataclass(frozen=True)
class Replacement:
    """One attribute of another package, such as a function of a module, and nkilib's replacement for it.

    Attributes:
        owner: the module or class that has the attribute.
        name: the name of the attribute.
        theirs: the original value.
        ours: the replacement.
    """

    owner: Any
    name: str
    theirs: Any
    ours: Any


def _replace_in_modules(package: str, old: object, new: object) -> None:
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            namespace = getattr(module, "__dict__", {})
            for attribute in [key for key, value in namespace.items() if value is old]:
                setattr(module, attribute, new)


class Undo:
    """The reverse of a replacement: it restores the replaced functions when it is called, or at the end of a ``with``
    block.

    A second call does nothing. An attribute that something else has replaced in the meantime is left unchanged.
    Gradients of earlier results are still computed by nkilib.
    """

    def __init__(self, package: str, replacements: tuple[Replacement, ...]) -> None:
        self._package = package
        self._replacements = replacements

    def __call__(self) -> None:
        replacements, self._replacements = self._replacements, ()
        for replacement in replacements:
            if isinstance(replacement.owner, ModuleType):
                _replace_in_modules(self._package, replacement.ours, replacement.theirs)
            elif vars(replacement.owner).get(replacement.name) is replacement.ours:
                setattr(replacement.owner, replacement.name, replacement.theirs)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def replace(package: str, replacements: tuple[Replacement, ...]) -> Undo:
    """Replace functions of a package, also in modules that have imported them by name; return an object that undoes it.

    Args:
        package: the root package. For a function of a module, every imported module of the package is searched.
        replacements: the functions to replace.
    """
    for replacement in replacements:
        if isinstance(replacement.owner, ModuleType):
            _replace_in_modules(package, replacement.theirs, replacement.ours)
        else:
            setattr(replacement.owner, replacement.name, replacement.ours)
    return Undo(package, replacements)


def arguments_of(function: Callable[..., Any]) -> str:
    """Return the argument list of a function as text, with defaults and without annotations."""
    signature = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


@dataclass(frozen=True)
class Release:
    """The release of a package that nkilib's replacements were written for.

    Attributes:
        caller: the function that messages name.
        package: the import name of the package.
        version: the release.
    """

    caller: str
    package: str
    version: str

    def check(self, installed: str, signatures: Mapping[str, tuple[Callable[..., Any], str]]) -> None:
        """Check that the replaced functions have the arguments that they have in this release.

        Args:
            installed: the installed version. If its first two numbers differ from this release's, there is a warning.
            signatures: by the full name of each replaced function, the installed function and its arguments in this
                release, as :func:`arguments_of` returns them.

        Raises:
            RuntimeError: arguments differ; the message names them.
        """
        differing = {
            name: f"{name} must be called with {expected}, got {arguments_of(function)}"
            for name, (function, expected) in signatures.items()
            if arguments_of(function) != expected
        }
        if differing:
            raise RuntimeError(
                f"{self.caller}: {'; '.join(differing.values())}; it knows {self.package} {self.version} and there is "
                f"{installed}; install {self.package}=={self.version}, or call nkilib.torch.linear_token_scores "
                f"yourself"
            )
        if installed.split(".")[:2] != self.version.split(".")[:2]:
            warnings.warn(
                f"{self.caller}: knows {self.package} {self.version}, got {installed}; the arguments of the "
                f"replaced functions are the same, but the code around them was not read",
                stacklevel=3,
            )


def checked_devices(caller: str, devices: Any) -> frozenset[str]:
    """Return the device types whose tensors nkilib's functions handle.

    Args:
        caller: the function that error messages name.
        devices: an iterable of device types, as in ``tensor.device.type``.

    Raises:
        TypeError: not an iterable of strings, or itself a string.
        ValueError: no device, or a device on which no kernel runs.
    """
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        remedy = f"; pass ({devices!r},)" if isinstance(devices, str) else ""
        raise TypeError(f"{caller}: argument 'devices' must be an iterable of device types, not {devices!r}{remedy}")
    names = tuple(devices)
    if not names or not all(isinstance(tensor_name, str) for tensor_name in names):
        error = TypeError if names else ValueError
        raise error(f"{caller}: devices must name one or more of {', '.join(_DEVICES)}, got {names!r}")
    for name in names:
        if name not in _DEVICES:
            raise ValueError(
                f"{caller}: devices must be among {', '.join(_DEVICES)}, got {name!r}; leave it out: the function "
                f"that is replaced runs there"
            )
    return frozenset(names)


def warn_without_effect(caller: str, devices: frozenset[str]) -> None:
    """Warn the caller of ``install`` if no kernel can run on any of the devices.

    The simulator, which nkilib uses if the real NKI is not installed, takes tensors on the CPU only.
    """
    if SIMULATED and "cpu" not in devices:
        warnings.warn(
            f"{caller}: devices must include 'cpu' where nkilib runs on its simulator, as here, got "
            f"{', '.join(map(repr, sorted(devices)))}: no kernel will run, and tensors on the CPU stay with the "
            f"functions that it replaces; pass devices=('cpu',) for a test on the CPU, or install the Neuron SDK",
            stacklevel=3,
        )
