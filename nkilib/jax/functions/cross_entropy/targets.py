# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Conversion of class indices of any integer type to the kernels' int32, without wrapping into range."""

from __future__ import annotations

from typing import Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array | np.ndarray

# The target of an ignored position, whatever the caller's ignore_index is.
IGNORED: Final = -100
# The target for a class that does not exist. A compiled program cannot raise errors for values: its loss is NaN.
OUT_OF_RANGE: Final = -1


def class_indices(target: Array, ignore_index: int, num_classes: int) -> Array:
    """Convert targets to int32: a class, ``IGNORED`` or ``OUT_OF_RANGE``. The result is numpy's if the target is.

    A plain cast would bring 2^32 + 3 into range.

    Args:
        target: class indices of any shape and integer type.
        ignore_index: the caller's index of ignored positions, any integer.
        num_classes: V.
    """
    of = np if isinstance(target, np.ndarray) else jnp
    is_class = _is_class(target, num_classes)
    kept = of.where(is_class, of.where(is_class, target, 0).astype(np.int32), np.int32(OUT_OF_RANGE))
    return of.where(_is(target, ignore_index), np.int32(IGNORED), kept)


def first_out_of_range(target: Array, ignore_index: int, num_classes: int) -> tuple[int, ...] | None:
    """Return the index in ``target`` of the first class that is out of range, or None. Values are read."""
    values = np.asarray(target)
    outside = ~(_is_class(values, num_classes) | _is(values, ignore_index))
    if not outside.any():
        return None
    return tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(outside)))[: values.ndim]


def _is_class(target: Array, num_classes: int) -> Array:
    """Tell which targets are classes, compared in the type of the targets, which may not hold the number of classes."""
    last = min(num_classes - 1, np.iinfo(target.dtype).max)
    return (target >= 0) & (target <= target.dtype.type(last))


def _is(target: Array, value: int) -> Array:
    info = np.iinfo(target.dtype)
    if not info.min <= value <= info.max:
        return target != target  # nowhere
    return target == target.dtype.type(value)
