# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradient beside optax in float64 on the very same inputs, the options of training recipes and the further
outputs beside the float64 reference, and transformations: jit, vmap, scan, checkpoint, a mesh.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nkilib.jax import CrossEntropyOutputs, cross_entropy
from tests.jax.inputs import (
    CLASSES,
    DTYPES,
    POSITIONS,
    Exact,
    make_logits,
    make_probabilities,
    make_targets,
    make_weight,
    of_optax,
    of_reference,
)
from tests.jax.inputs import of_reference as exact_of
from tests.jax.launch_log import LaunchLog
from tests.jax.telling import assert_gradient, assert_loss


@cache
def optax_exact(dtype: Any) -> Exact:
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
    x, target, exact = make_logits(dtype=dtype), make_targets(), optax_exact(dtype)
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
    assert_loss(cross_entropy(x, target.astype(dtype)), optax_exact(jnp.float32).losses.mean())


def test_with_64_bits_switched_on() -> None:
    x, target = make_logits(dtype=jnp.bfloat16), make_targets()
    with jax.enable_x64(True):
        step, wide = jax.jit(jax.value_and_grad(cross_entropy)), jnp.asarray(np.asarray(target, np.int64))
        assert wide.dtype == jnp.int64
        loss, gradient = step(x, wide)
        assert jnp.isnan(step(x, wide + 2**32)[0])  # not a class by wrapping around
    assert_loss(loss, optax_exact(jnp.bfloat16).losses.mean())
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


RECIPE: dict[str, Any] = {"label_smoothing": 0.1, "logit_softcap": 5.0, "lse_square_scale": 1e-2}


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_options_with_class_indices(dtype: Any) -> None:
    x, target, weight = make_logits(dtype=dtype), make_targets(ignored=7), make_weight()
    exact = of_reference(x, target, weight, ignore_index=7, **RECIPE)
    counted = np.asarray(target) != 7
    divisor = np.asarray(weight, np.float64)[np.asarray(target)[counted]].sum()
    assert 0 < counted.sum() < POSITIONS

    step = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, target, weight, 7, **RECIPE)))
    loss, gradient = step(x)
    assert_loss(loss, exact.losses.sum() / divisor, 30.0)
    assert_gradient(gradient, exact.gradient / divisor)
    assert not np.asarray(gradient)[~counted].any()


def test_all_options_with_class_probabilities() -> None:
    x, y, weight = make_logits(), make_probabilities(), make_weight()
    exact = of_reference(x, y, weight, **RECIPE)
    loss, gradient = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, y, weight, **RECIPE)))(x)
    assert_loss(loss, exact.losses.mean(), 30.0)
    assert_gradient(gradient, exact.gradient / POSITIONS)


def test_gradients_of_probabilities_and_class_weights() -> None:
    """Differences of the float64 reference, which is linear in both."""
    x, y, weight = make_logits(), make_probabilities(), make_weight()
    step = jax.grad(lambda y, w: cross_entropy(x, y, w, reduction="sum", **RECIPE), argnums=(0, 1))
    of_target, of_weight = jax.jit(step)(y, weight)

    def total(y: np.ndarray, w: np.ndarray) -> float:
        return float(of_reference(x, y, w, **RECIPE).losses.sum())

    base, y64, w64 = total(np.asarray(y), np.asarray(weight)), np.asarray(y, np.float64), np.asarray(weight, np.float64)
    by_weight = [total(y64, w64 + unit) - base for unit in np.eye(CLASSES)]
    by_target = [total(y64 + unit.reshape(y.shape), w64) - base for unit in np.eye(y.size)]
    assert_gradient(of_weight, np.array(by_weight), scale=30.0)
    assert_gradient(of_target, np.array(by_target).reshape(y.shape), scale=15.0)


def test_a_normalizer_replaces_the_divisor_and_may_be_traced() -> None:
    x, target = make_logits(), make_targets()
    exact = of_reference(x, target)
    step = jax.jit(jax.value_and_grad(lambda x, n: cross_entropy(x, target, normalizer=n)))
    for number in (4, 10):
        loss, gradient = step(x, number)
        assert_loss(loss, exact.losses.sum() / number, 20.0)
        assert_gradient(gradient, exact.gradient / number)
    for number in (np.float64(4), np.array(4_000_000_000), 4_000_000_000):  # which int32 cannot hold
        scaled = cross_entropy(x, target, normalizer=number) * np.float32(number)
        assert_loss(scaled, exact.losses.sum(), 120.0)


def test_the_mean_of_nothing_is_nan_and_its_gradient_zero() -> None:
    loss, gradient = jax.jit(jax.value_and_grad(cross_entropy))(make_logits(), jnp.full(POSITIONS, -100))
    assert jnp.isnan(loss) and not gradient.any()


def test_outputs() -> None:
    x, target = make_logits(), make_targets(ignored=-100)
    outputs = cross_entropy(x, target, reduction="none", lse_square_scale=1e-2, return_outputs=True)
    assert isinstance(outputs, CrossEntropyOutputs)
    z, counted = np.asarray(x, np.float64), np.asarray(target) != -100
    lse = np.log(np.exp(z).sum(-1))
    softmax = np.exp(z - lse[:, np.newaxis])
    chosen = z[np.arange(POSITIONS), np.where(counted, target, 0)]
    assert_loss(outputs.loss, np.where(counted, lse - chosen + 1e-2 * lse**2, 0.0))
    assert_loss(outputs.lse, lse)
    assert_loss(outputs.z_loss, np.where(counted, 1e-2 * lse**2, 0.0))
    assert outputs.logprob is not None
    assert_loss(outputs.logprob, np.where(counted, chosen - lse, 0.0))
    assert_loss(outputs.entropy, lse - (softmax * z).sum(-1))
    assert outputs.argmax.dtype == jnp.int32 and outputs.argmax.tolist() == z.argmax(-1).tolist()


def test_the_derivative_of_every_output_that_has_one() -> None:
    """loss, lse, z_loss, logprob and entropy together, under a temperature."""
    x, target = make_logits(), make_targets()

    def total(x: jax.Array) -> jax.Array:
        outputs = cross_entropy(x, target, lse_square_scale=1e-2, temperature=0.8, return_outputs=True)
        assert outputs.logprob is not None
        of_positions = 2.0 * outputs.lse.sum() + 4.0 * outputs.logprob.sum() + 5.0 * outputs.entropy.sum()
        return outputs.loss + 3.0 * outputs.z_loss + of_positions

    z, chosen = np.asarray(x, np.float64) / 0.8, np.eye(CLASSES)[np.asarray(target)]
    lse = np.log(np.exp(z).sum(-1, keepdims=True))
    softmax = np.exp(z - lse)
    of_z_loss = 2e-2 * lse * softmax / POSITIONS
    exact = (softmax - chosen) / POSITIONS + 4.0 * of_z_loss + 2.0 * softmax + 4.0 * (chosen - softmax)
    entropy = -(softmax * (z - lse)).sum(-1, keepdims=True)
    exact -= 5.0 * softmax * (z - lse + entropy)
    assert_gradient(jax.jit(jax.grad(total))(x), exact / 0.8, scale=30.0)


def test_outputs_of_class_probabilities_have_no_logprob() -> None:
    outputs = cross_entropy(make_logits(), make_probabilities(), return_outputs=True)
    assert outputs.logprob is None
    assert outputs.lse.shape == (POSITIONS,) and outputs.z_loss == 0.0


@pytest.mark.parametrize("exact_maximum", [True, False, None])
def test_either_form_of_the_forward(exact_maximum: bool | None) -> None:
    x, target = make_logits(), make_targets()

    def loss_of(x: jax.Array, exact_maximum: bool | None) -> jax.Array:
        loss = cross_entropy(x, target, reduction="sum", exact_maximum=exact_maximum)
        assert isinstance(loss, jax.Array)
        return loss

    z, chosen = np.asarray(x, np.float64), np.eye(CLASSES)[np.asarray(target)]
    lse = np.log(np.exp(z).sum(-1, keepdims=True))
    loss, gradient = jax.value_and_grad(loss_of)(x, exact_maximum)
    assert_loss(loss, (lse[:, 0] - (z * chosen).sum(-1)).sum())
    assert_gradient(gradient, np.exp(z - lse) - chosen, scale=1.0)


def test_a_form_that_there_is_not_is_refused_by_the_kernel() -> None:
    with pytest.raises(Exception, match="exact_maximum must be True or None with logit_softcap, got False"):
        cross_entropy(make_logits(), make_targets(), logit_softcap=3.0, exact_maximum=False)


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
