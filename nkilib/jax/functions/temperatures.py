# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The argument ``temperature`` as an array, which the kernels read, so that no value compiles anew.

A number is an option, a constant of the compiled kernels. :func:`array_of` tells the two apart;
:func:`check_temperatures` checks an array, and :func:`rows_of` gives each position its element. An array has no
derivative: :func:`refuse_derivative` raises where one is asked for.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nkilib.experimental.loss.cross_entropy.launch import TEMPERATURE_MAX, TEMPERATURE_MIN
from nkilib.jax.functions.arguments import Array, has_readable_values
from nkilib.jax.launching import check_platforms


def array_of(temperature: Any) -> Array | None:
    """Return the argument if it is an array of JAX, or one of numpy with dimensions; else None: it is a number."""
    is_array = isinstance(temperature, jax.Array) or (isinstance(temperature, np.ndarray) and temperature.ndim > 0)
    return temperature if is_array else None


def _fits(shape: tuple[int, ...], positions: tuple[int, ...]) -> bool:
    try:
        return prod(shape) == 1 or np.broadcast_shapes(shape, positions) == positions
    except ValueError:
        return False


def _check_shape(caller: str, shape: tuple[int, ...], positions: tuple[int, ...]) -> None:
    if _fits(shape, positions):
        return
    leading = (*shape, *(1 for _ in positions[len(shape) :]))
    remedy = f"; pass temperature.reshape{leading}" if _fits(leading, positions) else ""
    raise ValueError(
        f"{caller}: temperature must have one element, or a shape that broadcasts to that of the positions, "
        f"{positions}, got {shape}{remedy}"
    )


def _check_values(caller: str, temperatures: Array) -> None:
    # In float32, as the kernels compare them: the ends of the range are none of its numbers.
    with np.errstate(over="ignore"):
        values = np.asarray(temperatures).astype(np.float32)
    is_within = (values >= np.float32(TEMPERATURE_MIN)) & (values <= np.float32(TEMPERATURE_MAX))
    if is_within.all():
        return
    position = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(~is_within)))[: values.ndim]
    raise ValueError(
        f"{caller}: temperature at {list(position)} must be from {TEMPERATURE_MIN} to {TEMPERATURE_MAX}, got "
        f"{np.asarray(temperatures)[position]}; pass 1.0 for none, also at positions that are ignored"
    )


def check_temperatures(caller: str, temperatures: Array | None, positions: tuple[int, ...]) -> None:
    """Check an array of temperatures, and its values where they are known without waiting for a device.

    Args:
        caller: the name that errors begin with.
        temperatures: the array; None passes.
        positions: the shape of the positions.

    Raises:
        TypeError: not floating.
        ValueError: a shape that does not fit; a value outside of the range, NaN among them.
        NotImplementedError: the array is not where the kernels run.
    """
    if temperatures is None:
        return
    check_platforms(caller, {"temperature": temperatures})
    if not jnp.issubdtype(temperatures.dtype, jnp.floating):
        raise TypeError(
            f"{caller}: temperature must be a number or a floating array, got an array of {temperatures.dtype}; pass "
            f"temperature.astype(jnp.float32)"
        )
    _check_shape(caller, temperatures.shape, positions)
    if has_readable_values(temperatures):
        _check_values(caller, temperatures)


def rows_of(temperatures: jax.Array | None, positions: tuple[int, ...]) -> jax.Array | None:
    """Return the temperatures of all positions, [N] float32; None without an array.

    A single element is repeated, so that under ``jax.vmap`` each example may have its own in one launch.

    Args:
        temperatures: a checked array, or None.
        positions: the shape of the positions.
    """
    if temperatures is None:
        return None
    element = temperatures.reshape(()) if temperatures.size == 1 else temperatures
    return jnp.broadcast_to(element.astype(jnp.float32), positions).reshape(-1)


def refuse_derivative(caller: str, temperatures: Any) -> None:
    """Check that nothing is differentiated by temperatures.

    Args:
        caller: the name that errors begin with.
        temperatures: the argument of the forward of a ``jax.custom_vjp`` with ``symbolic_zeros``, or None.

    Raises:
        NotImplementedError: they are differentiated by.
    """
    if temperatures is not None and temperatures.perturbed:
        raise NotImplementedError(
            f"{caller}: temperature is differentiated by, and there is no derivative by temperatures; pass "
            f"jax.lax.stop_gradient(temperature)"
        )
