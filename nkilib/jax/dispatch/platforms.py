# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The platforms that kernels run on: Neuron devices with the real NKI, the CPU with the simulator."""

from __future__ import annotations

from typing import Any, Final

import jax

from nkilib.nki import SIMULATED

# The platform name of libneuronxla's devices.
NEURON: Final = "neuron"
CPU: Final = "cpu"


def check_platforms(caller: str, arrays: dict[str, Any]) -> None:
    """Check that the kernels can be launched where the arrays are.

    The platform of a traced array is unknown; JAX or NKI then raises an error when the program is compiled.

    Raises:
        NotImplementedError: an array is on another platform than the kernels, or the real NKI has no Neuron device.
    """
    for name, array in arrays.items():
        if is_known(array):
            for platform in sorted({device.platform for device in array.devices()}):
                _check_platform(caller, name, platform)
    # NKI looks at the default backend, whatever the arrays are on.
    if not SIMULATED and jax.default_backend() != NEURON:
        raise NotImplementedError(
            f"{caller}: nkilib runs on the real NKI here, which needs {NEURON} as JAX's default backend, got "
            f"{jax.default_backend()}; install libneuronxla, or set NKILIB_BACKEND=simulator"
        )


def is_known(array: Any) -> bool:
    """Tell whether an array is a JAX array with values, not one that is being traced."""
    return isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)


def _check_platform(caller: str, name: str, platform: str) -> None:
    if SIMULATED and platform != CPU:
        raise NotImplementedError(
            f"{caller}: {name} must be on the CPU, where nkilib's simulator runs, got a {platform} device; move it "
            f"with jax.device_put, or set JAX_PLATFORMS=cpu"
        )
    if not SIMULATED and platform != NEURON:
        raise NotImplementedError(
            f"{caller}: {name} must be on a {NEURON} device, since nkilib runs on the real NKI here, got a {platform} "
            f"device; move it with jax.device_put, or set NKILIB_BACKEND=simulator"
        )
