# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a forward knows when it is traced and its backward has to know: by which arguments there are derivatives.

Residuals of ``jax.custom_vjp`` may have constants in their tree, but where a program under ``jax.jit`` is mapped by
``jax.vmap``, JAX 0.10 takes a forward from its cache with the tree of the one that it traced last, which may have had
other derivatives: gradients were 0. The shape of an array without elements always belongs to the forward that runs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def saved_flags(*flags: bool) -> jax.Array:
    """An array without elements whose shape says what is true."""
    return jnp.zeros((0, *map(int, flags)))


def flags_of(saved: jax.Array) -> tuple[bool, ...]:
    """What was given to :func:`saved_flags`."""
    return tuple(size == 1 for size in saved.shape[1:])
