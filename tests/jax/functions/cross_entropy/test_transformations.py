# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""jit, vmap, scan, checkpoint, a mesh, and derivatives that there are not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nkilib.jax import cross_entropy
from tests.jax.inputs import CLASSES, POSITIONS, make_logits, make_probabilities, make_targets, make_weight
from tests.jax.inputs import of_reference as exact_of
from tests.jax.launch_log import LaunchLog
from tests.jax.telling import assert_gradient, assert_loss

EXAMPLES = 3
X, TARGET = make_logits(EXAMPLES, POSITIONS, CLASSES), make_targets((EXAMPLES, POSITIONS))
EXACT = exact_of(X.reshape(-1, CLASSES), TARGET.reshape(-1))
LOSSES, GRADIENTS = EXACT.losses.reshape(EXAMPLES, POSITIONS), EXACT.gradient.reshape(X.shape)


def test_what_is_not_an_array_is_static_under_jit(launches: LaunchLog) -> None:
    step = jax.jit(cross_entropy, static_argnames=("reduction", "label_smoothing"))
    for smoothing in (0.0, 0.1):
        exact = exact_of(X[0], TARGET[0], label_smoothing=smoothing)
        assert_loss(step(X[0], TARGET[0], reduction="sum", label_smoothing=smoothing), exact.losses.sum(), 90.0)
    assert launches.forward == [(POSITIONS, CLASSES)] * 2


def test_vmap_is_one_launch_for_the_whole_batch(launches: LaunchLog) -> None:
    losses, gradients = jax.jit(jax.vmap(jax.value_and_grad(cross_entropy)))(X, TARGET)
    assert_loss(losses, LOSSES.mean(-1))
    assert_gradient(gradients, GRADIENTS / POSITIONS)
    assert launches.forward == launches.backward == [(EXAMPLES * POSITIONS, CLASSES)]


def test_vmap_of_vmap_and_of_logits_alone(launches: LaunchLog) -> None:
    """Examples of examples, and one target for all of them."""
    x = make_logits(2, EXAMPLES, POSITIONS, CLASSES)
    of_examples = jax.vmap(lambda x: cross_entropy(x, TARGET[0], reduction="none"))
    target = jnp.broadcast_to(TARGET[0], x.shape[:-1])
    exact = exact_of(x.reshape(-1, CLASSES), target.reshape(-1))
    assert_loss(jax.vmap(of_examples)(x), exact.losses.reshape(target.shape))
    assert launches.forward == [(2 * EXAMPLES * POSITIONS, CLASSES)]


def test_vmap_over_class_weights_launches_for_each(launches: LaunchLog) -> None:
    """The rows of a launch share them."""
    weights = jnp.stack([make_weight(seed=seed) for seed in range(EXAMPLES)])
    losses = jax.vmap(lambda w, t: cross_entropy(X[0], t, w, reduction="sum"))(weights, TARGET)
    exact = [exact_of(X[0], t, w).losses.sum() for w, t in zip(weights, TARGET, strict=True)]
    assert_loss(losses, np.array(exact), 90.0)
    assert launches.forward == [(POSITIONS, CLASSES)] * EXAMPLES


def test_the_gradient_of_a_scan_with_checkpoints() -> None:
    """A loss in chunks over tokens has such a scan; its value is the sum of all losses."""

    def total(x: jax.Array) -> jax.Array:
        chunk = jax.checkpoint(lambda x, target: cross_entropy(x, target, reduction="sum"))
        return jax.lax.scan(lambda sum, at: (sum + chunk(*at), None), jnp.float32(0.0), (x, TARGET))[0]

    assert_gradient(jax.jit(jax.grad(total))(X), GRADIENTS)


def test_a_derivative_by_the_upstream_of_probabilities_under_vmap() -> None:
    y = jnp.stack([make_probabilities(seed=seed) for seed in range(EXAMPLES)])
    by_target = jax.vmap(jax.grad(cross_entropy, argnums=1))(X, y)
    z = np.asarray(X, np.float64)
    assert_gradient(by_target, (np.log(np.exp(z).sum(-1, keepdims=True)) - z) / POSITIONS, scale=15.0)


def test_a_derivative_under_vmap_after_one_by_another_argument() -> None:
    """JAX keeps forwards of both; each must tell its own backward what is wanted."""
    y = make_probabilities()

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return cross_entropy(x, y, reduction="sum", temperature=2.0)

    def total(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.vmap(lambda x: loss(x, y))(x).sum()

    expected = [jax.grad(loss, argument)(X[0], y) for argument in (0, 1)]
    for argument in (1, 0):
        np.testing.assert_allclose(jax.grad(total, argument)(X[:1], y).reshape(y.shape), expected[argument], rtol=1e-6)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_batch_spread_over_two_devices(launches: LaunchLog) -> None:
    """Data parallel: each device launches for its own positions, the mean is over all."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spread = PartitionSpec("data")

    def loss(x: jax.Array, target: jax.Array) -> jax.Array:
        return jax.lax.psum(cross_entropy(x, target, normalizer=POSITIONS), "data")

    step = jax.shard_map(
        jax.value_and_grad(loss), mesh=mesh, in_specs=(spread, spread), out_specs=(PartitionSpec(), spread)
    )
    placed = [jax.device_put(array, NamedSharding(mesh, spread)) for array in (X[0], TARGET[0])]
    value, gradient = jax.jit(step)(*placed)
    assert_loss(value, LOSSES[0].mean())
    assert_gradient(gradient, GRADIENTS[0] / POSITIONS)
    assert launches.forward == launches.backward == [(POSITIONS // 2, CLASSES)] * 2


@pytest.mark.parametrize("outer", [jax.grad, jax.jacfwd])
def test_there_are_no_second_derivatives(outer: Any) -> None:
    inner = jax.grad(lambda x: cross_entropy(x, TARGET[0]))
    with pytest.raises(NotImplementedError, match=r"^cross_entropy: the gradient of the loss has no derivative here"):
        outer(lambda x: inner(x).sum())(X[0])


def test_there_is_no_forward_mode() -> None:
    with pytest.raises(TypeError, match=r"forward-mode .* custom_vjp"):
        jax.jvp(lambda x: cross_entropy(x, TARGET[0]), (X[0],), (X[0],))


def test_there_is_no_derivative_by_class_weights_of_class_indices() -> None:
    with pytest.raises(NotImplementedError, match=r"weight is differentiated by.*jax.lax.stop_gradient\(weight\)"):
        jax.grad(lambda w: cross_entropy(X[0], TARGET[0], w))(make_weight())
    kept = jax.grad(lambda w: cross_entropy(X[0], TARGET[0], jax.lax.stop_gradient(w)))(make_weight())
    assert not kept.any()
