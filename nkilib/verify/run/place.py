# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The place where the steps are launched: on a Neuron device, or on the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from nkilib.base import devices

CHOICES: Final = ("auto", "device", "simulator")


class CannotRunError(Exception):
    """Error if nothing can be launched; the message says why and what to do."""


@dataclass(frozen=True)
class Place:
    """The place where the steps are launched.

    Attributes:
        is_device: whether it is a Neuron device; else it is the simulator.
        reason: a clause for people to read.
    """

    is_device: bool
    reason: str

    @property
    def name(self) -> str:
        """``"device"`` or ``"simulator"``."""
        return "device" if self.is_device else "simulator"

    @property
    def first_line(self) -> str:
        """The first line of the report."""
        if self.is_device:
            return f"nkilib verify on a Neuron device: {self.reason}"
        return (
            f"nkilib verify ON THE SIMULATOR ({self.reason}): a self-check. It says nothing of hardware; times are "
            "modelled, not measured"
        )


def chosen_place(requested: str, visible: Sequence[str] | None = None) -> Place:
    """Return the place to launch.

    Args:
        requested: one of ``CHOICES``.
        visible: the devices; None: the devices of this machine.

    Raises:
        CannotRunError: if a device is requested or present, and kernels would not run on it.
    """
    device_files = devices.visible() if visible is None else visible
    try:
        backend = import_module("nkilib.nki").backend
    except (ImportError, ValueError) as error:
        if requested == "simulator":
            return Place(False, "as asked for")
        raise CannotRunError(f"{error} python -m nkilib doctor says what is installed") from error
    here = ", ".join(device_files) or "no Neuron device is visible (/dev/neuron*)"
    if requested == "simulator":
        return Place(False, "as asked for")
    if backend.name == "neuron":
        if device_files or requested == "device":
            return Place(True, f"{here if device_files else 'as asked for, though ' + here}; {backend.reason}")
        return Place(False, f"{here}, though {backend.reason}")
    if requested == "device" or (device_files and not backend.reason.startswith("NKILIB_BACKEND")):
        raise CannotRunError(
            f"kernels would not run on a device ({here}), because {backend.reason}. Install the Neuron SDK "
            "(docs/how_to/install.md), or ask for the simulator with --on simulator"
        )
    return Place(False, f"{here}; {backend.reason}")
