# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of a kernel on arrays of JAX, traced or not: directly on a Neuron device, or on the CPU by the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from nkilib.base.lnc import library_launch
from nkilib.core.host.options import values_of
from nkilib.jax.dispatch.host_call import Result, host_call
from nkilib.nki import SIMULATED
from nkilib.simulator.hardware.options import Options, current_options, using


def simulator_options() -> Options | None:
    """Return the options of the simulator that are set in this thread; None on the real NKI.

    Programs are compiled for these options, because they run in threads that do not know the options of the calling
    thread.
    """
    return current_options() if SIMULATED else None


@dataclass(frozen=True)
class Kernel:
    """A kernel, and its name in messages.

    Attributes:
        name: the name for messages.
        function: the kernel, from ``nki.jit``.
    """

    name: str
    function: Any

    def launch(self, **arguments: Any) -> tuple[Any, ...]:
        """Launch the kernel on the number of cores that :mod:`nkilib.base.lnc` gives, and return its results."""
        returned = library_launch(self.name, self.function)(**arguments)
        return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def launch(
    kernel: Kernel,
    arrays: Mapping[str, jax.Array | None],
    constants: Mapping[str, Any],
    results: Mapping[str, Result],
    options: Options | None,
) -> dict[str, jax.Array]:
    """Launch a kernel and return its results by name.

    Args:
        kernel: a kernel that does not look at values, nor write to its inputs.
        arrays: the kernel arguments that are arrays, by name; None for the default.
        constants: the other kernel arguments by name, which are compiled into the program.
        results: the shapes and types of the results, in order, under names of the caller's choice.
        options: the result of :func:`simulator_options`.
    """
    present = {name: array for name, array in arrays.items() if array is not None}
    if options is None:
        returned: Sequence[jax.Array] = kernel.launch(**present, **constants)
    else:
        simulation = Simulation(kernel, tuple(present), tuple(constants.items()), options)
        returned = host_call(simulation, list(results.values()), *present.values())
    return dict(zip(results, returned, strict=True))


@dataclass(frozen=True)
class Simulation:
    """A launch on the simulator as a function of numpy arrays alone. Two that do the same are equal, so JAX can reuse a
    compiled program.

    Attributes:
        kernel: the kernel that is launched.
        names: the names of its array arguments, in the order in which they are passed.
        constants: the other arguments.
        options: the options of the simulator.
    """

    kernel: Kernel
    names: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    options: Options

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with using(**values_of(self.options)):
            return self.kernel.launch(**dict(zip(self.names, arrays, strict=True)), **dict(self.constants))
