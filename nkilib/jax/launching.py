# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of a kernel on arrays of JAX, traced or not: on a Neuron device, or on the simulator through a host
callback.

:func:`launch` launches a :class:`Kernel` on arrays. On the simulator, the launch is a :class:`Simulation` with the
thread's :func:`simulator_options`. Callers first check with :func:`check_platforms` that kernels can be launched where
the arrays are. :func:`host_call` calls any Python function with the values of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from nkilib.base.lnc import library_launch
from nkilib.core.host.options import values_of
from nkilib.nki import SIMULATED
from nkilib.simulator.hardware.options import Options, current_options, using

# The platform name of libneuronxla's devices.
NEURON: Final = "neuron"
CPU: Final = "cpu"


# ``jax.pure_callback`` calls a Python function on numpy arrays from a JAX program, and can hang: it passes large arrays
# by a copy that a thread of the client's pool has to make, and the callback waits for the copy in a thread of that
# pool. On one core a single callback is enough to hang, on two cores one callback on each of two devices
# (https://github.com/jax-ml/jax/issues/24255, seen with JAX 0.10.0 and 0.10.2). ``buffer_callback`` passes the memory
# itself, without a copy and without waiting. It is experimental, so ``pure_callback`` is used where it does not exist.
def _buffer_callback() -> Callable[..., Any] | None:
    try:
        module = import_module("jax.experimental.buffer_callback")
    except ImportError:
        return None
    return getattr(module, "buffer_callback", None)


BUFFER_CALLBACK: Final = _buffer_callback()

# A function from arrays to arrays. It must be hashable, and equal to others that do the same: JAX compiles each once.
Function = Callable[..., Sequence[np.ndarray]]


@dataclass(frozen=True)
class Result:
    """The shape and type of an array that a call will return.

    Attributes:
        shape: the shape of the array.
        dtype: the numpy type of the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class _OnArrays:
    """A function of numpy arrays in the form for ``jax.pure_callback``: it takes JAX arrays and returns the results."""

    function: Function

    def __call__(self, *operands: jax.Array) -> list[np.ndarray]:
        return list(self.function(*map(np.asarray, operands)))


@dataclass(frozen=True)
class _OnBuffers:
    """A function of numpy arrays in the form for ``buffer_callback``, which passes memory that receives the results."""

    function: Function

    def __call__(self, context: Any, results: Sequence[Any], *operands: Any) -> None:
        arrays = [np.asarray(operand) for operand in operands]
        for array in arrays:
            array.flags.writeable = False
        for result, returned in zip(results, self.function(*arrays), strict=True):
            np.asarray(result)[...] = returned


def _varying_as(operands: Sequence[jax.Array], result: jax.Array) -> jax.Array:
    """Return ``result`` with a type that varies, in ``jax.shard_map``, over the mesh axes of the operands.

    The results of callbacks lack this information, and the API that sets it changes from release to release.
    ``jnp.where`` between the result and itself, with a condition that varies over these axes, adds the information, and
    the compiler removes the operation.
    """
    differs = [jnp.zeros_like(operand, shape=(), dtype=bool) for operand in operands]
    return jnp.where(jnp.stack(differs).any(), result, result)


def host_call(function: Function, results: Sequence[Result], *operands: jax.Array) -> list[jax.Array]:
    """Call a pure Python function with the values of ``operands``, and return its results as JAX arrays.

    Args:
        function: a function that takes a read-only numpy array for each operand, and returns one array for each result.
        results: the shapes and types of the results.
        operands: arrays of JAX, traced or not.
    """
    if BUFFER_CALLBACK is None:
        returned = jax.pure_callback(_OnArrays(function), list(results), *operands)
    else:
        returned = BUFFER_CALLBACK(_OnBuffers(function), list(results))(*operands)
    return [_varying_as(operands, result) for result in returned]


def simulator_options() -> Options | None:
    """Return the options of the simulator that are set in this thread; None on the real NKI.

    The options are compiled into a program, because it runs in threads that do not know the options of the calling
    thread.
    """
    return current_options() if SIMULATED else None


@dataclass(frozen=True)
class Kernel:
    """A kernel and its name.

    Attributes:
        name: the name for messages.
        function: the kernel, from ``nki.jit``.
    """

    name: str
    function: Any

    def launch(self, **arguments: Any) -> tuple[Any, ...]:
        """Launch the kernel and return its results as a tuple; :mod:`nkilib.base.lnc` chooses the number of cores."""
        returned = library_launch(self.name, self.function)(**arguments)
        return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


@dataclass(frozen=True)
class Simulation:
    """A launch on the simulator, as a function of numpy arrays.

    Launches with equal attributes compare equal, so that JAX reuses a compiled program.

    Attributes:
        kernel: the kernel that is launched.
        names: the names of the kernel's array arguments, in the order of the arrays in a call.
        constants: the names and values of the other arguments.
        options: the options of the simulator.
    """

    kernel: Kernel
    names: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    options: Options

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with using(**values_of(self.options)):
            return self.kernel.launch(**dict(zip(self.names, arrays, strict=True)), **dict(self.constants))


def launch(
    kernel: Kernel,
    arrays: Mapping[str, jax.Array | None],
    constants: Mapping[str, Any],
    results: Mapping[str, Result],
    options: Options | None,
) -> dict[str, jax.Array]:
    """Launch a kernel and return its results by name.

    Args:
        kernel: a kernel that does not write to its inputs, and whose control flow does not depend on values of tensors.
        arrays: the kernel arguments that are arrays, by name; an argument that is None is not passed.
        constants: the other kernel arguments by name, which are compiled into the program.
        results: the shapes and types of the results, in the kernel's order, under names that the caller chooses.
        options: the result of :func:`simulator_options`.
    """
    present = {name: array for name, array in arrays.items() if array is not None}
    if options is None:
        returned: Sequence[jax.Array] = kernel.launch(**present, **constants)
    else:
        simulation = Simulation(kernel, tuple(present), tuple(constants.items()), options)
        returned = host_call(simulation, list(results.values()), *present.values())
    return dict(zip(results, returned, strict=True))


def is_known(array: Any) -> bool:
    """Return whether an array is a JAX array with values, not one that is being traced."""
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


def check_platforms(caller: str, arrays: dict[str, Any]) -> None:
    """Check that all arrays are on the platform on which kernels run: the CPU for the simulator, else Neuron devices.

    The platform of a traced array is unknown; JAX or NKI then raises an error when the program is compiled.

    Raises:
        NotImplementedError: an array is on another platform, or the real NKI has no Neuron device.
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
