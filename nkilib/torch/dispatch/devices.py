# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Which devices the operators run on; :mod:`nkilib.base.lnc` says on how many cores."""

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
    """The error for tensors on ``device``, to be raised; ``instead`` is what to use there."""
    return NotImplementedError(
        f"{caller}: tensors must be on cpu (simulated), {NATIVE_DEVICE} (the native device of torch-neuronx) or xla "
        f"(the older torch-neuronx), got {device.type}; move them with .to(), or use {instead} there"
    )


def check_device(caller: object, device: torch.device, instead: str) -> None:
    """Refuse a device that no operator has an implementation for.

    Raises:
        NotImplementedError: the device is another one.
    """
    if device.type not in _SUPPORTED:
        raise unsupported_device(caller, device, instead)


def check_simulator(caller: str, device: torch.device, instead: str) -> None:
    """Refuse CPU tensors where kernels run on the real NKI.

    Raises:
        NotImplementedError: nkilib chose the real NKI when it was imported.
    """
    if not SIMULATED:
        raise NotImplementedError(
            f"{caller}: CPU tensors need the simulator, and nkilib runs on the real NKI here; move them to the Neuron "
            f"device, or set NKILIB_BACKEND=simulator"
        )


def check_neuron(caller: str, device: torch.device, instead: str) -> None:
    """Refuse tensors on a device where the kernels cannot be launched.

    Raises:
        NotImplementedError: the device is no Neuron device, or the real NKI is not there.
    """
    check_device(caller, device, instead)
    if SIMULATED:
        raise NotImplementedError(
            f"{caller}: tensors on {device.type} need the real NKI, and nkilib runs on its simulator here; install the "
            f"Neuron SDK, or move the tensors to the CPU"
        )


def check_native(caller: str, device: torch.device, elsewhere: str) -> None:
    """Refuse tensors on any but the native device; ``elsewhere`` is the namespace of the operators for the others.

    Raises:
        NotImplementedError: another device.
    """
    if device.type != NATIVE_DEVICE:
        raise NotImplementedError(
            f"{caller}: tensors must be on {NATIVE_DEVICE}, got {device.type}; call torch.ops.{elsewhere} with them"
        )


@dataclass(frozen=True)
class Place:
    """A kind of device that has an implementation.

    Attributes:
        check: refuses one where kernels cannot be launched: who is named, the device, and what to use there.
        may_look: whether values may be looked at, so that those out of range are refused.
        declares_writes: where a graph is traced, the framework knows what memory a kernel writes over.
    """

    check: Callable[[str, torch.device, str], None]
    may_look: bool
    declares_writes: bool = False


CPU: Final = Place(check_simulator, may_look=True)
NEURON: Final = Place(check_neuron, may_look=False)
# The same device, by an operator of nki_op.
NATIVE: Final = Place(check_neuron, may_look=False, declares_writes=True)
