# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launching a kernel on arrays of JAX, traced or not: as it is on a Neuron device, through the simulator on the CPU."""

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
    """The options of the simulator in force in this thread; None on the real NKI.

    Programs are compiled for them: they run in threads that know nothing of those of the thread that calls.
    """
    return current_options() if SIMULATED else None


@dataclass(frozen=True)
class Kernel:
    """A kernel, and how it is named in messages.

    Attributes:
        name: of it.
        function: from ``nki.jit``.
    """

    name: str
    function: Any

    def launch(self, **arguments: Any) -> tuple[Any, ...]:
        """What it returns, on the cores that the environment gives; :mod:`nkilib.base.lnc`."""
        returned = library_launch(self.name, self.function)(**arguments)
        return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def launch(
    kernel: Kernel,
    arrays: Mapping[str, jax.Array | None],
    constants: Mapping[str, Any],
    results: Mapping[str, Result],
    options: Options | None,
) -> dict[str, jax.Array]:
    """The results of a launch by name.

    Args:
        kernel: it may not look at values, nor write to what it is given.
        arrays: its arguments that are arrays; None for its default.
        constants: its other arguments, which are compiled into the program.
        results: what it returns, in order, under names of the caller's choice.
        options: from :func:`simulator_options`.
    """
    given = {name: array for name, array in arrays.items() if array is not None}
    if options is None:
        returned: Sequence[jax.Array] = kernel.launch(**given, **constants)
    else:
        simulation = Simulation(kernel, tuple(given), tuple(constants.items()), options)
        returned = host_call(simulation, list(results.values()), *given.values())
    return dict(zip(results, returned, strict=True))


@dataclass(frozen=True)
class Simulation:
    """A launch on the simulator, as a function of numpy arrays alone, equal to others that do the same.

    Attributes:
        kernel: that is launched.
        names: of its arguments that are arrays, in the order in which they come.
        constants: its other arguments.
        options: of the simulator.
    """

    kernel: Kernel
    names: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    options: Options

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with using(**values_of(self.options)):
            return self.kernel.launch(**dict(zip(self.names, arrays, strict=True)), **dict(self.constants))
