# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arrays in ``jax.shard_map``: over which axes of a mesh they differ from device to device."""

from __future__ import annotations

from typing import Any

import jax


def differing_alike(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays, floating ones among them with a type that differs over every axis that one of all differs over.

    So a function of all of them returns gradients of one kind, and JAX adds up over the devices what belongs to an
    array that they share, as an output layer is in data parallel training. Nothing is copied. None stays None.
    """
    axes = frozenset[Any]().union(*(_axes_of(array) for array in arrays.values()))
    return {name: _differing(array, axes) for name, array in arrays.items()}


def _axes_of(array: Any) -> frozenset[Any]:
    """None outside of ``jax.shard_map``, and where that does not check."""
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
