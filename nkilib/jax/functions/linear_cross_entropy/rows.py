# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Conversion of arrays of any shape to rows of positions, for loss and scores alike, compiled with the launch."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np

from nkilib.experimental.loss.linear.shared.launch import CLASSES_FIRST
from nkilib.jax.dispatch.layout import as_rows
from nkilib.jax.dispatch.mesh_axes import differing_alike
from nkilib.jax.functions.cross_entropy.targets import Array, class_indices
from nkilib.jax.functions.linear_cross_entropy.derivative import results_of_rows
from nkilib.jax.functions.linear_cross_entropy.kernels import LinearRecipe


def computed_rows(
    recipe: LinearRecipe,
    input: jax.Array,
    linear_weight: jax.Array,
    target: jax.Array,
    linear_bias: jax.Array | None,
    class_weight: jax.Array | None = None,
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Compute the results by row from checked arguments, and return them with the int32 targets of the rows.

    Args:
        recipe: the compiled options.
        input: [..., D].
        linear_weight: the output layer, in its layout.
        target: class indices in the shape of the positions, or with a further axis of K ids.
        linear_bias, class_weight: [V] floating, or None.
    """
    positions = prod(input.shape[:-1])
    classes = jnp.asarray(class_indices(target, recipe.options.ignore_index, _classes(recipe, linear_weight)))
    arrays = differing_alike(
        {
            "input": as_rows(input, -1),
            "linear_weight": linear_weight,
            "target": classes.reshape(positions, *classes.shape[input.ndim - 1 :]),
            "linear_bias": None if linear_bias is None else linear_bias.astype(jnp.float32),
            "class_weight": None if class_weight is None else class_weight.astype(jnp.float32),
        }
    )
    return results_of_rows(recipe, *arrays.values()), arrays["target"]


def narrowed(target: Array, ignore_index: int, classes: int) -> tuple[Array, bool]:
    """Convert numpy targets to int32 class indices, before JAX would cut 64-bit integers down to 32 bits, and return
    them with True; return targets of JAX unchanged, with False.
    """
    if isinstance(target, np.ndarray):
        return class_indices(target, ignore_index, classes), True
    return target, False


def _classes(recipe: LinearRecipe, linear_weight: jax.Array) -> int:
    return linear_weight.shape[0 if recipe.weight_layout == CLASSES_FIRST else 1]
