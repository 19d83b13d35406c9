# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The registration of operators for the native device of torch-neuronx, by its own ``nki_op`` or by ``torch.library``
alone.

It is decided once, when this module is imported, from the environment variable ``NKILIB_TORCH_OPS``:

- ``auto``, the default (also for an empty value): ``nki_op`` where the native torch-neuronx is loaded and kernels run
  on the real NKI. Where ``nki_op`` is missing there, or rejects an operator, ``torch.library`` is used, with one
  warning;
- ``nki_op``: ``nki_op``, or an error;
- ``library``: always ``torch.library``.

An operator of ``nki_op`` is ``torch.ops.nkilib_neuron.<name>``, beside ``torch.ops.nkilib.<name>``, which serves every
other device. Both are made from the same description.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import torch

from nkilib.nki import SIMULATED

VARIABLE: Final = "NKILIB_TORCH_OPS"
_ALLOWED: Final = ("auto", "nki_op", "library")
NATIVE_NAMESPACE: Final = "nkilib_neuron"
NATIVE_DEVICE: Final = "neuron"


class _NoNkiOpError(Exception):
    """Raised if there is no ``nki_op``; the message is a clause that says what is missing."""


@dataclass
class Registrar:
    """The way in which operators are registered for the native device.

    Attributes:
        nki_op: the decorator of torch-neuronx; None: ``torch.library`` serves the device.
        reason: the reason for this choice, a clause for messages without a full stop.
        must: whether an error is raised if ``nki_op`` rejects an operator.
        definitions: the definitions that ``nki_op`` made, by the name without a namespace; a registration lasts as long
            as these objects.
    """

    nki_op: Callable[..., Any] | None
    reason: str
    must: bool = False
    definitions: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the registrar, ``"nki_op"`` or ``"library"``."""
        return "library" if self.nki_op is None else "nki_op"

    def serves(self, device: torch.device, name: str) -> bool:
        """Return whether ``nki_op`` has registered an operator for tensors on a device."""
        return device.type == NATIVE_DEVICE and name in self.definitions

    def give_up(self, rejected: str, error: Exception) -> None:
        """Switch to ``torch.library`` for everything, and warn.

        Raises:
            RuntimeError: ``NKILIB_TORCH_OPS=nki_op`` requires ``nki_op``.
        """
        reason = f"nki_op of torch-neuronx refused {rejected}: {type(error).__name__}: {error}"
        if self.must:
            raise RuntimeError(f"nkilib.torch: {reason}. Set {VARIABLE}=library for torch.library") from error
        self.nki_op, self.reason = None, reason
        self.definitions.clear()
        warn_of_library(reason)


def warn_of_library(reason: str) -> None:
    """Warn that ``torch.library`` serves a native device; ``python -m nkilib doctor`` reports the same."""
    warnings.warn(
        f"nkilib.torch: {reason}. Its operators on the device neuron are those of torch.library, which torch.compile "
        f"may not take there; {VARIABLE}=library chooses them without this warning",
        RuntimeWarning,
        stacklevel=2,
    )


def chosen_registrar(requested: str, simulated: bool = SIMULATED) -> Registrar:
    """Return the registrar for a value of ``NKILIB_TORCH_OPS``.

    Args:
        requested: the value of the variable.
        simulated: whether kernels run on the simulator, which takes no tensor of a Neuron device.

    Raises:
        ValueError: the value is not allowed.
        ImportError: ``nki_op`` is requested but not available.
    """
    if requested not in _ALLOWED:
        raise ValueError(
            f"nkilib.torch: {VARIABLE} must be one of {', '.join(_ALLOWED)}; got {requested!r}; unset it for auto"
        )
    if requested == "library":
        return Registrar(None, f"{VARIABLE}=library")
    if requested == "auto":
        if simulated:
            return Registrar(None, "the kernels run on the simulator here")
        if not hasattr(torch, NATIVE_DEVICE):  # torch-neuronx on PyTorch/XLA has none
            return Registrar(None, "no native torch-neuronx is loaded: there is no torch.neuron")
    try:
        nki_op = _nki_op()
    except _NoNkiOpError as absent:
        if requested == "nki_op":
            raise ImportError(
                f"nkilib.torch: {VARIABLE}=nki_op requires the native torch-neuronx, but {absent}. Install it (see "
                f"docs/how_to/install.md), or set {VARIABLE}=library"
            ) from absent
        warn_of_library(str(absent))
        return Registrar(None, str(absent))
    reason = f"{VARIABLE}=nki_op" if requested == "nki_op" else "the native torch-neuronx is loaded"
    return Registrar(nki_op, reason, must=requested == "nki_op")


def _nki_op() -> Callable[..., Any]:
    """Return the ``nki_op`` decorator of torch-neuronx.

    Raises:
        _NoNkiOpError: torch-neuronx cannot be imported, or has no ``nki_op``.
    """
    try:
        decorator: Callable[..., Any] | None = getattr(import_module("torch_neuronx"), "nki_op", None)
    except Exception as error:  # whatever an import of a broken or wrong package raises
        raise _NoNkiOpError(f"torch_neuronx cannot be imported: {type(error).__name__}: {error}") from error
    if decorator is None:
        raise _NoNkiOpError("the installed torch_neuronx has no nki_op")
    return decorator


registrar: Final = chosen_registrar(os.environ.get(VARIABLE) or "auto")
