# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Class indices of any integer type, made what the kernels take: int32, and never in range by wrapping around."""

from __future__ import annotations

from typing import Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array | np.ndarray

# What stands for a position that does not count, whatever the caller's ignore_index is.
IGNORED: Final = -100
# What stands for a class that does not exist. Nothing can be raised from values of a compiled program: its loss is NaN.
OUT_OF_RANGE: Final = -1


def class_indices(target: Array, ignore_index: int, num_classes: int) -> Array:
    """int32: a class, ``IGNORED`` or ``OUT_OF_RANGE``; of numpy if the target is.

    A plain cast would bring 2^32 + 3 into range.

    Args:
        target: of any shape and integer type.
        ignore_index: the caller's, any integer.
        num_classes: V.
    """
    of = np if isinstance(target, np.ndarray) else jnp
    is_class = _is_class(target, num_classes)
    kept = of.where(is_class, of.where(is_class, target, 0).astype(np.int32), np.int32(OUT_OF_RANGE))
    return of.where(_is(target, ignore_index), np.int32(IGNORED), kept)


def first_out_of_range(target: Array, ignore_index: int, num_classes: int) -> tuple[int, ...] | None:
    """Where the first class stands that does not exist, None if there is none. It looks at values."""
    values = np.asarray(target)
    outside = ~(_is_class(values, num_classes) | _is(values, ignore_index))
    if not outside.any():
        return None
    return tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(outside)))[: values.ndim]


def _is_class(target: Array, num_classes: int) -> Array:
    """Compared in the type of the targets, which need not hold the number of classes."""
    last = min(num_classes - 1, np.iinfo(target.dtype).max)
    return (target >= 0) & (target <= target.dtype.type(last))


def _is(target: Array, value: int) -> Array:
    info = np.iinfo(target.dtype)
    if not info.min <= value <= info.max:
        return target != target  # nowhere
    return target == target.dtype.type(value)
