# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts of derivatives that JAX's transformations need: equal mesh axes, and flags from forward to backward.

In ``jax.shard_map``, arrays must vary over the same mesh axes (:func:`differing_alike`). A forward passes flags to its
backward with the residuals (:func:`saved_flags`, :func:`flags_of`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def _axes_of(array: Any) -> frozenset[Any]:
    """Return the mesh axes over which an array varies; none outside of ``jax.shard_map``, or if it checks no axes."""
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
    """Make all arrays vary, by their types in ``jax.shard_map``, over every mesh axis that any of them varies over.

    The gradients of a function of all of them then have the same axes, and JAX adds up over the devices the gradients
    of an array that the devices share, such as an output layer in data-parallel training. Nothing is copied. None stays
    None.
    """
    axes = frozenset[Any]().union(*(_axes_of(array) for array in arrays.values()))
    return {name: _differing(array, axes) for name, array in arrays.items()}


def saved_flags(*flags: bool) -> jax.Array:
    """Return an array without elements whose shape encodes flags that a forward passes to its backward at trace time:
    which arguments need gradients.

    Constants in the tree of the residuals of ``jax.custom_vjp`` do not work: if ``jax.vmap`` maps a program under
    ``jax.jit``, JAX 0.10 takes a forward from its cache together with the tree of the forward that it traced last. That
    one may have needed other gradients, and gradients became 0. The shape of an array always belongs to the forward
    that runs.
    """
    return jnp.zeros((0, *map(int, flags)))


def flags_of(saved: jax.Array) -> tuple[bool, ...]:
    """Return the flags that were passed to :func:`saved_flags`."""
    return tuple(size == 1 for size in saved.shape[1:])
