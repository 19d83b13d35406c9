# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of the tests, seeded, and their float64 results: of optax, and of the kernels' reference for the options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nkilib.experimental.loss.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)

POSITIONS, CLASSES = 6, 11
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def make_logits(*shape: int, dtype: Any = jnp.float32, seed: int = 0, spread: float = 3.0) -> jax.Array:
    """Normal logits, rounded to ``dtype``; [6, 11] unless a shape is given."""
    values = np.random.default_rng(seed).standard_normal(shape or (POSITIONS, CLASSES))
    return jnp.asarray((spread * values).astype(dtype))


def make_targets(
    shape: tuple[int, ...] = (POSITIONS,), classes: int = CLASSES, ignored: int | None = None, seed: int = 1
) -> jax.Array:
    """int32 class indices; with ``ignored``, every third position has that target."""
    target = np.random.default_rng(seed).integers(classes, size=shape).astype(np.int32)
    if ignored is not None:
        target.reshape(-1)[1::3] = ignored
    return jnp.asarray(target)


def make_probabilities(*shape: int, seed: int = 2) -> jax.Array:
    """float32 class probabilities, classes last."""
    values = np.exp(np.random.default_rng(seed).standard_normal(shape or (POSITIONS, CLASSES)))
    return jnp.asarray((values / values.sum(-1, keepdims=True)).astype(np.float32))


def make_weight(classes: int = CLASSES, seed: int = 3) -> jax.Array:
    """Class weights from 0.5 to 1.5."""
    return jnp.asarray((0.5 + np.random.default_rng(seed).random(classes)).astype(np.float32))


@dataclass(frozen=True)
class Exact:
    """float64 results.

    Attributes:
        losses: the loss of each position.
        gradient: the gradient of the sum of the losses by the logits.
    """

    losses: np.ndarray
    gradient: np.ndarray


def of_optax(logits: jax.Array, target: jax.Array) -> Exact:
    """``optax.softmax_cross_entropy_with_integer_labels`` in float64, on the values that the logits have."""

    def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        losses = optax.softmax_cross_entropy_with_integer_labels(x, target)
        return losses.sum(), losses

    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(logits).astype(np.float64))
        gradient, losses = jax.jit(jax.grad(total, has_aux=True))(x)
        assert losses.dtype == gradient.dtype == jnp.float64
        return Exact(np.asarray(losses), np.asarray(gradient))


def of_reference(
    logits: jax.Array, target: jax.Array, weight: jax.Array | None = None, upstream: Any = 1.0, **options: Any
) -> Exact:
    """The kernels' numpy reference, which knows every option, of [N, V]; ``upstream`` is for each loss."""
    x, t = np.asarray(logits), np.asarray(target)
    loss = ExtendedLoss(None if weight is None else np.asarray(weight), **options)
    results = extended_forward_reference(x, t, x.dtype, loss)
    grads = np.broadcast_to(np.asarray(upstream, np.float64), x.shape[:1])
    return Exact(results.loss, extended_backward_reference(x, t, x.dtype, loss, BackwardInputs(results.lse, grads)))
