# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The return values of the loss functions, made from the results of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nkilib.experimental.loss.cross_entropy.options import LossOptions


class CrossEntropyOutputs(NamedTuple):
    """The loss and the further outputs of the same pass over the logits.

    "Per position" is the shape of class-index targets. Logits are those after ``logit_softcap`` and ``temperature``. At
    ignored positions lse, argmax and entropy are those of the logits, the rest is 0.

    Attributes:
        loss: float32, reduced as requested; it includes ``z_loss``. Differentiable.
        lse: float32 per position, log-sum-exp of the logits, in nats. Differentiable.
        z_loss: float32, the part of the loss that ``lse_square_scale`` adds, reduced like the loss. Differentiable.
        logprob: float32 per position, log-probability of the target in nats, at most 0. Differentiable. None for class
            probabilities, which have no single target.
        argmax: int32 per position, the first class with the largest logit; V, which is not a class, in a row that holds
            a NaN.
        entropy: float32 per position, of the softmax of the logits, in nats. Differentiable.
    """

    loss: jax.Array
    lse: jax.Array
    z_loss: jax.Array
    logprob: jax.Array | None
    argmax: jax.Array
    entropy: jax.Array


def returned_values(
    results: Mapping[str, jax.Array],
    valid: jax.Array | None,
    options: LossOptions,
    reduction: str,
    normalizer: jax.Array | None,
    shape: tuple[int, ...],
    return_outputs: bool,
) -> jax.Array | CrossEntropyOutputs:
    """Make the return value of a loss function.

    Args:
        results: the results of ``derivative.loss_of_rows``, by name.
        valid: [N], whether each position is valid; None: all are, with class probabilities.
        options: the options of the loss.
        reduction, normalizer, return_outputs: the arguments of the caller.
        shape: the shape of the positions.
    """
    divisor = _divisor(results, normalizer, valid) if reduction == "mean" else None
    loss = _reduced(results["loss"], reduction, shape, divisor)
    if not return_outputs:
        return loss
    z_loss = _z_loss(results["lse"], valid, options.lse_square_scale)
    return CrossEntropyOutputs(
        loss=loss,
        lse=results["lse"].reshape(shape),
        z_loss=_reduced(z_loss, reduction, shape, divisor),
        logprob=None if valid is None else results["logprob"].reshape(shape),
        argmax=results["argmax"].reshape(shape),
        entropy=results["entropy"].reshape(shape),
    )


def _divisor(
    results: Mapping[str, jax.Array], normalizer: jax.Array | None, valid: jax.Array | None
) -> jax.Array | int:
    """Return the divisor of a mean, which for class probabilities is the number of positions, as in PyTorch."""
    if normalizer is not None:
        return normalizer
    if valid is None:
        return results["loss"].shape[0]
    weight = jax.lax.stop_gradient(results["position_weight"]).sum()
    # A mean of nothing is NaN, whatever smoothing adds to 0 / 0.
    return jnp.where(weight == 0.0, jnp.nan, weight)


def _reduced(values: jax.Array, reduction: str, shape: tuple[int, ...], divisor: jax.Array | int | None) -> jax.Array:
    if reduction == "none":
        return values.reshape(shape)
    total = values.sum()
    return total if divisor is None else total / divisor


def _z_loss(lse: jax.Array, valid: jax.Array | None, scale: float) -> jax.Array:
    if scale == 0.0:
        return jnp.zeros_like(lse)
    return scale * jnp.square(lse if valid is None else jnp.where(valid, lse, 0.0))
