# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Gradients of class probabilities and of their class weights, which XLA computes and not the kernels.

They need memory of several times the logits, in float32, so nothing here runs unless one of the two is differentiated.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nkilib.experimental.loss.cross_entropy.options import LossOptions


def scaled_distances(
    logits: jax.Array, maximum: jax.Array, log_sum: jax.Array, grad_loss: jax.Array, options: LossOptions
) -> jax.Array:
    """Compute ``grad_loss * (lse - z)``, [N, V] float32, from which both gradients are computed.

    z are the logits after cap and temperature, and lse is their log-sum-exp.

    Args:
        logits: [N, V], before cap and temperature.
        maximum, log_sum: [N] float32, the summands of lse.
        grad_loss: [N] float32, the upstream gradient of every position's loss.
        options: the options of the loss.
    """
    z, softcap = logits.astype(jnp.float32), options.logit_softcap
    if softcap is not None:
        z = jnp.where(jnp.isneginf(z), z, softcap * jnp.tanh(z / softcap))
    z = z / options.temperature
    log_sum = log_sum + 0.0 * log_sum  # NaN where it is infinite: the row has no softmax
    return ((maximum[:, None] - z) + log_sum[:, None]) * grad_loss[:, None]  # large logits cancel exactly


def target_gradient(distances: jax.Array, class_weight: jax.Array | None, options: LossOptions) -> jax.Array:
    """Compute the gradient of the class probabilities, [N, V] float32.

    Args:
        distances: the result of :func:`scaled_distances`.
        class_weight: [V] float32; None means 1.
        options: the options of the loss.
    """
    weighted = distances if class_weight is None else distances * class_weight
    return (1.0 - options.label_smoothing) * weighted


def weight_gradient(distances: jax.Array, target: jax.Array, options: LossOptions) -> jax.Array:
    """Compute the gradient of the class weights, [V] float32.

    Args:
        distances: the result of :func:`scaled_distances`.
        target: [N, V] class probabilities.
        options: the options of the loss.
    """
    kept, spread = 1.0 - options.label_smoothing, options.label_smoothing / target.shape[1]
    return ((kept * target.astype(jnp.float32) + spread) * distances).sum(0)
