# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Conversion between arrays of any shape and the rows of kernels; a row lies along one axis."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp


def axis_of(shape: tuple[int, ...], axis: int) -> int:
    """Return the axis along which rows lie, counted from the front."""
    return axis % len(shape)


def rows_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the shape of a result with one number for each row: the shape of the array without the axis."""
    at = axis_of(shape, axis)
    return (*shape[:at], *shape[at + 1 :])


def as_rows(array: jax.Array, axis: int) -> jax.Array:
    """Reshape an array to [rows, row length]. Only an axis that is not the last costs a copy."""
    last = jnp.moveaxis(array, axis_of(array.shape, axis), -1)
    return last.reshape(prod(last.shape[:-1]), last.shape[-1])
