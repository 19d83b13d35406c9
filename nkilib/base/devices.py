# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The Neuron devices of this machine that the driver shows. This module imports nothing of this library."""

from __future__ import annotations

import glob


def visible(root: str = "/") -> list[str]:
    """Return the devices that can be opened, ``/dev/neuron0`` and on; ``root`` is for tests."""
    return sorted(glob.glob(f"{root}dev/neuron[0-9]*"))
