# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradient beside optax in float64 on the very same inputs: reductions, shapes, types, layouts."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nkilib.jax import cross_entropy
from tests.jax.inputs import (
    CLASSES,
    POSITIONS,
    Exact,
    make_logits,
    make_probabilities,
    make_targets,
    of_optax,
    of_reference,
)
from tests.jax.telling import assert_gradient, assert_loss


@cache
def exact_of(dtype: Any) -> Exact:
    """Return the exact results for ``make_logits`` and ``make_targets``."""
    return of_optax(make_logits(dtype=dtype), make_targets())


@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [
        ("mean", jnp.float32),
        ("sum", jnp.bfloat16),
        ("none", jnp.float32),
        ("none", jnp.bfloat16),
        ("mean", jnp.float16),
    ],
)
def test_loss_and_gradient(reduction: str, dtype: Any) -> None:
    """Loss and gradient are checked without jit, which comes with a large vocabulary."""
    x, target, exact = make_logits(dtype=dtype), make_targets(), exact_of(dtype)
    loss, gradient_of = jax.vjp(lambda x: cross_entropy(x, target, reduction=reduction), x)
    upstream = np.linspace(0.5, 1.5, POSITIONS, dtype=np.float32) if reduction == "none" else np.float32(0.75)
    (gradient,) = gradient_of(jnp.asarray(upstream))
    assert gradient.dtype == dtype
    expected = {"mean": exact.losses.mean(), "sum": exact.losses.sum(), "none": exact.losses}[reduction]
    scale = upstream.astype(np.float64) / (POSITIONS if reduction == "mean" else 1)
    assert_loss(loss, expected, 15.0 * (POSITIONS if reduction == "sum" else 1))
    assert_gradient(gradient, exact.gradient * np.broadcast_to(scale, POSITIONS)[:, np.newaxis], 1.5)


def test_a_large_ragged_vocabulary() -> None:
    """More than one chunk for each core, and a short one at the end; under jit, as a step of a training has it."""
    x, target = make_logits(3, 17_003, dtype=jnp.bfloat16), make_targets((3,), classes=17_003)
    loss, gradient = jax.jit(jax.value_and_grad(cross_entropy))(x, target)
    exact = of_optax(x, target)
    assert_loss(loss, exact.losses.mean())
    assert_gradient(gradient, exact.gradient / 3)


@pytest.mark.parametrize(("shape", "axis"), [((CLASSES,), -1), ((2, 3, CLASSES), -1), ((2, CLASSES, 3), 1)], ids=str)
def test_classes_along_any_axis(shape: tuple[int, ...], axis: int) -> None:
    x = make_logits(*shape)
    last = jnp.moveaxis(x, axis, -1)
    target = make_targets(last.shape[:-1])
    exact = of_reference(last.reshape(-1, CLASSES), target.reshape(-1))

    def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        losses = cross_entropy(x, target, reduction="none", axis=axis)
        return losses.sum(), losses

    gradient, loss = jax.jit(jax.grad(total, has_aux=True))(x)
    assert_loss(loss, exact.losses.reshape(target.shape))
    assert_gradient(gradient, np.moveaxis(exact.gradient.reshape(last.shape), -1, axis))


def test_class_probabilities() -> None:
    x, y = make_logits(), make_probabilities()
    with jax.enable_x64(True):
        exact = jax.jit(jax.value_and_grad(lambda x, y: optax.softmax_cross_entropy(x, y).sum(), argnums=(0, 1)))
        expected, gradients = exact(np.asarray(x, np.float64), np.asarray(y, np.float64))
        expected, by_logits, by_target = np.asarray(expected), *map(np.asarray, gradients)
    loss, (of_logits, of_target) = jax.jit(jax.value_and_grad(cross_entropy, argnums=(0, 1)))(x, y)
    assert_loss(loss, expected / POSITIONS)
    assert_gradient(of_logits, by_logits / POSITIONS)
    # optax has the derivative of -sum(y * log_softmax), which is lse - z for each class: so has ours.
    assert_gradient(of_target, by_target / POSITIONS, scale=1.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint32])
def test_targets_of_any_integer_type(dtype: Any) -> None:
    """64 bits of numpy are made 32 without wrapping around; those of JAX are there with x64 alone."""
    x, target = make_logits(), np.asarray(make_targets())
    assert_loss(cross_entropy(x, target.astype(dtype)), exact_of(jnp.float32).losses.mean())


def test_with_64_bits_switched_on() -> None:
    x, target = make_logits(dtype=jnp.bfloat16), make_targets()
    with jax.enable_x64(True):
        step, wide = jax.jit(jax.value_and_grad(cross_entropy)), jnp.asarray(np.asarray(target, np.int64))
        assert wide.dtype == jnp.int64
        loss, gradient = step(x, wide)
        assert jnp.isnan(step(x, wide + 2**32)[0])  # not a class by wrapping around
    assert_loss(loss, exact_of(jnp.bfloat16).losses.mean())
    assert gradient.dtype == jnp.bfloat16


def test_a_step_takes_next_to_no_memory() -> None:
    """A step's temporary memory, as XLA plans it without a run, is small; logits in float32 would be twice as large."""
    x, target = jax.ShapeDtypeStruct((256, 8192), jnp.bfloat16), jax.ShapeDtypeStruct((256,), jnp.int32)
    planned = jax.jit(jax.value_and_grad(cross_entropy)).lower(x, target).compile().memory_analysis()
    assert planned.output_size_in_bytes >= 2 * x.size
    assert planned.temp_size_in_bytes <= 2 * x.size / 100


def test_no_positions() -> None:
    x, target = jnp.zeros((0, CLASSES)), jnp.zeros((0,), jnp.int32)
    assert cross_entropy(x, target, reduction="none").shape == (0,)
    loss, gradient = jax.jit(jax.value_and_grad(cross_entropy))(x, target)
    assert jnp.isnan(loss) and gradient.shape == (0, CLASSES)
