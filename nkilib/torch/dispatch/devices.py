# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The devices on which the operators run, and the registration of operators for the native device.

- :class:`OperatorDevice`: a kind of device; :data:`CPU`, :data:`NEURON` and :data:`NATIVE` are all kinds;
- :func:`check_device`, :func:`check_simulator`, :func:`check_neuron`, :func:`check_native`: errors for tensors on
  other devices;
- :class:`Registrar`: the way in which operators are registered for the native device; :data:`registrar` is the one in
  use, which :func:`chosen_registrar` returned.

The *native device* is that of torch-neuronx for the device type ``neuron``. Operators are registered for it by its own
decorator ``nki_op``, as ``torch.ops.nkilib_neuron.<name>``, or by ``torch.library``, whose
``torch.ops.nkilib.<name>`` serves all other devices too. The environment variable ``NKILIB_TORCH_OPS`` decides, once,
when this module is imported:

- ``auto``, the default (also for an empty value): ``nki_op`` if the native torch-neuronx is loaded and kernels run
  on the real NKI. If ``nki_op`` is missing then, or rejects an operator, ``torch.library`` is used, with one warning;
- ``nki_op``: ``nki_op``, or an error;
- ``library``: always ``torch.library``.

:mod:`nkilib.base.lnc` defines the number of cores.
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


def warn_of_library(reason: str) -> None:
    """Warn that ``torch.library`` serves the native device, for the given reason. ``python -m nkilib doctor``
    reports it too.
    """
    warnings.warn(
        f"nkilib.torch: {reason}. Its operators on the device neuron are those of torch.library, which torch.compile "
        f"may not take there; {VARIABLE}=library chooses them without this warning",
        RuntimeWarning,
        stacklevel=2,
    )


@dataclass
class Registrar:
    """The way in which operators are registered for the native device.

    Attributes:
        nki_op: the decorator of torch-neuronx; None if ``torch.library`` serves the device.
        reason: the reason for this choice, as a clause for messages; it has no full stop.
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
        """Return whether ``device`` is the native one, and ``nki_op`` has registered the operator ``name``."""
        return device.type == NATIVE_DEVICE and name in self.definitions

    def give_up(self, rejected: str, error: Exception) -> None:
        """Use ``torch.library`` for all operators from now on, because ``nki_op`` rejected one, and warn.

        Args:
            rejected: the name of the operator that ``nki_op`` rejected.
            error: the error that ``nki_op`` raised.

        Raises:
            RuntimeError: ``NKILIB_TORCH_OPS=nki_op`` requires ``nki_op``.
        """
        reason = f"nki_op of torch-neuronx refused {rejected}: {type(error).__name__}: {error}"
        if self.must:
            raise RuntimeError(f"nkilib.torch: {reason}. Set {VARIABLE}=library for torch.library") from error
        self.nki_op, self.reason = None, reason
        self.definitions.clear()
        warn_of_library(reason)


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
                f"docs/how_to/install_beside_the_sdk.md), or set {VARIABLE}=library"
            ) from absent
        warn_of_library(str(absent))
        return Registrar(None, str(absent))
    reason = f"{VARIABLE}=nki_op" if requested == "nki_op" else "the native torch-neuronx is loaded"
    return Registrar(nki_op, reason, must=requested == "nki_op")


registrar: Final = chosen_registrar(os.environ.get(VARIABLE) or "auto")

# `meta` stands for tensors without data: shapes and types are computed, nothing runs.
SUPPORTED_DEVICES: Final = ("cpu", NATIVE_DEVICE, "xla", "meta")


def unsupported_device(caller: object, device: torch.device, instead: str) -> NotImplementedError:
    """Return the error for tensors on ``device``, where no kernel runs. Its message recommends the function
    ``instead``.
    """
    return NotImplementedError(
        f"{caller}: tensors must be on cpu (simulated), {NATIVE_DEVICE} (the native device of torch-neuronx) or xla "
        f"(the older torch-neuronx), got {device.type}; move them with .to(), or use {instead} there"
    )


def check_device(caller: object, device: torch.device, instead: str) -> None:
    """Check that operators have an implementation for a device. The message recommends the function ``instead``.

    Raises:
        NotImplementedError: the device is not supported.
    """
    if device.type not in SUPPORTED_DEVICES:
        raise unsupported_device(caller, device, instead)


def check_simulator(caller: str, device: torch.device, instead: str) -> None:
    """Check that kernels run on the simulator, which CPU tensors need. The message recommends the function ``instead``.

    Raises:
        NotImplementedError: nkilib chose the real NKI when it was imported.
    """
    if not SIMULATED:
        raise NotImplementedError(
            f"{caller}: CPU tensors need the simulator, and nkilib runs on the real NKI here; move them to the Neuron "
            f"device, or set NKILIB_BACKEND=simulator"
        )


def check_neuron(caller: str, device: torch.device, instead: str) -> None:
    """Check that kernels can be launched on a Neuron device. The message recommends the function ``instead``.

    Raises:
        NotImplementedError: the device is not a Neuron device, or the real NKI is not installed.
    """
    check_device(caller, device, instead)
    if SIMULATED:
        raise NotImplementedError(
            f"{caller}: tensors on {device.type} need the real NKI, and nkilib runs on its simulator here; install the "
            f"Neuron SDK, or move the tensors to the CPU"
        )


def check_native(caller: str, device: torch.device, elsewhere: str) -> None:
    """Check that tensors are on the native device. ``elsewhere`` is the operator namespace for other devices.

    Raises:
        NotImplementedError: the device is another one.
    """
    if device.type != NATIVE_DEVICE:
        raise NotImplementedError(
            f"{caller}: tensors must be on {NATIVE_DEVICE}, got {device.type}; call torch.ops.{elsewhere} with them"
        )


@dataclass(frozen=True)
class OperatorDevice:
    """A kind of device for which operators have an implementation.

    Attributes:
        check: a function that raises an error for a device on which kernels cannot be launched; its arguments are the
            caller's name, the device, and the recommended replacement.
        may_read_values: whether values may be read, so that values out of range can be rejected.
        declares_writes: whether the framework knows, in a traced graph, which memory a kernel writes over.
    """

    check: Callable[[str, torch.device, str], None]
    may_read_values: bool
    declares_writes: bool = False


CPU: Final = OperatorDevice(check_simulator, may_read_values=True)
NEURON: Final = OperatorDevice(check_neuron, may_read_values=False)
# The same device, by an operator of nki_op.
NATIVE: Final = OperatorDevice(check_neuron, may_read_values=False, declares_writes=True)
