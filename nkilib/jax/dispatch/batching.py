# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``jax.vmap`` over a function of rows: one launch with the rows of all examples where no result is a sum over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

Arrays = Mapping[str, jax.Array | None]
# From arrays with a row each in their first dimension, and from arrays that all rows share, to results by row.
RowsFunction = Callable[[Arrays, Arrays], dict[str, jax.Array]]


def given(arrays: Arrays, name: str) -> jax.Array:
    """An array that is not optional.

    Raises:
        KeyError: it was not given.
    """
    array = arrays[name]
    if array is None:
        raise KeyError(f"{name} must be given")
    return array


def batched_by_rows(function: RowsFunction) -> RowsFunction:
    """``function``, which ``jax.vmap`` calls once with the rows of all examples one after the other.

    Where what the rows share differs by example there is nothing to be put together: it is called for each example.
    """
    mapped = custom_vmap(function)

    def rule(
        size: int, batched: tuple[Mapping[str, bool | None], Mapping[str, bool | None]], rows: Arrays, shared: Arrays
    ) -> tuple[dict[str, jax.Array], dict[str, bool]]:
        rows_batched, shared_batched = batched
        if any(shared_batched.values()):
            results = _for_each(mapped, _chosen(rows, rows_batched), _chosen(shared, shared_batched), rows, shared)
        else:
            joined = {name: _joined(array, rows_batched[name], size) for name, array in rows.items()}
            found = mapped(joined, shared)
            results = {name: result.reshape(size, -1, *result.shape[1:]) for name, result in found.items()}
        return results, dict.fromkeys(results, True)

    mapped.def_vmap(rule)
    return mapped


def batched_by_example(function: RowsFunction) -> RowsFunction:
    """``function``, which ``jax.vmap`` calls for each example: a result of it is a sum over the rows of one."""
    mapped = custom_vmap(function)

    def rule(
        size: int, batched: tuple[Mapping[str, bool | None], Mapping[str, bool | None]], rows: Arrays, shared: Arrays
    ) -> tuple[dict[str, jax.Array], dict[str, bool]]:
        rows_batched, shared_batched = batched
        results = _for_each(mapped, _chosen(rows, rows_batched), _chosen(shared, shared_batched), rows, shared)
        return results, dict.fromkeys(results, True)

    mapped.def_vmap(rule)
    return mapped


def _joined(array: jax.Array | None, is_batched: bool | None, size: int) -> jax.Array | None:
    """The rows of all examples; those that all examples have in common are repeated."""
    if array is None:
        return None
    whole = array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
    return whole.reshape(size * whole.shape[1], *whole.shape[2:])


def _chosen(arrays: Arrays, batched: Mapping[str, bool | None]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if batched[name]}


def _for_each(
    mapped: RowsFunction, rows_of_each: Arrays, shared_of_each: Arrays, rows: Arrays, shared: Arrays
) -> dict[str, jax.Array]:
    """The results of every example, one launch after the other."""

    def one(example: tuple[Arrays, Arrays]) -> dict[str, jax.Array]:
        return mapped({**rows, **example[0]}, {**shared, **example[1]})

    return jax.lax.map(one, (rows_of_each, shared_of_each))
