# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The devices on which the operators run; :mod:`nkilib.base.lnc` defines the number of cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from nkilib.nki import SIMULATED
from nkilib.torch.dispatch.native import NATIVE_DEVICE

# `meta` stands for tensors without data: shapes and types are computed, nothing runs.
_SUPPORTED: Final = ("cpu", NATIVE_DEVICE, "xla", "meta")


def unsupported_device(caller: object, device: torch.device, instead: str) -> NotImplementedError:
    """Return the error for tensors on ``device``; ``instead`` is the recommended replacement there."""
    return NotImplementedError(
        f"{caller}: tensors must be on cpu (simulated), {NATIVE_DEVICE} (the native device of torch-neuronx) or xla "
        f"(the older torch-neuronx), got {device.type}; move them with .to(), or use {instead} there"
    )


def check_device(caller: object, device: torch.device, instead: str) -> None:
    """Reject a device for which no operator has an implementation.

    Raises:
        NotImplementedError: the device is not supported.
    """
    if device.type not in _SUPPORTED:
        raise unsupported_device(caller, device, instead)


def check_simulator(caller: str, device: torch.device, instead: str) -> None:
    """Reject CPU tensors where kernels run on the real NKI.

    Raises:
        NotImplementedError: nkilib chose the real NKI when it was imported.
    """
    if not SIMULATED:
        raise NotImplementedError(
            f"{caller}: CPU tensors need the simulator, and nkilib runs on the real NKI here; move them to the Neuron "
            f"device, or set NKILIB_BACKEND=simulator"
        )


def check_neuron(caller: str, device: torch.device, instead: str) -> None:
    """Reject tensors on a device where the kernels cannot be launched.

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
    """Reject tensors on any device but the native one; ``elsewhere`` is the operator namespace for other devices.

    Raises:
        NotImplementedError: another device.
    """
    if device.type != NATIVE_DEVICE:
        raise NotImplementedError(
            f"{caller}: tensors must be on {NATIVE_DEVICE}, got {device.type}; call torch.ops.{elsewhere} with them"
        )


@dataclass(frozen=True)
class Place:
    """A kind of device for which operators have an implementation.

    Attributes:
        check: a function that rejects a device on which kernels cannot be launched; it takes the caller's name, the
            device, and the recommended replacement.
        may_read_values: whether values may be read, so that values out of range can be rejected.
        declares_writes: whether the framework knows, in a traced graph, which memory a kernel writes over.
    """

    check: Callable[[str, torch.device, str], None]
    may_read_values: bool
    declares_writes: bool = False


CPU: Final = Place(check_simulator, may_read_values=True)
NEURON: Final = Place(check_neuron, may_read_values=False)
# The same device, by an operator of nki_op.
NATIVE: Final = Place(check_neuron, may_read_values=False, declares_writes=True)
