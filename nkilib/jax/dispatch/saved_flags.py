# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Flags that a forward passes to its backward at trace time: which arguments need gradients.

They could be constants in the tree of the residuals of ``jax.custom_vjp``. But where ``jax.vmap`` maps a program under
``jax.jit``, JAX 0.10 takes a forward from its cache together with the tree of the forward that it traced last, which
may have needed other gradients: gradients were 0. So the flags are the shape of an array without elements, which always
belongs to the forward that runs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def saved_flags(*flags: bool) -> jax.Array:
    """Return an array without elements whose shape encodes the flags."""
    return jnp.zeros((0, *map(int, flags)))


def flags_of(saved: jax.Array) -> tuple[bool, ...]:
    """Return the flags that were passed to :func:`saved_flags`."""
    return tuple(size == 1 for size in saved.shape[1:])
