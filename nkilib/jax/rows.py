# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arrays of any shape as the rows of kernels, and functions of rows under ``jax.vmap``.

:func:`as_rows` returns an array as rows, :func:`rows_shape` the shape of per-row results, and :func:`required` one of
several arrays by name.

Under ``jax.vmap``, a function of rows is called for a batch of *examples*. :func:`batched_by_rows` calls it once with
the rows of all examples; :func:`batched_by_example` calls it for each example, if a result is a sum over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

Arrays = Mapping[str, jax.Array | None]
# A function of arrays whose first dimension is that of the rows, and of arrays that all rows share; it returns results
# by row.
RowsFunction = Callable[[Arrays, Arrays], dict[str, jax.Array]]


def axis_of(shape: tuple[int, ...], axis: int) -> int:
    """Return the non-negative number of an axis.

    Args:
        shape: the shape of the array.
        axis: the number of the axis, which may be negative.
    """
    return axis % len(shape)


def rows_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the shape of a result with one number for each row.

    Args:
        shape: the shape of the array.
        axis: the axis along which rows lie, which the result lacks.
    """
    at = axis_of(shape, axis)
    return (*shape[:at], *shape[at + 1 :])


def as_rows(array: jax.Array, axis: int) -> jax.Array:
    """Return an array as [rows, row length]. This copies only if ``axis`` is not the last axis.

    Args:
        array: the array.
        axis: the axis along which rows lie.
    """
    last = jnp.moveaxis(array, axis_of(array.shape, axis), -1)
    return last.reshape(prod(last.shape[:-1]), last.shape[-1])


def required(arrays: Arrays, name: str) -> jax.Array:
    """Return the array with the given name.

    Raises:
        KeyError: the array is None.
    """
    array = arrays[name]
    if array is None:
        raise KeyError(f"{name} must be given")
    return array


def _joined(array: jax.Array | None, is_batched: bool | None, size: int) -> jax.Array | None:
    """Return the rows of all examples as one array.

    Args:
        array: [examples, rows, ...]; [rows, ...] if all examples have the same rows.
        is_batched: whether the array has a dimension of examples.
        size: the number of examples.
    """
    if array is None:
        return None
    whole = array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
    return whole.reshape(size * whole.shape[1], *whole.shape[2:])


def _chosen(arrays: Arrays, batched: Mapping[str, bool | None]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if batched[name]}


def _for_each(
    mapped: RowsFunction, rows_of_each: Arrays, shared_of_each: Arrays, rows: Arrays, shared: Arrays
) -> dict[str, jax.Array]:
    """Call a function of rows for each example, and return the stacked results.

    Args:
        mapped: the function.
        rows_of_each, shared_of_each: the arrays that differ between the examples.
        rows, shared: the arrays that all examples have in common.
    """

    def one(example: tuple[Arrays, Arrays]) -> dict[str, jax.Array]:
        return mapped({**rows, **example[0]}, {**shared, **example[1]})

    return jax.lax.map(one, (rows_of_each, shared_of_each))


def batched_by_rows(function: RowsFunction) -> RowsFunction:
    """Return ``function`` in a form that ``jax.vmap`` calls once, with the rows of all examples one after the other.

    The rows cannot be joined if an array that all rows of a call share, such as class weights, differs between the
    examples. In this case the function is called once for each example.
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
            joined_results = mapped(joined, shared)
            results = {name: result.reshape(size, -1, *result.shape[1:]) for name, result in joined_results.items()}
        return results, dict.fromkeys(results, True)

    mapped.def_vmap(rule)
    return mapped


def batched_by_example(function: RowsFunction) -> RowsFunction:
    """Return ``function`` in a form that ``jax.vmap`` calls once for each example.

    A function needs this form if one of its results is a sum over the rows of an example.
    """
    mapped = custom_vmap(function)

    def rule(
        size: int, batched: tuple[Mapping[str, bool | None], Mapping[str, bool | None]], rows: Arrays, shared: Arrays
    ) -> tuple[dict[str, jax.Array], dict[str, bool]]:
        rows_batched, shared_batched = batched
        results = _for_each(mapped, _chosen(rows, rows_batched), _chosen(shared, shared_batched), rows, shared)
        return results, dict.fromkeys(results, True)

    mapped.def_vmap(rule)
    return mapped
