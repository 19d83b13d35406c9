# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launching a kernel on numpy arrays, on a device and on the simulator alike.

``nki.jit`` of NKI 0.7 takes numpy arrays and compiles and runs the kernel without a framework (its docstring in SDK
2.33.1, ``_modules/nki``). Whether it writes an array that the kernel writes is one of the probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nkilib.base import lnc
from nkilib.verify.observation import Observation


def on_cores(kernel: Any, cores: int) -> Any:
    """The kernel to be called: without brackets where ``NEURON_LOGICAL_NC_CONFIG`` says the number of cores."""
    said = lnc.of_variable()
    return kernel if said is not None and said.cores == cores else kernel[cores]


def observed(kernel: Any, arguments: Mapping[str, Any], cores: int, names: Sequence[str]) -> Observation:
    """Launch a kernel on copies of its arrays.

    Args:
        kernel: from ``nki.jit``.
        arguments: by name.
        cores: of the launch.
        names: of what it returns, in order.

    Returns:
        What it returned by these names, and each array that it was given as ``argument <name>``; or the error.
    """
    given = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    try:
        returned = on_cores(kernel, cores)(**given)
        results = returned if isinstance(returned, tuple | list) else (returned,)
        arrays = {name: np.array(result) for name, result in zip(names, results, strict=True)}
    except Exception as error:  # of the simulator, of NKI, of its compiler or of the runtime
        return Observation(error=f"{type(error).__name__}: {error}")
    left = {argument_name(name): value for name, value in given.items() if isinstance(value, np.ndarray)}
    return Observation({**arrays, **left})


def argument_name(name: str) -> str:
    """What an observation calls the array that was given as ``name``."""
    return f"argument {name}"
