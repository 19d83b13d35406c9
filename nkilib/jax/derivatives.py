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
    """Return the arrays, whose JAX types now vary over the same mesh axes of ``jax.shard_map``.

    These are all axes over which at least one of the arrays varies. The gradients of a function of the arrays then vary
    over the same axes. JAX sums the gradient of an array that several devices share, such as an output layer in
    data-parallel training, over the devices. No array is copied.

    Args:
        arrays: the arrays by name; None stays None.
    """
    axes = frozenset[Any]().union(*(_axes_of(array) for array in arrays.values()))
    return {name: _differing(array, axes) for name, array in arrays.items()}


def saved_flags(*flags: bool) -> jax.Array:
    """Return an array without elements whose shape encodes flags.

    A forward saves this array to tell its backward which arguments need gradients.

    Python constants in the residuals of ``jax.custom_vjp`` would not do. Under ``jax.vmap`` of a ``jax.jit`` program,
    JAX 0.10 may run a cached forward, and take the constants from the forward that it traced last. If the two forwards
    need different gradients, a needed gradient becomes 0. The shape of an array always belongs to the forward that
    runs.
    """
    return jnp.zeros((0, *map(int, flags)))


def flags_of(saved: jax.Array) -> tuple[bool, ...]:
    """Return the flags that an array of :func:`saved_flags` encodes."""
    return tuple(size == 1 for size in saved.shape[1:])
