# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arrays of any shape, and the rows of kernels: along one axis a row."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp


def axis_of(shape: tuple[int, ...], axis: int) -> int:
    """The axis of a row, counted from the front."""
    return axis % len(shape)


def rows_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape of a result of a number for each row: that of the array without the axis."""
    at = axis_of(shape, axis)
    return (*shape[:at], *shape[at + 1 :])


def as_rows(array: jax.Array, axis: int) -> jax.Array:
    """[rows, row length]. Only an axis that is not the last costs a copy."""
    last = jnp.moveaxis(array, axis_of(array.shape, axis), -1)
    return last.reshape(prod(last.shape[:-1]), last.shape[-1])
