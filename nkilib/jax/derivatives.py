# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that JAX's derivatives need: equal mesh axes, and flags that a forward passes to its backward.

In ``jax.shard_map``, the arrays of a launch must vary over the same mesh axes (:func:`differing_alike`). A forward
saves flags together with its residuals (:func:`saved_flags`), and its backward reads them (:func:`flags_of`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def _axes_of(array: Any) -> frozenset[Any]:
    # None outside of ``jax.shard_map``, and if it checks no axes.
    if array is None:
        return frozenset()
    kind: Any = jax.typeof(array)
    axes: frozenset[Any] = kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # before 0.10, and since
    return axes


def _differing(array: Any, axes: frozenset[Any]) -> Any:
    missing = tuple(sorted(axes - _axes_of(array), key=str))
    if array is None or not missing:
        return array
    lax: Any = jax.lax
    return lax.pcast(array, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(array, missing)


def differing_alike(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays with types that all vary over the same mesh axes of ``jax.shard_map``.

    These are the axes that any of the arrays varies over. The gradients of a function of all arrays then have the same
    axes, and JAX sums the gradient of an array that several devices share, such as an output layer in data-parallel
    training, over the devices. No array is copied.

    Args:
        arrays: the arrays by name; None stays None.
    """
    axes = frozenset[Any]().union(*(_axes_of(array) for array in arrays.values()))
    return {name: _differing(array, axes) for name, array in arrays.items()}


def saved_flags(*flags: bool) -> jax.Array:
    """Return an array without elements whose shape encodes flags.

    A forward saves this array to tell its backward which arguments need gradients.

    Flags could not be constants in the tree of residuals of ``jax.custom_vjp``. If ``jax.vmap`` maps a program under
    ``jax.jit``, JAX 0.10 takes a forward from its cache, but the tree of residuals from the forward that it traced
    last. That forward may have needed other gradients, and gradients became 0. The shape of an array always belongs to
    the forward that runs.
    """
    return jnp.zeros((0, *map(int, flags)))


def flags_of(saved: jax.Array) -> tuple[bool, ...]:
    """Return the flags that an array of :func:`saved_flags` encodes."""
    return tuple(size == 1 for size in saved.shape[1:])
