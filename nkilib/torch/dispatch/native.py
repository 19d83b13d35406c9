# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Who registers operators for the native device of torch-neuronx: its own ``nki_op``, or ``torch.library`` alone.

Decided once, when this is imported, from the environment variable ``NKILIB_TORCH_OPS``:

- ``auto``, which unset and empty also mean: ``nki_op`` where the native torch-neuronx is loaded and kernels run on the
  real NKI. Where it is missing there, or refuses an operator, ``torch.library`` serves, with one warning;
- ``nki_op``: it, or an error;
- ``library``: ``torch.library``, whatever there is.

An operator of ``nki_op`` is ``torch.ops.nkilib_neuron.<name>``, beside ``torch.ops.nkilib.<name>``, which serves every
other device. Both are from the same description.
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
    """There is no ``nki_op``; the message is a clause that says how one knows."""


@dataclass
class Registrar:
    """How operators are registered for the native device.

    Attributes:
        nki_op: of torch-neuronx; None: ``torch.library`` serves the device.
        reason: a clause for people to read, without a full stop.
        must: an error is raised where ``nki_op`` refuses.
        definitions: what it made, by the name without a namespace; a registration lasts as long as these objects.
    """

    nki_op: Callable[..., Any] | None
    reason: str
    must: bool = False
    definitions: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``"nki_op"`` or ``"library"``."""
        return "library" if self.nki_op is None else "nki_op"

    def serves(self, device: torch.device, name: str) -> bool:
        """Whether an operator of ``nki_op`` is there for tensors on a device."""
        return device.type == NATIVE_DEVICE and name in self.definitions

    def give_up(self, what: str, error: Exception) -> None:
        """Leave everything to ``torch.library``, and warn.

        Raises:
            RuntimeError: ``NKILIB_TORCH_OPS=nki_op`` asks for ``nki_op``.
        """
        reason = f"nki_op of torch-neuronx refused {what}: {type(error).__name__}: {error}"
        if self.must:
            raise RuntimeError(f"nkilib.torch: {reason}. Set {VARIABLE}=library for torch.library") from error
        self.nki_op, self.reason = None, reason
        self.definitions.clear()
        warn_of_library(reason)


def warn_of_library(reason: str) -> None:
    """Say that ``torch.library`` serves a native device; ``python -m nkilib doctor`` says the same."""
    warnings.warn(
        f"nkilib.torch: {reason}. Its operators on the device neuron are those of torch.library, which torch.compile "
        f"may not take there; {VARIABLE}=library chooses them without this warning",
        RuntimeWarning,
        stacklevel=2,
    )


def chosen_registrar(requested: str, simulated: bool = SIMULATED) -> Registrar:
    """The registrar that a value of ``NKILIB_TORCH_OPS`` leads to.

    Args:
        requested: the value.
        simulated: kernels run on the simulator, which takes no tensor of a Neuron device.

    Raises:
        ValueError: it is none of the allowed ones.
        ImportError: ``nki_op`` is asked for and absent.
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
                f"docs/installing.md), or set {VARIABLE}=library"
            ) from absent
        warn_of_library(str(absent))
        return Registrar(None, str(absent))
    reason = f"{VARIABLE}=nki_op" if requested == "nki_op" else "the native torch-neuronx is loaded"
    return Registrar(nki_op, reason, must=requested == "nki_op")


def _nki_op() -> Callable[..., Any]:
    """The decorator of torch-neuronx.

    Raises:
        _NoNkiOpError: it cannot be imported, or has none.
    """
    try:
        found: Callable[..., Any] | None = getattr(import_module("torch_neuronx"), "nki_op", None)
    except Exception as error:  # whatever an import of a broken or wrong package raises
        raise _NoNkiOpError(f"torch_neuronx cannot be imported: {type(error).__name__}: {error}") from error
    if found is None:
        raise _NoNkiOpError("the installed torch_neuronx has no nki_op")
    return found


registrar: Final = chosen_registrar(os.environ.get(VARIABLE) or "auto")
