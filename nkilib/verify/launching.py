# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of a kernel on numpy arrays, on a device and on the simulator alike.

``nki.jit`` of NKI 0.7 takes numpy arrays and compiles and runs the kernel without a framework (its docstring in SDK
2.33.1, ``_modules/nki``). Whether it updates an array that the kernel writes is one of the probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nkilib.base import lnc
from nkilib.verify.observation import Observation


def on_cores(kernel: Any, cores: int) -> Any:
    """Return the kernel to call: without brackets if ``NEURON_LOGICAL_NC_CONFIG`` states the number of cores."""
    setting = lnc.of_variable()
    return kernel if setting is not None and setting.cores == cores else kernel[cores]


def observed(kernel: Any, arguments: Mapping[str, Any], cores: int, names: Sequence[str]) -> Observation:
    """Launch a kernel on copies of its arrays.

    Args:
        kernel: a kernel from ``nki.jit``.
        arguments: the arguments by name.
        cores: the number of cores of the launch.
        names: the names of the returned tensors, in order.

    Returns:
        The returned arrays by these names, and each argument array as ``argument <name>``; or the error.
    """
    copies = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    try:
        returned = on_cores(kernel, cores)(**copies)
        results = returned if isinstance(returned, tuple | list) else (returned,)
        arrays = {name: np.array(result) for name, result in zip(names, results, strict=True)}
    except Exception as error:  # of the simulator, of NKI, of its compiler or of the runtime
        return Observation(error=f"{type(error).__name__}: {error}")
    left = {argument_name(name): value for name, value in copies.items() if isinstance(value, np.ndarray)}
    return Observation({**arrays, **left})


def argument_name(name: str) -> str:
    """Return the name, in an observation, of the array that was passed as ``name``."""
    return f"argument {name}"
