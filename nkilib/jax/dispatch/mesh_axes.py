# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arrays in ``jax.shard_map``: the axes of a mesh over which they differ from device to device."""

from __future__ import annotations

from typing import Any

import jax


def differing_alike(arrays: dict[str, Any]) -> dict[str, Any]:
    """Make all arrays vary, by their types in ``jax.shard_map``, over every mesh axis that any of them varies over.

    The gradients of a function of all of them then have the same axes, and JAX adds up over the devices the gradients
    of an array that the devices share, such as an output layer in data-parallel training. Nothing is copied. None stays
    None.
    """
    axes = frozenset[Any]().union(*(_axes_of(array) for array in arrays.values()))
    return {name: _differing(array, axes) for name, array in arrays.items()}


def _axes_of(array: Any) -> frozenset[Any]:
    """Return the mesh axes that an array varies over; none outside of ``jax.shard_map``, or if that checks no axes."""
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
